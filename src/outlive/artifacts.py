"""Files that an agent makes: one directory for each attempt, linked to the run only by its verdict.

Decides where a file lies and what of an attempt's files counts.  An attempt that was replaced wrote somewhere
else than the one that replaced it, and its files are linked to nothing.  The link is part of the end event,
which only the holder can write; so there is no other moment at which a file begins to belong to a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlive import errors

NAME = re.compile(r"[\w(][\w .,()+=@-]{0,127}", re.ASCII)
"""What a file may be called: no path leads out of its directory, and none of them is hidden."""
_PLACE = re.compile(r"[0-9]{1,12}-[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A file that belongs to a run.  ``place`` is its attempt's directory; ``size`` is in bytes."""

    name: str
    size: int
    place: str

    def entry(self) -> dict[str, Any]:
        """How the end event names it."""
        return {"name": self.name, "size": self.size, "place": self.place}

    def public(self) -> dict[str, Any]:
        """What a client is told."""
        return {"name": self.name, "size": self.size}


def linked(end: Any) -> list[Artifact]:
    """Return what an end event links, given its data."""
    return [Artifact(**found) for found in end.get("artifacts", ())]


@dataclass(frozen=True, slots=True)
class Root:
    """The directory under which every process of a service keeps its agents' files."""

    path: Path

    def attempt(self, run_id: str, epoch: int) -> Attempt:
        """Return the directory of one attempt, which nobody had before and nobody gets again."""
        run = self._run(run_id)
        return Attempt(run / f"{epoch}-{secrets.token_hex(8)}")

    def find(self, run_id: str, artifact: Artifact) -> Path:
        """Return where a linked file lies."""
        if not _PLACE.fullmatch(artifact.place) or not NAME.fullmatch(artifact.name):
            raise errors.NotFound(f"There is no artifact {artifact.name!r} here.", run_id=run_id)
        return self._run(run_id) / artifact.place / artifact.name

    async def remove(self, run_id: str) -> None:
        """Remove every file of a run, of whichever attempt; there may be none."""
        await asyncio.to_thread(shutil.rmtree, self._run(run_id), ignore_errors=True)

    def _run(self, run_id: str) -> Path:
        if not re.fullmatch(r"[0-9a-zA-Z_-]{1,64}", run_id):
            raise errors.InvalidInput("This run cannot have artifacts.", run_id=run_id)
        return self.path / run_id[-2:] / run_id  # the end of an id is random, its beginning is the time


@dataclass(frozen=True, slots=True)
class Attempt:
    """The files of one attempt."""

    folder: Path

    def file(self, name: str) -> Path:
        """Return where to write the file ``name``; raises ``InvalidInput`` for a name that is none."""
        if not NAME.fullmatch(name):
            raise errors.InvalidInput(
                "An artifact is named by letters, digits, blanks and .,()+=@-_, without any directory.",
                hint="Put what else matters about it into an event.",
                field="artifact",
            )
        return self.folder / name

    async def begin(self) -> None:
        """Make the directory; what fails then fails the attempt, before its agent begins."""
        await asyncio.to_thread(self.folder.mkdir, parents=True)

    async def finished(self) -> tuple[Artifact, ...]:
        """Return what is there, once it would survive a loss of power: the record will promise it."""
        return await asyncio.to_thread(self._finished)

    def _finished(self) -> tuple[Artifact, ...]:
        found = [
            Artifact(name=entry.name, size=_synced(entry.path), place=self.folder.name)
            for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name)
            if NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        ]
        if found:
            for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
                _synced(folder)
        return tuple(found)

    async def alone(self) -> None:
        """Remove what other attempts at this run left: the run has ended, and nothing will ever link them."""
        await asyncio.to_thread(self._clear)

    async def dropped(self) -> None:
        """Remove this attempt's files, for the same reason."""
        await asyncio.to_thread(self._drop)

    def _clear(self) -> None:
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self.folder.parent)):
                if entry.name != self.folder.name:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another attempt's are there
            self.folder.parent.rmdir()


def _synced(path: str | Path) -> int:
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(opened)
        return os.fstat(opened).st_size
    finally:
        os.close(opened)


CURRENT: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("outlive_artifacts", default=None)


def file(name: str) -> Path:
    """Return where the agent that runs here may write a file ``name``; it is the run's once that has ended.

    For graphs' nodes and tools, in coroutines and in threads; generators have ``context.artifact``.  Raises
    ``InvalidInput``, and ``Misconfigured`` where no directory is set or no agent runs.
    """
    return of(CURRENT.get(), name)


def of(attempt: Attempt | None, name: str) -> Path:
    """The same of a known attempt."""
    if attempt is None:
        raise errors.Misconfigured(
            "There is no directory for artifacts here.",
            hint="Set artifacts to a directory that all processes share, and ask within an agent.",
        )
    return attempt.file(name)
