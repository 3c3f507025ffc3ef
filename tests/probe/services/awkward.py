"""Answers that no client likes. Started by the probe, never imported.

PIDFILE, where it is set, gets the process id, so that a test can wait for the end of the process.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

if "PIDFILE" in os.environ:
    pathlib.Path(os.environ["PIDFILE"]).write_text(str(os.getpid()), encoding="utf-8")


def _streamed(body: AsyncIterator[bytes], media_type: str = "text/event-stream") -> Response:
    return StreamingResponse(body, media_type=media_type)


async def _for_ever(item: bytes, pause: float) -> AsyncIterator[bytes]:
    while True:
        yield item
        await asyncio.sleep(pause)


async def endless(request: Request) -> Response:
    """Events without an end, as fast as they can be produced."""
    del request
    return _streamed(_for_ever(b"data: again\n\n", 0))


async def unseparated(request: Request) -> Response:
    """One event without an end."""
    del request
    return _streamed(_for_ever(b"x" * 65536, 0))


async def binary(request: Request) -> Response:
    """Bytes that are no text, in a few pieces."""
    del request

    async def body() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield bytes(range(256))
            await asyncio.sleep(0.05)

    return _streamed(body(), "application/octet-stream")


async def huge(request: Request) -> Response:
    """Two pieces of which each is larger than what anybody reads at once."""
    del request

    async def body() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield bytes(4 << 20)

    return _streamed(body(), "application/octet-stream")


async def failing(request: Request) -> Response:
    """An error before the answer."""
    del request
    raise RuntimeError("no luck [red]today[/red]")


async def breaking(request: Request) -> Response:
    """An error in the middle of the answer."""
    del request

    async def body() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise RuntimeError("no luck later")

    return _streamed(body())


async def silent(request: Request) -> Response:
    """No answer at all."""
    del request
    await asyncio.Event().wait()
    return Response()


async def moved(request: Request) -> Response:
    """Elsewhere."""
    del request
    return RedirectResponse("/elsewhere")


ENDPOINTS = (endless, unseparated, binary, huge, failing, breaking, silent, moved)
app = Starlette(routes=[Route(f"/{endpoint.__name__}", endpoint) for endpoint in ENDPOINTS])
number = 5
