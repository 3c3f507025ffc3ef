"""What several checks read out of a history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outlive import signals
from outlive.states import State
from outlive.testing.simulation.history import Commit, EventRow, History, RunChange

SLACK = 0.001
Found = str | tuple[float, str]
"""What a check says: a sentence, and, if it knows, the virtual second at which it shows."""


def changes(history: History) -> Iterator[tuple[Commit, RunChange]]:
    for commit in history.commits:
        for change in commit.runs:
            yield commit, change


def born_at(history: History) -> dict[str, float]:
    return {change.run_id: commit.at for commit, change in changes(history) if change.before is None}


def by_run(events: list[EventRow]) -> dict[str, list[EventRow]]:
    found: dict[str, list[EventRow]] = defaultdict(list)
    for event in events:
        found[event.run_id].append(event)
    return found


def ended_at(history: History) -> dict[str, float]:
    return {
        change.run_id: commit.at for commit, change in changes(history) if State(change.after[0]).terminal
    }


def calm(history: History, start: float, end: float) -> bool:
    """True if no fault was going on between the two times."""
    return not any(span.begin <= end and span.end >= start for span in history.faults)


def calm_but(history: History, this: object, start: float, end: float) -> bool:
    return not any(span is not this and span.begin <= end and span.end >= start for span in history.faults)


def drivers(history: History) -> dict[tuple[str, int], str]:
    """Which process holds which attempt: the one whose commit began it."""
    return {
        (change.run_id, change.after[1]): commit.process
        for commit, change in changes(history)
        if commit.script in ("begin", "submit", "claim")
        and change.after[0] == "running"
        and change.before != change.after  # a submit that displaces a run asks its holder to stop
    }


def claimed(history: History) -> dict[tuple[str, int], str]:
    """Which process knows that it drives which attempt: a claim whose reply was lost is in nobody's mind."""
    return {
        (told.run_id, told.epoch): process
        for _, process, told in history.notes
        if isinstance(told, signals.RunClaimed)
    }


def grace(history: History, run_id: str) -> float:
    return float(history.policies.get(run_id, {}).get("grace", 0.0))


def stop_deadline(history: History, run_id: str) -> float:
    return float(history.policies.get(run_id, {}).get("stop_deadline", 1.0))
