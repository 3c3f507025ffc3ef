"""Clients over real sockets, each with a transcript of every byte and every event that reached it.

Decides nothing: it sends, receives, writes down, and leaves when told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.parse
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h11

STREAM = "text/event-stream"
BOUND = 40.0
"""Seconds of silence after which a client gives up: a bound for a broken server, no claim about speed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a client asks for."""

    url: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """One server-sent event."""

    id: str
    event: str
    data: Any

    @property
    def step(self) -> str:
        """The step of a booking that this event reports as done, or nothing."""
        if self.event == "chunk" and self.data["mode"] == "updates":
            return str(next(iter(self.data["data"])))
        return ""


class Exchange:
    """One request and its response, over a connection of its own.

    ``client`` names the transcript; a client that comes back goes on in the same one.
    """

    def __init__(self, folder: Path, client: str, request: Request) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.last_id = ""
        self._request = request
        self._path = folder / f"{client}.jsonl"
        self._parts = h11.Connection(h11.CLIENT)
        self._over = False

    async def __aenter__(self) -> Self:
        """Connect, send, and read the head of the response."""
        self._transcript = self._path.open("a", buffering=1, encoding="utf-8")
        where = urllib.parse.urlsplit(self._request.url)
        self._reader, self._writer = await asyncio.open_connection(where.hostname, where.port)
        self._send(where.netloc)
        head = await self._next()
        if isinstance(head, h11.Response):
            self.status = head.status_code
            self.headers = {name.decode(): value.decode() for name, value in head.headers}
            self._note("status", status=self.status, headers=self.headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over:
            self._end("client")
        self._transcript.close()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, host: str) -> None:
        asked = self._request
        body = b"" if asked.body is None else json.dumps(asked.body).encode()
        headers = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(body))}
        headers |= dict(asked.headers)
        self._note(
            "request",
            url=asked.url,
            method=asked.method,
            path=asked.path,
            headers=headers,
            body=asked.body,
        )
        request = h11.Request(method=asked.method, target=asked.path, headers=list(headers.items()))
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        self._writer.write(b"".join(self._parts.send(part) or b"" for part in parts))

    # ------------------------------------------------------------ receiving

    async def json(self) -> Any:
        """Return the whole body, parsed; raises ``ValueError`` if it is not JSON."""
        body = b"".join([data async for data in self._body()])
        try:
            return json.loads(body)
        except json.JSONDecodeError:
            asked, told = self._request, body.decode("latin-1")
            raise ValueError(f"{asked.method} {asked.path} was answered {self.status}: {told}") from None

    async def events(self) -> AsyncGenerator[Received, None]:
        """Yield events until the response ends, however it ends."""
        text = ""
        async for data in self._body():
            *frames, text = (text + data.decode()).split("\n\n")
            for frame in frames:
                event = _parsed(frame)
                self.last_id = event.id
                self._note("event", id=event.id, event=event.event, data=event.data)
                yield event

    async def _body(self) -> AsyncGenerator[bytes, None]:
        while isinstance(part := await self._next(), h11.Data):
            yield bytes(part.data)

    async def _next(self) -> Any:
        """Return the next part of the response; None when the connection is gone."""
        while True:
            part = self._parts.next_event()
            if part is h11.NEED_DATA:
                if not await self._receive():
                    return None
            elif isinstance(part, h11.EndOfMessage):
                self._end("server")
                return part
            elif not isinstance(part, h11.InformationalResponse):
                return part

    async def _receive(self) -> bool:
        try:
            async with asyncio.timeout(BOUND):
                data = await self._reader.read(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._end("cut")
            return False
        self._note("bytes", text=data.decode("latin-1"))
        self._parts.receive_data(data)
        return True

    def leave(self) -> None:
        """Close the connection in the middle of the response, as a closed tab does."""
        self._end("client")
        self._writer.close()

    def _end(self, by: str) -> None:
        if not self._over:
            self._over = True
            self._note("closed", by=by)

    def _note(self, what: str, **fields: Any) -> None:
        self._transcript.write(json.dumps({"at": time.time(), "what": what, **fields}) + "\n")


def _parsed(frame: str) -> Received:
    fields: dict[str, str] = {}
    for line in frame.split("\n"):
        name, _, value = line.partition(":")
        if name:  # a line that begins with a colon is a heartbeat
            fields[name] = value.removeprefix(" ")
    return Received(id=fields.get("id", ""), event=fields.get("event", ""), data=json.loads(fields["data"]))
