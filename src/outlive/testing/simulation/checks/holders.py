"""Checks of who drives: losses, hand-backs, take-overs, and holders that should have stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outlive import signals
from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History
from outlive.testing.simulation.plan import Fault


def only_holders_record(history: History) -> Iterator[reading.Found]:
    """A step is recorded by the attempt that holds the run at that moment."""
    held: dict[str, list[tuple[float, tuple[str, int]]]] = defaultdict(list)
    for commit, change in reading.changes(history):
        held[change.run_id].append((commit.at, change.after))
    for point in history.checkpoints:
        before = [after for at, after in held[point.run_id] if at < point.at]
        if before and before[-1] != ("running", point.epoch):
            yield (
                point.at,
                f"attempt {point.epoch} of {point.run_id[:8]} recorded a step when it was {before[-1]}",
            )


def only_holders_write(history: History) -> Iterator[reading.Found]:
    """Events, verdicts and renewals come from the process that knows that it drives the attempt."""
    knows = reading.claimed(history)
    for commit, change in reading.changes(history):
        if commit.script in ("append", "settle", "hand_back", "renew") and change.before is not None:
            holder = knows.get((change.run_id, change.before[1]))
            if holder != commit.process:
                yield (
                    commit.at,
                    f"{commit.script} of {change.run_id[:8]} came from {commit.process}; {holder} drives it",
                )


def shutdown_loses_nothing(history: History) -> Iterator[reading.Found]:
    """A process told to end, with nothing else wrong, hands back everything."""
    drives = reading.drivers(history)
    others = [span for span in history.faults if span.fault != "shutdown"]
    for span in history.faults:
        start, end = span.begin - 5.0, span.begin + 9.0
        if span.fault != "shutdown" or any(other.begin <= end and other.end >= start for other in others):
            continue
        for commit, change in reading.changes(history):
            held = change.before and drives.get((change.run_id, change.before[1])) == span.process
            if held and commit.script == "sweep" and span.begin < commit.at < end:
                yield commit.at, f"{change.run_id[:8]} was not handed back by {span.process} but lost"


def the_lost_stop_acting(history: History) -> Iterator[reading.Found]:
    """A holder that runs, but can no longer renew, ends before somebody else may take its run."""
    taken: dict[tuple[str, int], float] = {}
    for commit, change in reading.changes(history):
        if change.before and change.after[1] > change.before[1]:
            taken.setdefault((change.run_id, change.before[1]), commit.at)
    for effect in history.effects:
        at = taken.get((effect.run_id, effect.epoch))
        if at is not None and at < effect.at - 0.2 and not _stood_still(history, effect.process, effect.at):
            late = effect.at - at
            yield (
                effect.at,
                f"attempt {effect.epoch} of {effect.run_id[:8]} acts {late:.1f} s after it was replaced",
            )


def holders_let_go_in_time(history: History) -> Iterator[reading.Found]:
    """Who cannot renew ends its attempt, and says so, before anybody takes the run from it."""
    lost: dict[tuple[str, int], float] = {}
    for at, _, told in history.notes:
        if isinstance(told, signals.LeaseLost | signals.FinalisationFailed | signals.StaleWriteRefused):
            lost.setdefault((told.run_id, told.epoch), at)
    knows = reading.claimed(history)
    for commit, change in reading.changes(history):
        if commit.script != "sweep" or change.before is None:
            continue
        attempt = (change.run_id, change.before[1])
        holder, patience = knows.get(attempt), reading.stop_deadline(history, change.run_id)
        gone = holder is None or _gone(history, holder, commit.at + patience)
        if gone or holder is None or _stood_still(history, holder, commit.at + patience):
            continue
        if lost.get(attempt, history.ended_at) > commit.at + patience:
            yield (
                commit.at,
                f"{holder} had not let go of {change.run_id[:8]} {patience:g} s after it was taken from it",
            )


def _gone(history: History, process: str, at: float) -> bool:
    return any(
        span.process == process and span.fault in ("kill", "shutdown") and span.begin <= at
        for span in history.faults
    )


def _stood_still(history: History, process: str, at: float) -> bool:
    still = ("freeze", "stall", "skew", "tokens lost")
    return any(
        span.process == process and span.fault in still and span.begin <= at and span.end >= at - 10.0
        for span in history.faults
    )


def losses_are_losses(history: History) -> Iterator[reading.Found]:
    lost: dict[str, int] = defaultdict(int)
    for commit, change in reading.changes(history):
        if change.losses != lost[change.run_id]:
            if commit.script != "sweep":
                yield commit.at, f"{commit.script} charged {change.run_id[:8]} a loss"
            lost[change.run_id] = change.losses


def shutdown_finalises_nothing(history: History) -> Iterator[reading.Found]:
    for run in history.final_runs:
        resumes = '"recovery":"resume"' in run["policy"] and run["max_losses"] > 0
        if run["state"] == "abandoned" and run["losses"] == 0 and resumes:
            yield f"{run['run_id'][:8]} was abandoned without having been lost"


def losses_are_bounded(history: History) -> Iterator[reading.Found]:
    for run in history.final_runs:
        if run["losses"] > run["max_losses"]:
            yield f"{run['run_id'][:8]} was lost {run['losses']} times of {run['max_losses']}"
        if run["losses"] and run["recovery"] == "stop":
            yield f"{run['run_id'][:8]} was taken up again although its policy is to stop"


def losses_are_counted(history: History) -> Iterator[reading.Found]:
    lost: dict[str, int] = defaultdict(int)
    for commit, change in reading.changes(history):
        lost[change.run_id] += commit.script == "sweep" and change.after[0] == "queued"
    for run in history.final_runs:
        if run["losses"] != lost[run["run_id"]]:
            yield f"{run['run_id'][:8]} was lost {lost[run['run_id']]} times and {run['losses']} are counted"


FATAL = frozenset({Fault.KILL, Fault.SHUTDOWN})
"""Faults that end a process: the next one, with the same number, is another holder."""


def healthy_holders_keep_their_runs(history: History) -> Iterator[reading.Found]:
    drivers = reading.drivers(history)
    for commit, change in reading.changes(history):
        if commit.script != "sweep" or change.before is None:
            continue
        holder = drivers.get((change.run_id, change.before[1]))
        ill = [
            span
            for span in history.faults
            if span.process == holder
            and span.fault != "tokens lost"
            and (span.fault in FATAL or span.end >= commit.at - 8.0)
        ]
        if holder is not None and not any(span.begin <= commit.at for span in ill):
            yield commit.at, f"{change.run_id[:8]} was taken from {holder}, which was well"


def orphans_are_taken_over(history: History) -> Iterator[reading.Found]:
    drivers = reading.drivers(history)
    for span in history.faults:
        if span.fault != "kill" or not reading.calm_but(history, span, span.begin - 1.0, span.begin + 9.0):
            continue
        held: dict[str, tuple[float, tuple[str, int]]] = {}
        moved: dict[str, float] = {}
        for commit, change in reading.changes(history):
            if commit.at <= span.begin:
                held[change.run_id] = (commit.at, change.after)
            elif change.after != held.get(change.run_id, (0.0, None))[1]:
                moved.setdefault(change.run_id, commit.at)
        for run_id, (_, after) in held.items():
            orphan = after[0] == "running" and drivers.get((run_id, after[1])) == span.process
            if orphan and moved.get(run_id, history.ended_at) > span.begin + 7.0:
                yield f"{run_id[:8]} stayed with {span.process} for over 7 s after its death"
