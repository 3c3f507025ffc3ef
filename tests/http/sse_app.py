"""An application that streams, and writes to a pipe what becomes of its generators."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import BackgroundTasks, FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse, Response

from outlive import encoding
from outlive.http import sse

PAYLOADS: list[Any] = json.loads(os.environ.get("SSE_PAYLOADS", "[]"))
BIG = "x" * 65_536

evidence = os.open(os.environ["SSE_EVIDENCE"], os.O_WRONLY)
shutdown = sse.Shutdown()
released: dict[str, asyncio.Event] = {}


def tell(what: str, tag: str) -> None:
    os.write(evidence, f"{what} {tag}\n".encode())


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    with shutdown.on_signals():
        tell("started", "-")
        yield


async def frames(kind: str, tag: str) -> AsyncGenerator[bytes, None]:
    tell("began", tag)
    try:
        match kind:
            case "payloads":
                for number, payload in enumerate(PAYLOADS):
                    yield sse.frame(data=encoding.encode(payload).text, id=f"r:{number}", event="chunk")
            case "busy":
                while True:
                    yield sse.frame(data=BIG, id="r:1")
            case "failing":
                yield sse.frame(data="1", id="r:1")
                raise LookupError("postgresql://secret")
            case "refused":
                raise LookupError("postgresql://secret")
            case _:
                yield sse.frame(data="1", id="r:1")
                await released.setdefault(tag, asyncio.Event()).wait()
                yield sse.frame(data="2", id="r:2")
    finally:
        await asyncio.to_thread(int)  # clean-up that waits, and that must not be cut short
        tell("closed", tag)


def routed() -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.api_route("/stream/{kind}/{tag}", methods=["GET", "HEAD", "POST"])
    async def stream(kind: str, tag: str, background: BackgroundTasks, request: Request) -> Response:
        async def on_close(cause: sse.Close) -> None:
            tell(cause.value, tag)

        if request.method == "POST":
            await request.body()
        background.add_task(tell, "background", tag)
        seconds = {name: float(value) for name, value in request.query_params.items()}
        return sse.EventStream(frames(kind, tag), shutdown=shutdown, on_close=on_close, **seconds)  # type: ignore[arg-type]

    @app.get("/release/{tag}")
    async def release(tag: str) -> Response:
        released.setdefault(tag, asyncio.Event()).set()
        tell("released", tag)
        return PlainTextResponse("released")

    return app


async def through(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    return response


app = routed()
wrapped = routed()
wrapped.add_middleware(BaseHTTPMiddleware, dispatch=through)
app.mount("/wrapped", wrapped)
