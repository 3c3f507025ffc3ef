"""The socket that ``outlive serve`` listens on: whose clients it notices when they say nothing any more."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from outlive import errors

SILENT = 15
"""Seconds of silence after which a connection is asked for a sign of life, and between two such questions."""
QUESTIONS = 3
KEPT = 75
"""Seconds for which a connection stays open between requests: longer than clients and proxies keep theirs.

Who sends a POST on a connection that the server is just closing cannot know whether it was carried out.
"""
UNREAD_MS = 60_000
"""Milliseconds for which a client may leave what was sent unacknowledged, or its window shut.

A server that closes a connection waits for the client to take what was written before, which a stopped reader
never does; the kernel then ends the wait.  Longer than a stream waits for its reader, so that the stream is
what decides.
"""


def bound(host: str, port: int, *, anywhere: bool) -> socket.socket:
    """Take the address before anything is started, without listening yet; raises ``Misconfigured``.

    Connections inherit its options: a client that vanished without a word counts as gone after a minute, and
    so does one that holds a connection without reading.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as undo:
            # The protocol is named, or asyncio would not switch Nagle's algorithm off on its connections.
            taken = undo.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _watch(taken)
            if not (anywhere or ipaddress.ip_address(address[0]).is_loopback):
                raise errors.Misconfigured(
                    f"{host} can be reached from other machines, and nobody is authenticated.",
                    hint="Set auth to keys or jwt, or listen on 127.0.0.1, or say --allow-anyone.",
                )
            taken.bind(address)
            undo.pop_all()
    except OSError as failure:
        raise errors.Misconfigured(
            f"{host} port {port} cannot be listened on: {failure.strerror}.",
            hint="Choose another --host or --port; --port 0 takes any free one.",
        ) from failure
    return taken


def _watch(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": SILENT,
        "TCP_KEEPINTVL": SILENT,
        "TCP_KEEPCNT": QUESTIONS,
        "TCP_USER_TIMEOUT": UNREAD_MS,
    }
    for name, value in wanted.items():
        if hasattr(socket, name):  # not every system has all of them
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
