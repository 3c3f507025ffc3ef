"""A web server that is told of runs' ends, and the witness of what it was told.

Decides nothing about runs.  Each request is answered as the next ``Reply`` says, then with 204.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

WITHIN = 20.0
"""Seconds that a wait lasts unless told otherwise, and that a reply which hangs hangs at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """One request: its id and its body are what must not change."""

    path: str
    id: str
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """How one request is answered.

    ``hang``: not before ``release``.  ``hang_up``: the connection breaks instead.  ``endless``: a body that
    goes on until the other side has gone.
    """

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    hang_up: bool = False
    endless: bool = False


class Receiver:
    """A server of its own on 127.0.0.1, in threads of this process, for the length of a ``with`` block."""

    def __init__(self, *replies: Reply | int) -> None:
        self.told: list[Told] = []
        self._replies = deque(_reply(each) for each in replies)
        self._always: Reply | None = None
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._waiters: list[Callable[[], object]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WITHIN)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where it is told."""
        return f"http://127.0.0.1:{self.port}/hook"

    def reply(self, *replies: Reply | int) -> None:
        """Say how the next requests are to be answered."""
        self._replies.extend(_reply(each) for each in replies)

    def always(self, reply: Reply | int | None) -> None:
        """Say how every request is answered from now on (None: with 204)."""
        self._always = None if reply is None else _reply(reply)

    def release(self) -> None:
        """Let what hangs go on."""
        self._released.set()

    def ids(self) -> list[str]:
        """The ids of what it was told, in order."""
        return [each.id for each in self.told]

    def wait(self, count: int, within: float = WITHIN) -> list[Told]:
        """Return the first ``count`` requests, waiting for them.  Blocks.  Raises ``TimeoutError``."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.told) >= count, within):
                raise TimeoutError(f"{len(self.told)} of {count} requests came within {within} s")
            return self.told[:count]

    async def heard(self, count: int, within: float = WITHIN) -> list[Told]:
        """Like ``wait``, on an event loop."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        self._waiters.append(wake)
        try:
            async with asyncio.timeout(within):
                while len(self.told) < count:
                    event.clear()
                    if len(self.told) < count:
                        await event.wait()
        finally:
            self._waiters.remove(wake)
        return self.told[:count]

    def _take(self, told: Told) -> Reply:
        with self._changed:
            self.told.append(told)
            if self._always is not None:
                reply = self._always
            else:
                reply = self._replies.popleft() if self._replies else Reply()
            self._changed.notify_all()
        for wake in list(self._waiters):
            wake()
        if reply.hang:
            self._released.wait(WITHIN)
        return reply


def _reply(given: Reply | int) -> Reply:
    return Reply(status=given) if isinstance(given, int) else given


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            told = Told(path=self.path, id=headers.get("webhook-id", ""), body=body, headers=headers)
            reply = receiver._take(told)
            if reply.hang_up:
                self.close_connection = True
                return
            try:
                self._answer(reply)
            except OSError:
                self.close_connection = True  # the other side did not wait for it

        def _answer(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if not reply.endless:
                self.send_header("content-length", "0")
            self.end_headers()
            while reply.endless:
                self.wfile.write(b"." * 65536)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it is called by
            """Nothing is printed."""

    return Handler
