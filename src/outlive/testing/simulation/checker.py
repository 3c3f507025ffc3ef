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
    quiet = max((span.end for span in history.faults), default=0.0) + 12.0
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
    joined = got.joined_at + 0.5
    left = got.left_at if got.left_at is not None else (got.events[-1][0] if got.ended else history.ended_at)
    if not got.events or joined > end or left < end + SLACK:
        return False
    return _calm(history, min(start, got.joined_at) - 5.0, end)


def _calm(history: History, start: float, end: float) -> bool:
    """True if no fault was going on between the two times."""
    return not any(span.begin <= end and span.end >= start for span in history.faults)


def _grace(history: History, run_id: str) -> float:
    return float(history.policies.get(run_id, {}).get("grace", 0.0))


def _grace_is_kept(history: History) -> Iterator[str]:
    """Nothing is stopped by a disconnect before its grace has passed since it was submitted."""
    born = _born_at(history)
    for commit, change in _changes(history):
        early = commit.at + SLACK < born[change.run_id] + _grace(history, change.run_id)
        if commit.script == "stop" and change.stop_reason == "disconnect" and early:
            yield f"{change.run_id[:8]} was stopped before its grace was over"


def _recorded_steps_are_not_repeated(history: History) -> Iterator[str]:
    recorded = {(point.origin, point.step): point.at for point in reversed(history.checkpoints)}
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


def _only_holders_record(history: History) -> Iterator[str]:
    """A step is recorded by the attempt that holds the run at that moment."""
    held: dict[str, list[tuple[float, tuple[str, int]]]] = defaultdict(list)
    for commit, change in _changes(history):
        held[change.run_id].append((commit.at, change.after))
    for point in history.checkpoints:
        before = [after for at, after in held[point.run_id] if at < point.at]
        if before and before[-1] != ("running", point.epoch):
            yield f"attempt {point.epoch} of {point.run_id[:8]} recorded a step when it was {before[-1]}"


def _the_lost_stop_acting(history: History) -> Iterator[str]:
    """A holder that runs, but can no longer renew, ends before somebody else may take its run."""
    taken: dict[tuple[str, int], float] = {}
    for commit, change in _changes(history):
        if change.before and change.after[1] > change.before[1]:
            taken.setdefault((change.run_id, change.before[1]), commit.at)
    for effect in history.effects:
        at = taken.get((effect.run_id, effect.epoch))
        stood = any(
            span.process == effect.process
            and span.fault in ("freeze", "stall", "skew", "tokens lost")
            and span.end >= effect.at - 10.0
            for span in history.faults
        )
        if at is not None and at < effect.at - 0.2 and not stood:
            yield f"attempt {effect.epoch} of {effect.run_id[:8]} acts {effect.at - at:.1f} s after it was replaced"


def _stale_attempts_record_nothing(history: History) -> Iterator[str]:
    best: dict[str, int] = defaultdict(int)
    for point in history.checkpoints:
        if point.step + 1 < best[point.origin]:
            yield f"the checkpoint of {point.origin[:8]} went back to step {point.step}"
        best[point.origin] = max(best[point.origin], point.step + 1)


def _provider_executes_once(history: History) -> Iterator[str]:
    executed: set[tuple[str, int]] = set()
    for effect in history.effects:
        if not effect.repeated and (effect.origin, effect.step) in executed:
            yield f"step {effect.step} of {effect.origin[:8]} was executed twice at the provider"
        executed.add((effect.origin, effect.step))


def _recorded_steps_were_executed(history: History) -> Iterator[str]:
    executed = {(effect.origin, effect.step): effect.at for effect in reversed(history.effects)}
    for point in history.checkpoints:
        at = executed.get((point.origin, point.step))
        if at is None or at > point.at + SLACK:
            yield f"step {point.step} of {point.origin[:8]} was recorded before it was executed"


def _winning_attempts_are_complete(history: History) -> Iterator[str]:
    """Everything that the attempt which succeeded or failed had yielded is in the log, in that order."""
    given: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item in history.yielded:
        given[(item.run_id, item.epoch)].append(item.payload)
    stored: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in history.final_events:
        if event.kind == "chunk":
            stored[(event.run_id, event.epoch)].append(event.payload)
    for run in history.final_runs:
        if run["state"] in ("succeeded", "failed"):
            key = (run["run_id"], run["epoch"])
            if given[key] != stored[key]:
                yield f"{run['run_id'][:8]} yielded {len(given[key])} chunks, {len(stored[key])} are logged"


def _stops_are_obeyed(history: History) -> Iterator[str]:
    asked: dict[str, float] = {}
    ended = _ended_at(history)
    for commit, change in _changes(history):
        if commit.script == "stop" and change.after[0] == "running":
            asked.setdefault(change.run_id, commit.at)
    for run_id, at in asked.items():
        end = ended.get(run_id, history.ended_at)
        if end > at + 4.0 and _calm(history, at - 2.0, at + 4.0):
            yield f"{run_id[:8]} ran on for {end - at:.1f} s after it was asked to stop"


def _unwatched_runs_stop(history: History) -> Iterator[str]:
    born, ended = _born_at(history), _ended_at(history)
    for run in history.final_runs:
        run_id = run["run_id"]
        if run["on_disconnect"] != "cancel" or run_id not in born:
            continue
        end = ended.get(run_id, history.ended_at)
        gone = max([born[run_id], *(_left_at(got) for got in history.transcripts if got.run_id == run_id)])
        late = end - (gone + _grace(history, run_id))
        if late > 6.0 and _calm(history, gone + 0.5, end):
            yield f"{run_id[:8]} ran on for {late:.1f} s after the last viewer's grace"


def _left_at(got: Transcript) -> float:
    last = got.events[-1][0] if got.events else got.joined_at
    return last if got.left_at is None else got.left_at


def _key_means_one_body(history: History) -> Iterator[str]:
    bodies: dict[str, str] = {}
    for answer in sorted(history.answers, key=lambda answer: answer.asked_at):
        if answer.what != "submitted" or not answer.key or not answer.body:
            continue
        if bodies.setdefault(answer.key, answer.body) != answer.body:
            yield f"{answer.client} used {answer.key} with another body and was not refused"


def _threads_keep_their_order(history: History) -> Iterator[str]:
    pos = {run["run_id"]: (run["thread_id"], run["pos"], run["not_before"]) for run in history.final_runs}
    begun: dict[str, int] = {}
    waiting: dict[str, set[int]] = defaultdict(set)
    for _, change in _changes(history):
        thread_id, place, not_before = pos[change.run_id]
        if change.after[0] == "queued" and not_before is None:
            waiting[thread_id].add(place)
        else:
            waiting[thread_id].discard(place)
        if change.after[0] == "running" and change.before and change.before[0] == "queued":
            overtaken = [other for other in waiting[thread_id] if other < place]
            if overtaken:
                yield f"{change.run_id[:8]} overtook place {min(overtaken)} of its thread"
        begun[thread_id] = place


def _losses_are_bounded(history: History) -> Iterator[str]:
    for run in history.final_runs:
        if run["losses"] > run["max_losses"]:
            yield f"{run['run_id'][:8]} was lost {run['losses']} times of {run['max_losses']}"
        if run["losses"] and run["recovery"] == "stop":
            yield f"{run['run_id'][:8]} was taken up again although its policy is to stop"


def _failures_are_the_agents(history: History) -> Iterator[str]:
    for run in history.final_runs:
        if run["state"] == "failed" and '"fails_at":null' in run["input"]:
            yield f"{run['run_id'][:8]} failed, and its agent never does"


def _scripts_end_where_they_should(history: History) -> Iterator[str]:
    for commit in history.commits:
        wanted = {"hand_back": {"queued"}, "claim": {"running"}}.get(commit.script)
        for change in {change.run_id: change for change in commit.runs}.values():
            if wanted and change.after[0] not in wanted:
                yield f"{commit.script} left {change.run_id[:8]} {change.after[0]}"


def _losses_are_counted(history: History) -> Iterator[str]:
    lost: dict[str, int] = defaultdict(int)
    for commit, change in _changes(history):
        lost[change.run_id] += commit.script == "sweep" and change.after[0] == "queued"
    for run in history.final_runs:
        if run["losses"] != lost[run["run_id"]]:
            yield f"{run['run_id'][:8]} was lost {lost[run['run_id']]} times and {run['losses']} are counted"


def _drivers(history: History) -> dict[tuple[str, int], str]:
    """Which process holds which attempt: the one whose commit began it."""
    return {
        (change.run_id, change.after[1]): commit.process
        for commit, change in _changes(history)
        if commit.script in ("submit", "claim") and change.after[0] == "running"
    }


def _healthy_holders_keep_their_runs(history: History) -> Iterator[str]:
    drivers = _drivers(history)
    for commit, change in _changes(history):
        if commit.script != "sweep" or change.before is None:
            continue
        holder = drivers.get((change.run_id, change.before[1]))
        ill = [
            span
            for span in history.faults
            if span.process == holder and span.fault != "tokens lost" and span.end >= commit.at - 8.0
        ]
        if holder is not None and not any(span.begin <= commit.at for span in ill):
            yield f"{change.run_id[:8]} was taken from {holder}, which was well"


def _orphans_are_taken_over(history: History) -> Iterator[str]:
    drivers = _drivers(history)
    for span in history.faults:
        if span.fault != "kill" or not _calm_but(history, span, span.begin - 1.0, span.begin + 9.0):
            continue
        held: dict[str, tuple[float, tuple[str, int]]] = {}
        moved: dict[str, float] = {}
        for commit, change in _changes(history):
            if commit.at <= span.begin:
                held[change.run_id] = (commit.at, change.after)
            elif change.after != held.get(change.run_id, (0.0, None))[1]:
                moved.setdefault(change.run_id, commit.at)
        for run_id, (_, after) in held.items():
            orphan = after[0] == "running" and drivers.get((run_id, after[1])) == span.process
            if orphan and moved.get(run_id, history.ended_at) > span.begin + 7.0:
                yield f"{run_id[:8]} stayed with {span.process} for over 7 s after its death"


def _calm_but(history: History, this: object, start: float, end: float) -> bool:
    return not any(span is not this and span.begin <= end and span.end >= start for span in history.faults)


def _streams_end_with_the_event(history: History) -> Iterator[str]:
    for got in history.transcripts:
        if got.closed and not got.ended and got.left_at is not None:
            if _calm(history, got.joined_at - 5.0, got.left_at):
                yield f"the stream of {got.client} on {got.run_id[:8]} was closed without an end event"


def _nothing_is_left_behind(history: History) -> Iterator[str]:
    yield from history.leaks


CHECKS: tuple[tuple[str, Callable[[History], Iterator[str]]], ...] = (
    ("I1", _terminal_is_final),
    ("I1", _nothing_follows_the_end),
    ("I2", _moves_are_allowed),
    ("I2", _epochs_open_and_never_return),
    ("I2", _stale_attempts_record_nothing),
    ("I2", _only_holders_record),
    ("I2", _the_lost_stop_acting),
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
    ("I9", _provider_executes_once),
    ("I15", _recorded_steps_were_executed),
    ("I6", _winning_attempts_are_complete),
    ("I11", _stops_are_obeyed),
    ("I11", _unwatched_runs_stop),
    ("I8", _key_means_one_body),
    ("I3", _threads_keep_their_order),
    ("I12", _losses_are_bounded),
    ("I15", _failures_are_the_agents),
    ("I2", _scripts_end_where_they_should),
    ("I12", _losses_are_counted),
    ("I12", _healthy_holders_keep_their_runs),
    ("I15", _orphans_are_taken_over),
    ("I5", _streams_end_with_the_event),
)


def _changes(history: History) -> Iterator[tuple[Commit, RunChange]]:
    for commit in history.commits:
        for change in commit.runs:
            yield commit, change


def _born_at(history: History) -> dict[str, float]:
    return {change.run_id: commit.at for commit, change in _changes(history) if change.before is None}


def _by_run(events: list[EventRow]) -> dict[str, list[EventRow]]:
    found: dict[str, list[EventRow]] = defaultdict(list)
    for event in events:
        found[event.run_id].append(event)
    return found


def _ended_at(history: History) -> dict[str, float]:
    return {
        change.run_id: commit.at for commit, change in _changes(history) if State(change.after[0]).terminal
    }
