"""Notices that a SQLite file is no longer the one at its path.

A connection outlives its file: after a deletion or a rename every commit still succeeds, into a file that
nobody will ever open again.  A log that is deleted beneath its connection parts the processes likewise.
"""

from __future__ import annotations

import os

from outlive.store import retry

Identity = tuple[int, int]


class SameFile:
    """The file at ``path`` as it was first seen, and its write-ahead log as long as it is held open."""

    def __init__(self, path: str) -> None:
        self._path = None if path == ":memory:" else path
        self._file: Identity | None = None
        self._log: Identity | None = None

    def check(self) -> None:
        """Raise ``Transient`` unless the file is where it was; moved back, it is the same again."""
        if self._path is None:
            return
        now = _identity(self._path)
        if self._file is None:
            self._file = now
        elif now != self._file:
            raise retry.Transient("the database file was deleted, moved or replaced: restore it, or restart")

    def check_log(self) -> None:
        """Raise ``Transient`` unless the log is the one that was there before."""
        if self._path is None:
            return
        now = _identity(f"{self._path}-wal")
        if self._log is None:
            self._log = now
        elif now != self._log:
            raise retry.Transient("the database's -wal file was deleted or replaced: restart to save it")

    def let_go(self) -> None:
        """Forget the log: the last connection to close deletes it, and the next one makes another."""
        self._log = None


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
