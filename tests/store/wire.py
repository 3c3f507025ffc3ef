"""The wire between a client and PostgreSQL, to be cut at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit


class Cut(StrEnum):
    """When a connection is cut: before the server gets a message, or after it has answered it."""

    BEFORE = "before"
    AFTER = "after"


@dataclass
class Wire:
    """Carries bytes both ways; cuts the one connection on which ``word`` is sent next."""

    dsn: str = ""
    cuts: int = 0
    _word: bytes = b""
    _when: Cut = Cut.BEFORE
    _gates: list[asyncio.Event] = field(default_factory=list)
    _ends: list[asyncio.StreamWriter] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def cut(self, word: bytes, when: Cut) -> None:
        """Cut the next connection on which the client sends ``word``."""
        self._word, self._when = word, when

    def silence(self) -> None:
        """Carry nothing more on the connections that there are, and tell neither side."""
        for gate in self._gates:
            gate.clear()

    def down(self) -> None:
        """End every connection.  (A cancelled task of a stream server would be reported as an error.)"""
        for end in self._ends:
            end.transport.abort()
        for gate in self._gates:
            gate.set()

    def _hit(self, data: bytes) -> Cut | None:
        if self._word and self._word in data:
            self._word = b""
            self.cuts += 1
            return self._when
        return None

    async def carry(self, host: str, port: int, near: Stream, near_out: asyncio.StreamWriter) -> None:
        """Serve one client until either side is gone or the wire is cut."""
        far, far_out = await asyncio.open_connection(host, port)
        dropping, gate = asyncio.Event(), asyncio.Event()
        gate.set()
        self._gates.append(gate)
        self._ends += [near_out, far_out]

        async def answers() -> None:
            while data := await far.read(65536):
                await gate.wait()
                if dropping.is_set():
                    return  # the server has done it, and nobody will hear of it
                near_out.write(data)
                await near_out.drain()

        answering = asyncio.create_task(answers())
        try:
            while data := await near.read(65536):
                await gate.wait()
                hit = self._hit(data)
                if hit is Cut.BEFORE:
                    return
                if hit is Cut.AFTER:
                    dropping.set()
                far_out.write(data)
                await far_out.drain()
                if hit is Cut.AFTER:
                    await answering
                    return
        finally:
            answering.cancel()
            for end in (near_out, far_out):
                end.close()


Stream = asyncio.StreamReader


@contextlib.asynccontextmanager
async def wire_to(dsn: str) -> AsyncIterator[Wire]:
    """A wire to the server of ``dsn``; its own ``dsn`` leads through it."""
    target = urlsplit(dsn)
    wire = Wire()

    async def serve(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        wire._tasks.add(task)
        with contextlib.suppress(ConnectionError):
            await wire.carry(str(target.hostname), int(target.port or 5432), near, near_out)
        wire._tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wire.dsn = (
        target._replace(netloc=f"{target.username}@127.0.0.1:{port}").geturl()
        + "?sslmode=disable&gssencmode=disable"
    )
    try:
        yield wire
    finally:
        server.close()
        wire.down()
        await asyncio.gather(*wire._tasks, return_exceptions=True)
