"""Plain ASGI services without LangGraph. Started by the probe, never imported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_kept: list[AsyncIterator[str]] = []


async def _numbers(pause: float) -> AsyncIterator[str]:
    for number in range(6):
        yield f"id: {number}\ndata: {number}\n\n"
        await asyncio.sleep(pause)


async def counted(request: Request) -> Response:
    """A short stream."""
    del request
    return StreamingResponse(_numbers(0.15), media_type="text/event-stream")


async def leaking(request: Request) -> Response:
    """A relay that leaves its upstream open: it neither closes it nor lets it go."""
    del request
    upstream = _numbers(0.1)
    _kept.append(upstream)

    async def relay() -> AsyncIterator[str]:
        async for item in upstream:
            yield item
            await asyncio.sleep(0.2)

    return StreamingResponse(relay(), media_type="text/event-stream")


async def plain(request: Request) -> Response:
    """An answer in one piece, after a while."""
    del request
    await asyncio.sleep(0.6)
    return JSONResponse({"done": True})


app = Starlette(routes=[Route("/counted", counted), Route("/leaking", leaking), Route("/plain", plain)])


def create() -> Starlette:
    """The application as a factory."""
    return app
