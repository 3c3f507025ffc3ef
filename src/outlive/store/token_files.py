"""Liveness tokens beside a SQLite file: one locked file per worker, released by the kernel at its death.

Never on the database file itself: opening and closing that by hand drops the process's POSIX locks on it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection
from pathlib import Path

LOOKS = 100
"""How often a new token is tried for, a millisecond apart: others look at it for microseconds."""


class TokenFiles:
    """The tokens of one database.  Every method blocks briefly."""

    def __init__(self, database: str) -> None:
        self._folder = Path(f"{database}.workers")
        self._shared = database != ":memory:"
        self._held: dict[str, int] = {}

    def hold(self, worker: str) -> None:
        """Lock ``worker``'s file until ``release`` or death, and remove the files of the dead."""
        if not self._shared:
            return
        self._folder.mkdir(exist_ok=True)
        for _ in range(LOOKS):
            if (handle := self._taken(worker)) is not None:
                self._held[worker] = handle
                break
            time.sleep(0.001)
        else:
            raise BlockingIOError(f"another process holds the token of {worker}")
        self.dead([entry.name for entry in os.scandir(self._folder) if entry.is_file()])

    def _taken(self, worker: str) -> int | None:
        """Lock the file; None if somebody looks at it just now, or removed it for a dead one's."""
        handle = os.open(self._folder / worker, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_named(worker, handle):
                return handle
        except BlockingIOError:
            pass
        os.close(handle)
        return None

    def dead(self, workers: Collection[str]) -> set[str]:
        """Return the workers whose file nobody locks."""
        return {worker for worker in workers if worker not in self._held and self._free(worker)}

    def release(self) -> None:
        """Give every token back and remove its file."""
        for worker, handle in self._held.items():
            (self._folder / worker).unlink(missing_ok=True)
            os.close(handle)
        self._held.clear()

    def _free(self, worker: str) -> bool:
        if not self._shared or "/" in worker or worker in ("", ".", ".."):
            return False  # not a name that we gave: absence proves nothing, and nothing is to be removed
        try:
            handle = os.open(self._folder / worker, os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_named(worker, handle):  # else somebody removed it, and the name may be a living one's
                (self._folder / worker).unlink()
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        return True

    def _is_named(self, worker: str, handle: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._folder / worker), os.fstat(handle))
        except FileNotFoundError:
            return False
