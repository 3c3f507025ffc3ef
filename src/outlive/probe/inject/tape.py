"""The recorder's tape: one JSON line per happening, appended by every process of the service.

Times are CLOCK_MONOTONIC, which all processes of one machine share, so that the client's own notes fit in.
It decides only how a line is written; what is worth a line is decided by the hooks.
"""

from __future__ import annotations

import contextvars
import json
import os
import time

PATH_VARIABLE = "OUTLIVE_PROBE_TAPE"

#: Which request the running code belongs to; tasks inherit it, so detached work is attributed as well.
request: contextvars.ContextVar[str | None] = contextvars.ContextVar("outlive_probe_request", default=None)

_descriptor: int | None = None


def note(kind: str, **fields: object) -> None:
    """Append one happening. A single `write` to a file opened for appending is never interleaved."""
    line = {"t": time.monotonic(), "pid": os.getpid(), "kind": kind, "request": request.get(), **fields}
    os.write(_open(), json.dumps(line, default=repr).encode() + b"\n")


class Often:
    """Something that can happen so often that a line each would slow the service: later, one for many."""

    EACH, MANY = 500, 100

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._count = 0

    def note(self, **fields: object) -> None:
        """Note it, or count it towards the next line that says `times`."""
        self._count += 1
        if self._count <= self.EACH:
            note(self._kind, **fields)
        elif (self._count - self.EACH) % self.MANY == 0:
            note(self._kind, **fields, times=self.MANY)


def _open() -> int:
    global _descriptor  # noqa: PLW0603  (one tape per process; a fork keeps using the same open file)
    if _descriptor is None:
        _descriptor = os.open(os.environ[PATH_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return _descriptor
