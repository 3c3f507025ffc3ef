"""A client that can misbehave: HTTP/1.1 over a socket of its own, chunk by chunk, until told to leave.

It speaks no more HTTP than the probe needs, because ordinary clients hide when and how a connection ends.
How an answer becomes chunks is decided in `pieces`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

from outlive.probe import pieces, sockets
from outlive.probe.plan import Leaving, PlanError

#: No service needs longer than this for one piece of its answer, or to accept a connection. Seconds.
SILENCE, CONNECTING = 120.0, 10.0

#: Above this a stored chunk is cut off; so many chunks are stored, and all are counted. Characters; chunks.
KEPT, STORED = 200, 2000

#: A head, a chunk's size line; a service that sends more before a line's end is broken. Bytes.
LONGEST_LINE = 65536

#: How much of a huge chunk is read at a time. Bytes.
PART = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request, ready to be sent."""

    url: str
    method: str
    headers: dict[str, str]
    body: bytes


@dataclass(kw_only=True)
class View:
    """What one client saw. Times are CLOCK_MONOTONIC seconds; `count` is of all chunks, stored or not."""

    name: str
    started: float = 0.0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[tuple[float, str]] = field(default_factory=list)
    count: int = 0
    last_event_id: str | None = None
    newest: float | None = None
    left: float | None = None
    how: str = "still open"

    def keep(self, text: str) -> None:
        """Count a chunk, and store it if there are not too many."""
        self.count += 1
        self.newest = time.monotonic()
        if self.count <= STORED:
            self.chunks.append((self.newest, text[:KEPT]))
        for line in text[:PART].splitlines():
            if line.startswith("id:"):
                self.last_event_id = line[3:].strip()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "status": self.status,
            "count": self.count,
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
        self._buffer = bytearray()
        self._until_when: float | None = None
        self._chunks = self._answer()

    def send(self) -> None:
        """Send the request; the view's clock starts here. A refusal in the middle of it is seen at `read`."""
        self.view.started = time.monotonic()
        with contextlib.suppress(OSError):
            self._socket.sendall(_encode(self._call))

    def read(self, *, chunks: int | None = None, seconds: float | None = None) -> bool:
        """Read until so many chunks are here, or for so many seconds, or to the end.

        The view says how it ended. Returns whether the answer is still going on; after a time-out the only
        thing left to do is to leave.
        """
        self._until_when = None if seconds is None else time.monotonic() + seconds
        try:
            for text in self._chunks:
                self.view.keep(text)
                if chunks is not None and self.view.count >= chunks:
                    return True
                if self._until_when is not None and time.monotonic() > self._until_when:
                    return True  # a service that never pauses
        except TimeoutError:
            self.view.how = "silent for too long" if seconds is None else self.view.how
            return seconds is not None
        except (OSError, EOFError, ValueError) as exc:
            self.view.how = f"broken: {str(exc) or type(exc).__name__}"
            return False
        self.view.how = "complete"
        return False

    def wait_for_head(self, seconds: float) -> None:
        """Wait for the status line at most this long, so as to leave before the first chunk."""
        self._until_when = time.monotonic() + seconds
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._head()

    def leave(self, how: Leaving) -> None:
        """Leave now."""
        self.view.left = time.monotonic()
        self.view.how = f"left by {how.value}"
        sockets.leave(self._socket, how)

    def close(self) -> None:
        """Give the connection up, also under a thread that reads from it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self) -> Iterator[str]:
        self._head()
        yield from pieces.split(self._body(), self.view.headers.get("content-type", ""))

    def _head(self) -> None:
        """Read the status and the headers; raises `ValueError` for what is no HTTP."""
        status = 100
        lines: list[str] = []
        while status // 100 == 1:  # "continue" and early hints come before the answer
            lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            protocol, _, rest = lines[0].partition(" ")
            if not protocol.startswith("HTTP/"):
                raise ValueError(f"no HTTP: {lines[0][:40]!r}")
            status = int(rest[:3])
        self.view.status = status
        pairs = (line.partition(":")[::2] for line in lines[1:] if line)
        self.view.headers = {name.strip().lower(): value.strip() for name, value in pairs}

    def _body(self) -> Iterator[bytes]:
        if self._call.method == "HEAD" or self.view.status in {204, 304}:
            return
        if "chunked" in self.view.headers.get("transfer-encoding", ""):
            yield from self._chunked()
        elif "content-length" in self.view.headers:
            yield from self._exactly(int(self.view.headers["content-length"]))
        else:
            yield from self._to_the_end()

    def _chunked(self) -> Iterator[bytes]:
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            yield from self._exactly(size)
            self._until(b"\r\n")

    def _to_the_end(self) -> Iterator[bytes]:
        with contextlib.suppress(EOFError):
            while True:
                self._fill()
                yield self._take(len(self._buffer))

    def _until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > LONGEST_LINE:
                raise ValueError("a line without an end")
            self._fill()
        found = self._take(end + len(mark))
        return found[: -len(mark)]

    def _exactly(self, size: int) -> Iterator[bytes]:
        """So many bytes: in one piece, unless that would be a huge one."""
        while size > 0:
            part = min(size, PART)
            while len(self._buffer) < part:
                self._fill()
            yield self._take(part)
            size -= part

    def _take(self, size: int) -> bytes:
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
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
    """A connection to the first address that takes one. Raises `PlanError` where none does."""
    parts = urllib.parse.urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    failure: OSError | None = None
    try:
        for family, _, _, _, address in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM):
            try:
                connection = _dial(family, address, receive_buffer)
            except OSError as exc:
                failure = exc
                continue
            return _secured(connection, str(parts.hostname)) if secure else connection
    except OSError as exc:
        failure = exc
    where = f"{parts.scheme}://{parts.hostname}:{port}"
    unknown = isinstance(failure, ssl.SSLCertVerificationError)
    hint = " For a certificate of your own, name its CA in SSL_CERT_FILE." if unknown else ""
    raise PlanError(f"{where} takes no connection: {failure}.{hint}") from failure


def _dial(family: int, address: tuple[object, ...], receive_buffer: int | None) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        if receive_buffer:  # must be set before connecting, or the window is negotiated without it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(CONNECTING)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    connection.settimeout(SILENCE)
    return connection


def _secured(connection: socket.socket, name: str) -> socket.socket:
    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=name)
    except OSError:
        connection.close()
        raise


def _encode(call: Call) -> bytes:
    parts = urllib.parse.urlsplit(call.url)
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    headers = {
        "host": parts.netloc.rpartition("@")[2],
        "accept": "*/*",
        "connection": "close",
        **call.headers,
    }
    if call.body or call.method not in {"GET", "HEAD"}:
        headers["content-length"] = str(len(call.body))
    lines = [f"{call.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + call.body
