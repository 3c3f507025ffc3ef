"""Checks of who watched, and what followed from nobody watching."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.presence import HOLD
from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History, Transcript

SUBMITTED = 15.0
"""Seconds for which a submit's own viewer counts, if its client never came to follow the run."""


def watched_runs_are_kept(history: History) -> Iterator[reading.Found]:
    """A disconnect stopped nothing that somebody had surely watched for its whole grace."""
    for commit, change in reading.changes(history):
        if commit.script != "stop" or change.stop_reason != "disconnect":
            continue
        grace = reading.grace(history, change.run_id)
        for got in history.transcripts:
            if got.run_id == change.run_id and _watched(history, got, commit.at - grace, commit.at):
                yield commit.at, f"{change.run_id[:8]} was stopped by a disconnect while {got.client} watched"


def _watched(history: History, got: Transcript, start: float, end: float) -> bool:
    """True if the viewer was surely present all that time: joined well before, not cut, no fault near."""
    joined = got.joined_at + 0.5
    left = got.left_at if got.left_at is not None else (got.events[-1][0] if got.ended else history.ended_at)
    if not got.events or joined > end or left < end + reading.SLACK:
        return False
    return reading.calm(history, min(start, got.joined_at) - 5.0, end)


def grace_is_kept(history: History) -> Iterator[reading.Found]:
    """Nothing is stopped by a disconnect before its grace has passed since it was submitted."""
    born = reading.born_at(history)
    for commit, change in reading.changes(history):
        early = commit.at + reading.SLACK < born[change.run_id] + reading.grace(history, change.run_id)
        if commit.script == "stop" and change.stop_reason == "disconnect" and early:
            yield commit.at, f"{change.run_id[:8]} was stopped before its grace was over"


def unwatched_runs_stop(history: History) -> Iterator[reading.Found]:
    born, ended = reading.born_at(history), reading.ended_at(history)
    for run in history.final_runs:
        run_id = run["run_id"]
        if run["on_disconnect"] != "cancel" or run_id not in born:
            continue
        end = ended.get(run_id, history.ended_at)
        watched = [got for got in history.transcripts if got.run_id == run_id]
        gone = max([born[run_id], *(_gone_at(history, got) for got in watched)])
        if not reading.calm(history, born[run_id] - 5.0, gone):
            gone = max(gone, born[run_id] + SUBMITTED)
        late = end - (gone + reading.grace(history, run_id))
        deadline = reading.stop_deadline(history, run_id)
        seen_off = late > 2.5 + deadline and reading.calm(history, gone - 1.0, end)
        if seen_off or (late > 5.0 + deadline and reading.calm(history, gone + 0.5, end)):
            yield f"{run_id[:8]} ran on for {late:.1f} s after the last viewer's grace"


def _gone_at(history: History, got: Transcript) -> float:
    """When the viewer counted as gone at the latest: an end that the server caused holds its place."""
    last = got.events[-1][0] if got.events else got.joined_at
    left = last if got.left_at is None else got.left_at
    sent_away = got.ours or any(
        span.process == got.process and span.fault == "shutdown" and span.begin <= left + 1.0
        for span in history.faults
    )
    return left + HOLD if sent_away else left
