"""Reads a whole history and says which promise it breaks.

Every check is independent of the code under test: it reads commits, transcripts, answers and effects, and the
move table.  A check returns sentences; none means that the promise was kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outlive import states
from outlive.states import Move, State
from outlive.testing.simulation.history import Commit, EventRow, History, RunChange, Transcript

MOVE_OF = {
    "submit": (Move.SUBMIT, Move.APPEND),
    "claim": (Move.CLAIM, Move.APPEND),
    "renew": (Move.RENEW,),
    "append": (Move.APPEND,),
    "settle": (Move.SETTLE,),
    "hand_back": (Move.APPEND, Move.HAND_BACK),
    "stop": (Move.STOP,),
    "sweep": (Move.SWEEP,),
}
SLACK = 0.001


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the invariant's id, and what shows that it is broken."""

    invariant: str
    what: str


def check(history: History) -> list[Violation]:
    """Return every violation that the history shows."""
    return [Violation(invariant, sentence) for invariant, find in CHECKS for sentence in find(history)]


# ---------------------------------------------------------------- the record


def _moves_are_allowed(history: History) -> Iterator[str]:
    for commit, change in _changes(history):
        before = State(change.before[0]) if change.before else None
        after = State(change.after[0])
        raised = change.after[1] - (change.before[1] if change.before else 0)
        moves = MOVE_OF.get(commit.script, ())
        if not any(
            states.allowed(move, before, after) and _step(move, before, after, raised) for move in moves
        ):
            yield f"{commit.script} took {change.run_id[:8]} from {change.before} to {change.after}"


def _step(move: Move, before: State | None, after: State, raised: int) -> bool:
    leaked = move is Move.SETTLE and raised == 1
    return leaked or states.epoch_step(move, before, after) == raised


def _terminal_is_final(history: History) -> Iterator[str]:
    ended: set[str] = set()
    for commit, change in _changes(history):
        if change.run_id in ended:
            yield f"{commit.script} changed {change.run_id[:8]} after its end to {change.after}"
        if State(change.after[0]).terminal:
            ended.add(change.run_id)
            ends = [event for event in commit.events if event.run_id == change.run_id and event.kind == "end"]
            if len(ends) != 1:
                yield f"{change.run_id[:8]} ended with {len(ends)} end events in that commit"
            elif f'"{change.after[0]}"' not in ends[0].payload:
                yield f"the end of {change.run_id[:8]} does not say {change.after[0]}: {ends[0].payload}"


def _one_running_per_thread(history: History) -> Iterator[str]:
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
                yield f"{commit.script} left two running runs on thread {thread_id[:8]}"


def _losses_are_losses(history: History) -> Iterator[str]:
    lost: dict[str, int] = defaultdict(int)
    for commit, change in _changes(history):
        if change.losses != lost[change.run_id]:
            if commit.script != "sweep":
                yield f"{commit.script} charged {change.run_id[:8]} a loss"
            lost[change.run_id] = change.losses


def _shutdown_finalises_nothing(history: History) -> Iterator[str]:
    for run in history.final_runs:
        resumes = '"recovery":"resume"' in run["policy"] and run["max_losses"] > 0
        if run["state"] == "abandoned" and run["losses"] == 0 and resumes:
            yield f"{run['run_id'][:8]} was abandoned without having been lost"


def _reasons_are_true(history: History) -> Iterator[str]:
    asked = {answer.run_id for answer in history.answers if answer.what == "stop"}
    for run in history.final_runs:
        run_id, reason = run["run_id"], run["reason"]
        if run["state"] == "stopped" and reason is None:
            yield f"{run_id[:8]} was stopped for no reason"
        if reason == "requested" and run_id not in asked and not _stop_tried(history):
            yield f"{run_id[:8]} says that its stop was requested, and nobody asked"
        if reason == "disconnect" and run["on_disconnect"] != "cancel":
            yield f"{run_id[:8]} was stopped by a disconnect against its policy"
        if reason == "timeout" and '"run_timeout":null' in run["policy"]:
            yield f"{run_id[:8]} timed out and has no time-out"


def _stop_tried(history: History) -> bool:
    return any("StopRequested" in note for _, _, note in history.notes)


def _everything_ends(history: History) -> Iterator[str]:
    for run in history.final_runs:
        if not State(run["state"]).terminal:
            yield f"{run['run_id'][:8]} is still {run['state']} long after the last fault"


# ---------------------------------------------------------------- the log


def _sequences_are_dense(history: History) -> Iterator[str]:
    by_run: dict[str, int] = defaultdict(int)
    by_thread: dict[str, int] = defaultdict(int)
    for commit in history.commits:
        for event in commit.events:
            if event.seq != by_run[event.run_id] + 1:
                yield f"{commit.script} wrote seq {event.seq} after {by_run[event.run_id]}"
            if event.thread_seq != by_thread[event.thread_id] + 1:
                yield f"thread seq {event.thread_seq} follows {by_thread[event.thread_id]}"
            by_run[event.run_id] = event.seq
            by_thread[event.thread_id] = event.thread_seq


def _epochs_open_and_never_return(history: History) -> Iterator[str]:
    for run_id, events in _by_run(history.final_events).items():
        epoch = 0
        for event in events:
            if event.kind == "attempt":
                if event.epoch <= epoch:
                    yield f"attempt {event.epoch} of {run_id[:8]} follows epoch {epoch}"
                epoch = event.epoch
            elif event.kind == "end":
                if event.epoch < epoch:
                    yield f"the end of {run_id[:8]} carries the stale epoch {event.epoch}"
            elif event.epoch != epoch:
                yield f"a {event.kind} of epoch {event.epoch} stands in attempt {epoch} of {run_id[:8]}"


def _nothing_follows_the_end(history: History) -> Iterator[str]:
    ended = {run["run_id"]: run for run in history.final_runs if State(run["state"]).terminal}
    for run_id, events in _by_run(history.final_events).items():
        ends = [event.seq for event in events if event.kind == "end"]
        if run_id in ended and ends != [events[-1].seq]:
            yield f"{run_id[:8]} has ended; its end events are {ends} of {events[-1].seq}"
        if run_id not in ended and ends:
            yield f"{run_id[:8]} has an end event and has not ended"


def _chunks_repeat_only_across_attempts(history: History) -> Iterator[str]:
    for run_id, events in _by_run(history.final_events).items():
        seen: set[tuple[int, str]] = set()
        for event in events:
            if event.kind == "chunk":
                if (event.epoch, event.payload) in seen:
                    yield f"{run_id[:8]} holds {event.payload} twice in attempt {event.epoch}"
                seen.add((event.epoch, event.payload))


# ---------------------------------------------------------------- observers


def _delivered_is_committed(history: History) -> Iterator[str]:
    committed = {
        (event.run_id, event.seq): (commit.at, event) for commit in history.commits for event in commit.events
    }
    for got in history.transcripts:
        for at, seq, epoch, kind, payload in got.events:
            found = committed.get((got.run_id, seq))
            if found is None or found[0] > at + SLACK:
                yield f"{got.client} got event {seq} of {got.run_id[:8]} before it was committed"
            elif (found[1].epoch, found[1].kind, found[1].payload) != (epoch, kind, payload):
                yield f"{got.client} got another event {seq} of {got.run_id[:8]} than was committed"


def _transcripts_have_no_hole(history: History) -> Iterator[str]:
    for got in history.transcripts:
        expected = got.after
        for _, seq, _, _, _ in got.events:
            expected += 1
            if seq != expected:
                yield f"{got.client} got seq {seq} of {got.run_id[:8]} where {expected} was due"
                break
        if got.ended and got.events and got.events[-1][3] != "end":
            yield f"the stream of {got.client} ended without an end event"


def _subscribers_reach_the_end(history: History) -> Iterator[str]:
    ended_at = _ended_at(history)
    quiet = max((at for at, what in history.faults), default=0.0) + 12.0
    for got in history.transcripts:
        end = ended_at.get(got.run_id)
        if end is None or got.ended or got.left_at is None:
            continue
        waited = got.left_at - max(end, got.joined_at, quiet)
        if waited > 3.0 and not any(kind == "end" for _, _, _, kind, _ in got.events):
            yield f"{got.client} waited {waited:.1f} s after the end of {got.run_id[:8]} and heard nothing"


# ---------------------------------------------------------------- intents


def _one_key_one_chain(history: History) -> Iterator[str]:
    origin = {run["run_id"]: run["origin"] for run in history.final_runs}
    chains: dict[str, set[str]] = defaultdict(set)
    for answer in history.answers:
        if answer.what == "submitted" and answer.key is not None:
            if answer.run_id not in origin:
                yield f"{answer.client} was told of {answer.run_id[:8]}, which does not exist"
            else:
                chains[answer.key].add(origin[answer.run_id])
    for key, found in chains.items():
        if len(found) > 1:
            yield f"key {key} names {len(found)} chains of runs"
    runs = len({run["run_id"] for run in history.final_runs if run["continues"] is None})
    if runs > len({answer.key for answer in history.answers if answer.key}) + _unanswered(history):
        yield f"there are {runs} first runs for fewer keys"


def _unanswered(history: History) -> int:
    return sum(1 for _, _, note in history.notes if "RunSubmitted" in note)


def _answers_were_true(history: History) -> Iterator[str]:
    """Linearizability of the record: what a caller was told was so at some moment of its call."""
    timeline: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for commit, change in _changes(history):
        timeline[change.run_id].append((commit.at, change.after[0]))
    for answer in history.answers:
        if answer.what not in ("submitted", "stop"):
            continue
        held = _held_between(timeline[answer.run_id], answer.asked_at, answer.at)
        if answer.state not in held:
            yield f"{answer.client} was told {answer.state} of {answer.run_id[:8]}, which was {held}"


def _held_between(states_: list[tuple[float, str]], start: float, end: float) -> set[str]:
    held: set[str] = set()
    last = None
    for at, state in states_:
        if at <= start:
            last = state
        elif at <= end + SLACK:
            held.add(state)
    if last is not None:
        held.add(last)
    return held


# ---------------------------------------------------------------- policies and effects


def _watched_runs_are_kept(history: History) -> Iterator[str]:
    """A disconnect stopped nothing that somebody had surely watched for its whole grace."""
    for commit, change in _changes(history):
        if commit.script != "stop" or change.stop_reason != "disconnect":
            continue
        grace = _grace(history, change.run_id)
        for got in history.transcripts:
            if got.run_id == change.run_id and _watched(history, got, commit.at - grace, commit.at):
                yield f"{change.run_id[:8]} was stopped by a disconnect while {got.client} watched"


def _watched(history: History, got: Transcript, start: float, end: float) -> bool:
    """True if the viewer was surely present all that time: joined well before, not cut, no fault near."""
    joined = got.joined_at + 1.0
    left = got.left_at if got.left_at is not None else (got.events[-1][0] if got.ended else history.ended_at)
    if not got.events or joined > start - SLACK or left < end + SLACK:
        return False
    return not any(start - 12.0 <= at <= end for at, _ in history.faults)


def _grace(history: History, run_id: str) -> float:
    return float(history.policies.get(run_id, {}).get("grace", 0.0))


def _grace_is_kept(history: History) -> Iterator[str]:
    """Nothing is stopped by a disconnect before its grace has passed since it was submitted."""
    born = {}
    for commit, change in _changes(history):
        if change.before is None:
            born[change.run_id] = commit.at
        early = commit.at + SLACK < born[change.run_id] + _grace(history, change.run_id)
        if commit.script == "stop" and change.stop_reason == "disconnect" and early:
            yield f"{change.run_id[:8]} was stopped before its grace was over"


def _recorded_steps_are_not_repeated(history: History) -> Iterator[str]:
    recorded = {(point.origin, point.step): point.at for point in history.checkpoints}
    began: dict[tuple[str, int], float] = {}
    for commit in history.commits:
        for event in commit.events:
            if event.kind == "attempt":
                began[(event.run_id, event.epoch)] = commit.at
    origin = {run["run_id"]: run["origin"] for run in history.final_runs}
    starts: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (run_id, epoch), at in began.items():
        starts[(origin.get(run_id, run_id), epoch)].append(at)
    for effect in history.effects:
        noted = recorded.get((effect.origin, effect.step))
        attempt = max((t for t in starts[(effect.origin, effect.epoch)] if t <= effect.at), default=None)
        if noted is not None and attempt is not None and noted < attempt - SLACK:
            yield f"step {effect.step} of {effect.origin[:8]} was called again after its record"


def _stale_attempts_record_nothing(history: History) -> Iterator[str]:
    best: dict[str, int] = defaultdict(int)
    for point in history.checkpoints:
        if point.step + 1 < best[point.origin]:
            yield f"the checkpoint of {point.origin[:8]} went back to step {point.step}"
        best[point.origin] = max(best[point.origin], point.step + 1)


def _nothing_is_left_behind(history: History) -> Iterator[str]:
    yield from history.leaks


CHECKS: tuple[tuple[str, Callable[[History], Iterator[str]]], ...] = (
    ("I1", _terminal_is_final),
    ("I1", _nothing_follows_the_end),
    ("I2", _moves_are_allowed),
    ("I2", _epochs_open_and_never_return),
    ("I2", _stale_attempts_record_nothing),
    ("I3", _one_running_per_thread),
    ("I4", _sequences_are_dense),
    ("I4", _chunks_repeat_only_across_attempts),
    ("I5", _transcripts_have_no_hole),
    ("I5", _subscribers_reach_the_end),
    ("I6", _delivered_is_committed),
    ("I7", _answers_were_true),
    ("I8", _one_key_one_chain),
    ("I11", _reasons_are_true),
    ("I11", _watched_runs_are_kept),
    ("I11", _grace_is_kept),
    ("I12", _losses_are_losses),
    ("I12", _shutdown_finalises_nothing),
    ("I13", _nothing_is_left_behind),
    ("I15", _everything_ends),
    ("I15", _recorded_steps_are_not_repeated),
)


def _changes(history: History) -> Iterator[tuple[Commit, RunChange]]:
    for commit in history.commits:
        for change in commit.runs:
            yield commit, change


def _by_run(events: list[EventRow]) -> dict[str, list[EventRow]]:
    found: dict[str, list[EventRow]] = defaultdict(list)
    for event in events:
        found[event.run_id].append(event)
    return found


def _ended_at(history: History) -> dict[str, float]:
    return {
        change.run_id: commit.at for commit, change in _changes(history) if State(change.after[0]).terminal
    }
