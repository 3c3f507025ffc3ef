"""A client that can misbehave: HTTP/1.1 over a socket of its own, chunk by chunk, until told to leave.

It speaks no more HTTP than the probe needs, because ordinary clients hide when and how a connection ends.
A *chunk* is what a user would call one: an SSE event with data, a line of JSON, else a piece of body.
"""

from __future__ import annotations

import codecs
import contextlib
import socket
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

from outlive.probe import sockets
from outlive.probe.plan import Leaving

#: No service needs longer than this for one piece of its answer. Seconds.
SILENCE = 120.0

#: Above this a stored chunk is cut off; the length is kept. Characters.
KEPT = 200


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request, ready to be sent."""

    url: str
    method: str
    headers: dict[str, str]
    body: bytes


@dataclass(kw_only=True)
class View:
    """What one client saw. Times are CLOCK_MONOTONIC seconds."""

    name: str
    started: float = 0.0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[tuple[float, str]] = field(default_factory=list)
    last_event_id: str | None = None
    left: float | None = None
    how: str = "still open"

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "status": self.status,
            "chunks": [text for _, text in self.chunks],
            "times": [round(at - self.started, 3) for at, _ in self.chunks],
            "last_event_id": self.last_event_id,
            "ended": self.how,
        }


class Client:
    """One connection. Not for several threads at once."""

    def __init__(self, call: Call, name: str, *, receive_buffer: int | None = None) -> None:
        self.view = View(name=name)
        self._call = call
        self._socket = _connect(call.url, receive_buffer)
        self._buffer = b""
        self._until_when: float | None = None
        self._chunks = self._answer()

    def send(self) -> None:
        """Send the request; the view's clock starts here."""
        self.view.started = time.monotonic()
        self._socket.sendall(_encode(self._call))

    def read(self, *, chunks: int | None = None, seconds: float | None = None) -> bool:
        """Read until so many chunks are here, or for so many seconds, or to the end.

        The view says how it ended. Returns whether the answer is still going on; after a time-out the only
        thing left to do is to leave.
        """
        self._until_when = None if seconds is None else time.monotonic() + seconds
        try:
            for text in self._chunks:
                self._keep(text)
                if chunks is not None and len(self.view.chunks) >= chunks:
                    return True
        except TimeoutError:
            self.view.how = "silent for too long" if seconds is None else self.view.how
            return seconds is not None
        except (OSError, EOFError, ValueError) as exc:
            self.view.how = f"broken: {type(exc).__name__}"
            return False
        self.view.how = "complete"
        return False

    def wait_for_head(self, seconds: float) -> None:
        """Wait for the status line at most this long, so as to leave before the first chunk."""
        self._until_when = time.monotonic() + seconds
        with contextlib.suppress(OSError, EOFError):
            self._head()

    def leave(self, how: Leaving) -> None:
        """Leave now."""
        self.view.left = time.monotonic()
        self.view.how = f"left by {how.value}"
        sockets.leave(self._socket, how)

    def close(self) -> None:
        self._socket.close()

    def _answer(self) -> Iterator[str]:
        self._head()
        yield from _split(self._body(), self.view.headers.get("content-type", ""))

    def _keep(self, text: str) -> None:
        self.view.chunks.append((time.monotonic(), text[:KEPT]))
        for line in text.splitlines():
            if line.startswith("id:"):
                self.view.last_event_id = line[3:].strip()

    def _head(self) -> None:
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        self.view.status = int(lines[0].split(" ", 2)[1])
        pairs = (line.partition(":")[::2] for line in lines[1:] if line)
        self.view.headers = {name.strip().lower(): value.strip() for name, value in pairs}

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.view.headers.get("transfer-encoding", ""):
            yield from self._chunked()
        elif "content-length" in self.view.headers:
            yield self._exactly(int(self.view.headers["content-length"]))
        else:
            yield from self._to_the_end()

    def _chunked(self) -> Iterator[bytes]:
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            yield self._exactly(size)
            self._until(b"\r\n")

    def _to_the_end(self) -> Iterator[bytes]:
        with contextlib.suppress(EOFError):
            while True:
                self._fill()
                piece, self._buffer = self._buffer, b""
                yield piece

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._fill()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _fill(self) -> None:
        left = SILENCE if self._until_when is None else self._until_when - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        piece = self._socket.recv(65536)
        if not piece:
            raise EOFError("the connection ended")
        self._buffer += piece


def _connect(url: str, receive_buffer: int | None) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    address = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(address[0], socket.SOCK_STREAM)
    if receive_buffer:  # must be set before connecting, or the window is negotiated without it
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(SILENCE)
    connection.connect(address[4])
    if secure:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=parts.hostname)
    return connection


def _encode(call: Call) -> bytes:
    parts = urllib.parse.urlsplit(call.url)
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    headers = {"host": parts.netloc, "accept": "*/*", "connection": "close", **call.headers}
    if call.body or call.method not in {"GET", "HEAD"}:
        headers["content-length"] = str(len(call.body))
    lines = [f"{call.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + call.body


def _split(pieces: Iterator[bytes], content_type: str) -> Iterator[str]:
    if content_type.startswith("text/event-stream"):
        yield from _events(pieces)
    elif "json" in content_type and "jsonl" not in content_type and "ndjson" not in content_type:
        yield "".join(_texts(pieces))
    elif "jsonl" in content_type or "ndjson" in content_type:
        yield from (line for line in _separated(pieces, "\n") if line.strip())
    else:
        yield from _texts(pieces)


def _events(pieces: Iterator[bytes]) -> Iterator[str]:
    for event in _separated(pieces, "\n\n"):
        if any(line.startswith("data") for line in event.splitlines()):
            yield event


def _separated(pieces: Iterator[bytes], mark: str) -> Iterator[str]:
    text = ""
    for piece in _texts(pieces):
        text += piece
        *complete, text = text.replace("\r\n", "\n").split(mark)
        yield from complete


def _texts(pieces: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield from (decoder.decode(piece) for piece in pieces)
