"""What an operator asks of the record as a whole: what waits, what is unknown, what policies cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlive.model import millis
from outlive.store.script import Steps, script, statement
from outlive.store.watching import HOLD


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One line of how things stand: ``what`` there is ``count`` times, of an ``agent`` if it is about runs.

    ``age``: for how many seconds the oldest of it has been waiting.
    """

    what: str
    agent: str
    count: int
    age: float


@script(reads=True)
def standing() -> Steps[list[Standing]]:
    """Return what is queued, running, unknown, torn and unsent, in one statement."""
    rows = yield statement("standing")
    return [
        Standing(
            what=row["what"],
            agent=row["agent"],
            count=int(row["n"]),
            age=max(0.0, float(row["age_ms"] or 0) / 1000),
        )
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What the runs of one ``agent`` cost that ended in one way: ``state``, and the ``reason`` of a stop.

    ``unwatched_*`` is what was done after the last viewer had left; runs that nobody ever watched are not in
    it.  ``spent_*`` is everything that was done.  Seconds are of the wall, from the first start to the end.
    """

    agent: str
    state: str
    reason: str
    runs: int
    unwatched_runs: int
    unwatched_seconds: float
    unwatched_chunks: int
    spent_seconds: float
    spent_chunks: int

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Cost:
        """Read a row."""
        return cls(
            agent=row["agent"],
            state=row["state"],
            reason=row["reason"],
            runs=int(row["runs"]),
            unwatched_runs=int(row["unwatched_runs"]),
            unwatched_seconds=float(row["unwatched_ms"]) / 1000,
            unwatched_chunks=int(row["unwatched_chunks"]),
            spent_seconds=float(row["spent_ms"]) / 1000,
            spent_chunks=int(row["spent_chunks"]),
        )


@script(reads=True)
def costs(window: float) -> Steps[list[Cost]]:
    """Return what the runs cost that ended in the last ``window`` seconds, by agent and end."""
    now = int((yield statement("clock"))[0]["now_ms"])  # a clock within the statement would defeat the index
    rows = yield statement("costs", since_ms=now - millis(window), hold_ms=millis(HOLD))
    return [Cost.from_row(row) for row in rows]
