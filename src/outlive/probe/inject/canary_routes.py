"""The canary's routes that need Starlette alone. What they show is written to the tape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route

from . import tape  # noqa: TID252  (the directory runs under another name)
from .canary import PREFIX, STEP, STEPS  # noqa: TID252


def application(more: Sequence[BaseRoute]) -> Starlette:
    """The canary, with these routes besides its own."""
    own = [
        Route(f"{PREFIX}/stream", _stream),
        Route(f"{PREFIX}/poll", _poll),
        Route(f"{PREFIX}/watched", _watched),
        _behind_middleware(),
    ]
    return Starlette(routes=[*own, *more])


async def steps() -> AsyncIterator[str]:
    """A generator with an await in its clean-up."""
    try:
        for number in range(STEPS):
            tape.note("canary.step", number=number)
            yield f"data: {number}\n\n"
            await asyncio.sleep(STEP)
    finally:
        tape.note("canary.finally.start")
        await asyncio.sleep(STEP / 6)
        tape.note("canary.finally.end")


async def _after() -> None:
    tape.note("canary.background")


async def _stream(request: Request) -> Response:
    del request
    return StreamingResponse(steps(), media_type="text/event-stream", background=BackgroundTask(_after))


async def _poll(request: Request) -> Response:
    for _ in range(STEPS):
        if await request.is_disconnected():
            break
        await asyncio.sleep(STEP / 3)
    return PlainTextResponse("left")


async def _watched(request: Request) -> Response:
    """A stream whose handler also polls: a second reader of the same disconnect."""

    async def watched() -> AsyncIterator[str]:
        for number in range(5):
            left = await request.is_disconnected()
            yield f"data: {number} {left}\n\n"
            await asyncio.sleep(STEP / 6)

    return StreamingResponse(watched(), media_type="text/event-stream")


def _behind_middleware() -> Mount:
    async def dispatch(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        return await call_next(request)

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=dispatch)]
    return Mount(f"{PREFIX}/middleware", routes=[Route("/poll", _poll)], middleware=middleware)
