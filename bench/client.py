"""A client on a raw socket: as little work as possible in the process that holds the watch."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bench.processes import BOUND, BrokenError

_END = b"0\r\n\r\n"
_CHUNK = b"event: chunk"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A response, and when its first chunk and its end were here: seconds since the request was sent."""

    head: bytes
    body: bytes
    first: float
    whole: float

    @property
    def chunks(self) -> int:
        """How many chunks it holds."""
        return self.body.count(_CHUNK)


class Connection(asyncio.Protocol):
    """One connection that is kept open, for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._received = bytearray()
        self._length: int | None = None
        self._sent = self._first = 0.0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transport is not None:
            self._transport.close()

    async def post(self, path: str, body: Any) -> Answer:
        """Send a creation that wants an event stream; returns when the stream has ended."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return await self._ask(head.encode() + content)

    async def get(self, path: str, accept: str = "text/event-stream") -> Answer:
        """Send a request; returns when the answer is whole."""
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())

    async def _ask(self, request: bytes) -> Answer:
        if self._transport is None or self._transport.is_closing():
            raise BrokenError("The server closed the connection.")
        self._answer = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._first, self._length = 0.0, None
        self._sent = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(BOUND):
            answer = await self._answer
        if not answer.head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise BrokenError(f"The server refused: {answer.head[:40]!r} {answer.body[:400]!r}")
        return answer

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        now = time.perf_counter()
        self._received += data
        if not self._first and _CHUNK in self._received:
            self._first = now
        if self._whole():
            head, _, body = bytes(self._received).partition(b"\r\n\r\n")
            self._resolve(
                Answer(head=head, body=body, first=self._first - self._sent, whole=now - self._sent)
            )

    def _whole(self) -> bool:
        if self._length is None:
            head, blank, _ = self._received.partition(b"\r\n\r\n")
            if not blank:
                return False
            declared = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
            self._length = len(head) + 4 + int(declared) if declared else -1
        if self._length < 0:
            return self._received.endswith(_END)
        return len(self._received) >= self._length

    def _resolve(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BrokenError("The server closed the connection."))


def parsed(answer: Answer) -> Any:
    """The JSON of a response."""
    return json.loads(answer.body)
