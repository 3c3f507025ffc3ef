"""Which moves happened while which faults were going on: what a number of seeds has really tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from outlive.testing.simulation.history import Commit, FaultSpan, History, RunChange
from outlive.testing.simulation.plan import Fault

CALM = "calm"
COLUMNS = (CALM, *(fault.value for fault in Fault))
Coverage = Counter[tuple[str, str]]
"""How often (what happened, which fault was going on anywhere)."""
_BY_TARGET = ("settle", "sweep", "stop", "submit", "begin")


def cover(history: History) -> Coverage:
    """Count the moves of a history by what was wrong when they were committed."""
    found: Coverage = Counter()
    for commit in history.commits:
        at_work = {span.fault for span in history.faults if _goes_on(span, commit.at)} or {CALM}
        for move in _moves(commit):
            found.update((move, fault) for fault in at_work)
    return found


def empty(covered: Coverage) -> list[tuple[str, str]]:
    """Return the (move, fault) that never met, of the moves that were seen at all."""
    moves = sorted({move for move, _ in covered})
    return [(move, column) for move in moves for column in COLUMNS if not covered[move, column]]


def _goes_on(span: FaultSpan, at: float) -> bool:
    """A skewed clock stays skewed; everything else has an end."""
    return span.begin <= at and (at <= span.end or span.fault == Fault.SKEW.value)


def _moves(commit: Commit) -> Iterator[str]:
    """The moves of one commit: ``settle → failed``, ``claim``; a claim's own first event is no move."""
    last: dict[str, RunChange] = {change.run_id: change for change in commit.runs}
    for change in last.values():
        yield f"{commit.script} → {change.after[0]}" if commit.script in _BY_TARGET else commit.script
