"""How a TCP connection can end, or seem to: with a FIN, a reset, half of a close, or nothing at all."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from typing import assert_never

from outlive.probe.plan import Leaving, PlanError

_SO_ATTACH_FILTER = 26  # Linux; not in the socket module
_BPF_RETURN_NOTHING = struct.pack("=HBBI", 0x06, 0, 0, 0)  # one instruction: RET 0, drop the packet


def leave(connection: socket.socket, how: Leaving) -> None:
    """End the connection, or make it look dead. After `vanish` and `half-close` the socket stays open."""
    match how:
        case Leaving.FIN:
            _shutdown(connection)
            connection.close()
        case Leaving.RST:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        case Leaving.HALF_CLOSE:
            connection.shutdown(socket.SHUT_WR)
        case Leaving.VANISH:
            vanish(connection)
        case _:
            assert_never(how)


def vanish(connection: socket.socket) -> None:
    """Drop every packet that arrives from now on, unacknowledged, as a phone without a network does.

    A filter on our own socket does it, without privileges; the peer sees neither FIN nor ACK.
    Raises `PlanError` where the system has no such filters.
    """
    if sys.platform != "linux":
        raise PlanError("A client can vanish without FIN only on Linux: leave out leave-vanish here.")
    program = ctypes.create_string_buffer(_BPF_RETURN_NOTHING)
    connection.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program))
    )


def _shutdown(connection: socket.socket) -> None:
    # Unread bytes would turn the close into a reset, and this is to be a FIN.
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except (BlockingIOError, ConnectionError, OSError):
        pass
