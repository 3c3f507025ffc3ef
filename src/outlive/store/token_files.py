"""Liveness tokens beside a SQLite file: one locked file per worker, released by the kernel at its death.

Never on the database file itself: opening and closing that by hand drops the process's POSIX locks on it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from pathlib import Path


class TokenFiles:
    """The tokens of one database.  Every method blocks briefly."""

    def __init__(self, database: str) -> None:
        self._folder = Path(f"{database}.workers")
        self._shared = database != ":memory:"
        self._held: dict[str, int] = {}

    def hold(self, worker: str) -> None:
        """Lock ``worker``'s file until ``release`` or death."""
        if not self._shared:
            return
        self._folder.mkdir(exist_ok=True)
        handle = os.open(self._folder / worker, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._held[worker] = handle

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
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        (self._folder / worker).unlink(missing_ok=True)
        return True
