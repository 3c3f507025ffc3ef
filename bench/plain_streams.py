"""What FastAPI's own streaming response costs while it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse


async def _silent() -> AsyncGenerator[bytes, None]:
    yield b"event: chunk\ndata: 1\n\n"
    await asyncio.Event().wait()


def app(database: str) -> FastAPI:
    """Return the application; it needs no database."""
    del database
    application = FastAPI()

    @application.get("/")
    async def stream() -> StreamingResponse:
        return StreamingResponse(_silent(), media_type="text/event-stream")

    return application
