"""Checks of runs: their moves, their states, their order, and what is left when all has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from outlive import signals, states
from outlive.states import Move, State
from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import EPOCH_MS, History

MOVE_OF = {
    "begin": (Move.SUBMIT, Move.APPEND),
    "submit": (Move.SUBMIT, Move.APPEND, Move.STOP),  # what it displaces, it stops
    "claim": (Move.CLAIM, Move.APPEND),
    "renew": (Move.RENEW,),
    "append": (Move.APPEND,),
    "settle": (Move.SETTLE,),
    "hand_back": (Move.APPEND, Move.HAND_BACK),
    "stop": (Move.STOP,),
    "sweep": (Move.SWEEP,),
}


def moves_are_allowed(history: History) -> Iterator[reading.Found]:
    for commit, change in reading.changes(history):
        before = State(change.before[0]) if change.before else None
        after = State(change.after[0])
        raised = change.after[1] - (change.before[1] if change.before else 0)
        moves = MOVE_OF.get(commit.script, ())
        if not any(
            states.allowed(move, before, after) and _step(move, before, after, raised) for move in moves
        ):
            yield (
                commit.at,
                f"{commit.script} took {change.run_id[:8]} from {change.before} to {change.after}",
            )


def _step(move: Move, before: State | None, after: State, raised: int) -> bool:
    leaked = move is Move.SETTLE and raised == 1
    return leaked or states.epoch_step(move, before, after) == raised


def terminal_is_final(history: History) -> Iterator[reading.Found]:
    ended: set[str] = set()
    for commit, change in reading.changes(history):
        if change.run_id in ended:
            yield commit.at, f"{commit.script} changed {change.run_id[:8]} after its end to {change.after}"
        if State(change.after[0]).terminal:
            ended.add(change.run_id)
            ends = [event for event in commit.events if event.run_id == change.run_id and event.kind == "end"]
            if len(ends) != 1:
                yield commit.at, f"{change.run_id[:8]} ended with {len(ends)} end events in that commit"
            elif f'"{change.after[0]}"' not in ends[0].payload:
                yield (
                    commit.at,
                    f"the end of {change.run_id[:8]} does not say {change.after[0]}: {ends[0].payload}",
                )


def one_running_per_thread(history: History) -> Iterator[reading.Found]:
    running: dict[str, set[str]] = defaultdict(set)
    for commit in history.commits:
        for change in commit.runs:
            on_thread = running[change.thread_id]
            if change.after[0] == "running":
                on_thread.add(change.run_id)
            else:
                on_thread.discard(change.run_id)
        for thread_id in {change.thread_id for change in commit.runs}:
            if len(running[thread_id]) > 1:
                yield commit.at, f"{commit.script} left two running runs on thread {thread_id[:8]}"


def reasons_are_true(history: History) -> Iterator[reading.Found]:
    asked = {answer.run_id for answer in history.answers if answer.what == "stop"}
    for run in history.final_runs:
        run_id, reason = run["run_id"], run["reason"]
        if run["state"] == "stopped" and reason is None:
            yield f"{run_id[:8]} was stopped for no reason"
        if reason == "requested" and run_id not in asked and not _stop_tried(history):
            yield f"{run_id[:8]} says that its stop was requested, and nobody asked"
        if reason == "disconnect" and run["on_disconnect"] != "cancel":
            yield f"{run_id[:8]} was stopped by a disconnect against its policy"
        if reason == "displaced" and not _displaced_by_somebody(run, history):
            yield f"{run_id[:8]} says that it was displaced, and nobody came in its place"
        if reason == "timeout" and '"run_timeout":null' in run["policy"]:
            yield f"{run_id[:8]} timed out and has no time-out"


def _displaced_by_somebody(run: Mapping[str, Any], history: History) -> bool:
    """A newer message of the thread took a place: of several at once it names only one."""
    return any(
        other["thread_id"] == run["thread_id"]
        and other["created_at"] >= run["created_at"]
        and other["displaces"] is not None
        for other in history.final_runs
        if other["run_id"] != run["run_id"]
    )


def a_displaced_run_is_over_before_the_one_in_its_place_begins(history: History) -> Iterator[reading.Found]:
    over: set[str] = set()
    displaces = {run["run_id"]: run["displaces"] for run in history.final_runs}
    for commit, change in reading.changes(history):
        if State(change.after[0]).terminal:
            over.add(change.run_id)
        first = displaces.get(change.run_id)
        if change.after[0] == "running" and first is not None and first not in over:
            yield commit.at, f"{change.run_id[:8]} began before {first[:8]}, which it displaced, was over"


def a_message_that_displaces_goes_before_all_who_wait(history: History) -> Iterator[reading.Found]:
    runs = {run["run_id"]: run for run in history.final_runs}
    waiting: dict[str, dict[str, int]] = defaultdict(dict)
    for commit, change in reading.changes(history):
        run = runs[change.run_id]
        others = waiting[run["thread_id"]]
        if (
            change.before is None
            and run["displaces"]
            and min(others.values(), default=run["pos"]) < run["pos"]
        ):
            yield commit.at, f"{change.run_id[:8]} displaces a run and stands behind others of its thread"
        others.pop(change.run_id, None)
        if change.after[0] == "queued":
            others[change.run_id] = run["pos"]


def _stop_tried(history: History) -> bool:
    return any(isinstance(told, signals.StopRequested) for _, _, told in history.notes)


def everything_ends(history: History) -> Iterator[reading.Found]:
    for run in history.final_runs:
        if not State(run["state"]).terminal:
            yield f"{run['run_id'][:8]} is still {run['state']} long after the last fault"


def threads_keep_their_order(history: History) -> Iterator[reading.Found]:
    pos = {run["run_id"]: (run["thread_id"], run["pos"], run["not_before"]) for run in history.final_runs}
    begun: dict[str, int] = {}
    waiting: dict[str, set[int]] = defaultdict(set)
    for commit, change in reading.changes(history):
        thread_id, place, not_before = pos[change.run_id]
        if change.after[0] == "queued" and not_before is None:
            waiting[thread_id].add(place)
        else:
            waiting[thread_id].discard(place)
        if change.after[0] == "running" and change.before and change.before[0] == "queued":
            overtaken = [other for other in waiting[thread_id] if other < place]
            if overtaken:
                yield commit.at, f"{change.run_id[:8]} overtook place {min(overtaken)} of its thread"
        begun[thread_id] = place


def delays_are_kept(history: History) -> Iterator[reading.Found]:
    """A run with a time before which it must not begin does not begin before it."""
    earliest = {run["run_id"]: run["not_before"] for run in history.final_runs}
    for commit, change in reading.changes(history):
        due = earliest[change.run_id]
        if due is not None and change.after[0] == "running" and commit.at * 1000 + EPOCH_MS < due - 1:
            yield commit.at, f"{change.run_id[:8]} runs before its time"


def failures_are_the_agents(history: History) -> Iterator[reading.Found]:
    for run in history.final_runs:
        if run["state"] == "failed" and '"fails_at":null' in run["input"]:
            yield f"{run['run_id'][:8]} failed, and its agent never does"


def outcomes_are_the_agents(history: History) -> Iterator[reading.Found]:
    """A run waits for a person if its agent said so, and only then."""
    for run in history.final_runs:
        asks = '"waits":true' in run["input"]
        if asks and run["state"] == "succeeded":
            yield f"{run['run_id'][:8]} succeeded, and its agent waits for a person"
        if '"waits":false' in run["input"] and run["state"] == "waiting":
            yield f"{run['run_id'][:8]} waits, and its agent asked nobody"


def scripts_end_where_they_should(history: History) -> Iterator[reading.Found]:
    for commit in history.commits:
        wanted = {"hand_back": {"queued"}, "claim": {"running"}}.get(commit.script)
        for change in {change.run_id: change for change in commit.runs}.values():
            if wanted and change.after[0] not in wanted:
                yield commit.at, f"{commit.script} left {change.run_id[:8]} {change.after[0]}"


def nothing_is_left_behind(history: History) -> Iterator[reading.Found]:
    yield from history.leaks
