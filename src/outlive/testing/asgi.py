"""An application behind a real server on a real socket, in the caller's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

WITHIN = 20.0
"""Seconds that one waits for an answer of it."""


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    """Serve an application on a free port; its end is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5)
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        started = asyncio.create_task(server.begun.wait())
        await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN)
        started.cancel()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.begun.set()
