"""What must hold after the demonstration, checked on what it left behind and on nothing else.

Decides whether it holds.  How it is shown is ``report``'s to say.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from demo.evidence import Connection, Event, Evidence, Run

Violations = Iterator[tuple[str, str]]
"""Threads and what is wrong there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a check came to.  ``facts`` is how many it had to look at: none means that nothing was shown."""

    code: str
    sentence: str
    facts: int
    violations: tuple[tuple[str, str], ...]


Broken = Callable[[Evidence], Violations]
Facts = Callable[[Evidence], int]
CHECKS: dict[str, tuple[Broken, Facts]] = {}
"""Every check by its code: what yields its violations, and what counts its facts."""


def must_hold(code: str, *, facts: Facts) -> Callable[[Broken], Broken]:
    """Make a check of a function that yields violations; the function's docstring is what must hold."""

    def register(broken: Broken) -> Broken:
        CHECKS[code] = (broken, facts)
        return broken

    return register


def check(found: Evidence) -> list[Finding]:
    """Apply every check."""
    return [
        Finding(
            code=code,
            sentence=str(broken.__doc__),
            facts=facts(found),
            violations=tuple(dict.fromkeys(broken(found))),
        )
        for code, (broken, facts) in CHECKS.items()
    ]


def _number_of_runs(found: Evidence) -> int:
    return len(found.runs)


def _number_of_events(found: Evidence) -> int:
    return sum(len(run.events) for run in found.runs)


def _number_received(found: Evidence) -> int:
    return sum(len(connection.seen) for connection in found.connections)


# ---------------------------------------------------------------- the record


@must_hold("one-end", facts=_number_of_runs)
def one_end(found: Evidence) -> Violations:
    """A run that has ended has one end event, its last one, and both say the same."""
    for run in found.runs:
        ends = run.of_kind("end")
        if len(ends) != (0 if run.live else 1):
            yield run.thread, f"{run.state}, with {len(ends)} end events"
        elif ends and run.events[-1] is not ends[0]:
            yield run.thread, "events follow the end"
        elif ends and (ends[0].data["state"], ends[0].data["reason"]) != (run.state, run.reason):
            yield run.thread, f"the run is {run.state}, its end event says {ends[0].data['state']}"
    yield from found.looks["torn"].items()


@must_hold("nothing-left", facts=_number_of_runs)
def nothing_left(found: Evidence) -> Violations:
    """Every run has ended."""
    for run in found.runs:
        if run.live:
            yield run.thread, f"a run is left {run.state}"


@must_hold("no-gap", facts=_number_of_events)
def no_gap(found: Evidence) -> Violations:
    """Sequence numbers have neither hole nor repeat, per run and per thread."""
    for run in found.runs:
        if [event.seq for event in run.events] != list(range(1, run.last_seq + 1)):
            yield (
                run.thread,
                f"a run's events are {[event.seq for event in run.events]}, not 1 to {run.last_seq}",
            )
    for thread in found.threads:
        numbers = [event.thread_seq for event in _in_order(found, thread)]
        last = max((run.thread_last for run in found.on(thread)), default=0)
        if numbers != list(range(1, last + 1)):
            yield thread, f"the thread's events are {numbers}, not 1 to {last}"


@must_hold("one-running", facts=lambda found: sum(len(run.of_kind("attempt")) for run in found.runs))
def one_running(found: Evidence) -> Violations:
    """Attempts on one thread never overlap."""
    for thread in found.threads:
        holder = ""
        for event in _in_order(found, thread):
            if event.kind != "end" and holder not in ("", event.run_id):
                yield thread, "two runs were driven at once"
            ended = event.kind == "end" and holder in ("", event.run_id)
            holder = "" if ended else holder if event.kind == "end" else event.run_id
    for thread, running in found.looks["double"].items():
        yield thread, f"{running} runs were seen running at once"


@must_hold("stale-silent", facts=_number_of_events)
def stale_silent(found: Evidence) -> Violations:
    """After an attempt event there is nothing of an older epoch, and the last attempt made the result."""
    for run in found.runs:
        newest = 0
        for event in run.events:
            newest = event.epoch if event.kind == "attempt" else newest
            if event.epoch != newest:
                yield run.thread, f"{event.kind} of epoch {event.epoch} after the attempt of epoch {newest}"
        if isinstance(run.result, dict) and run.result.get("epoch", newest) != newest:
            yield run.thread, f"the result is that of epoch {run.result['epoch']}, not of {newest}"


@must_hold("no-fork", facts=lambda found: len(found.children))
def no_fork(found: Evidence) -> Violations:
    """A checkpoint has at most one successor."""
    for thread, _, children in found.children:
        if children > 1:
            yield thread, f"a checkpoint has {children} successors"


@must_hold("late-refused", facts=lambda found: len(found.refused))
def late_refused(found: Evidence) -> Violations:
    """Each kind of late write was attempted by a thawed worker, refused and counted."""
    for thread, kind in LATE.items():
        for run in found.on(thread):
            if (run.run_id, kind) not in found.refused:
                yield thread, f"no late {kind} was refused"


LATE = {"5-checkpoint": "checkpoint", "5-event": "event", "5-verdict": "verdict"}


def _in_order(found: Evidence, thread: str) -> list[Event]:
    events = (event for run in found.on(thread) for event in run.events)
    return sorted(events, key=lambda event: event.thread_seq)


# ---------------------------------------------------------------- what clients received


@must_hold("commit-first", facts=_number_received)
def commit_first(found: Evidence) -> Violations:
    """Nothing was received before it was committed, and no end before the state."""
    for connection, run in _streams(found):
        for seen in connection.seen:
            stored = _stored(run, seen.seq)
            committed = (
                max(stored.created_at, run.ended_at or 0 if seen.kind == "end" else 0) if stored else 0
            )
            early = committed - seen.at * 1000
            if early > 0:
                yield (
                    connection.thread,
                    f"{seen.kind} {seen.seq} was received {early:.0f} ms before its commit",
                )


@must_hold("told-is-kept", facts=_number_received)
def told_is_kept(found: Evidence) -> Violations:
    """What a client received is what is stored behind its cursor, without hole or repeat."""
    for connection, run in _streams(found):
        numbers = [seen.seq for seen in connection.seen]
        first = int(connection.after.rpartition(":")[2] or 0) + 1
        if numbers != list(range(first, first + len(numbers))):
            yield connection.thread, f"{connection.client} received {numbers} behind the cursor {first - 1}"
        for seen in connection.seen:
            stored = _stored(run, seen.seq)
            if stored is None or (seen.kind, seen.data) != (stored.kind, _shown(stored)):
                yield (
                    connection.thread,
                    f"{connection.client} received a {seen.kind} {seen.seq} that is not stored",
                )


@must_hold("reaches-end", facts=lambda found: sum(connection.streamed for connection in found.connections))
def reaches_end(found: Evidence) -> Violations:
    """Who stays gets the end; who was cut off goes on behind what he had and gets it too."""
    last: dict[str, Connection] = {}
    for connection in found.connections:
        if not connection.streamed:
            continue
        kinds = [seen.kind for seen in connection.seen]
        if connection.closed == "server" and kinds[-1] != "end":
            yield connection.thread, f"{connection.client}'s stream closed without an end"
        before = last.get(connection.client)
        had = f"{before.seen[-1].run_id}:{before.seen[-1].seq}" if before else ""
        if connection.after != had:
            yield connection.thread, f"{connection.client} came back behind {connection.after!r}, not {had!r}"
        last[connection.client] = connection
    for client, connection in last.items():
        if connection.closed == "cut":
            yield connection.thread, f"{client} was cut off and never got the end"


def _streams(found: Evidence) -> Iterator[tuple[Connection, Run]]:
    for connection in found.connections:
        run = found.run(connection.seen[0].run_id) if connection.streamed else None
        if run is not None:
            yield connection, run


def _stored(run: Run, seq: int) -> Event | None:
    return next((event for event in run.events if event.seq == seq), None)


def _shown(event: Event) -> object:
    return {"epoch": event.epoch, "mode": event.mode, "data": event.data}


# ---------------------------------------------------------------- what was executed


@must_hold("one-effect", facts=lambda found: _count(found, "effect").total())
def one_effect(found: Evidence) -> Violations:
    """At the provider each step of a booking has one effect, however often it was asked."""
    for (booking, step), times in _count(found, "effect").items():
        if times > 1:
            yield booking, f"{step} had {times} effects"


@must_hold("no-repeat", facts=lambda found: _count(found, "request").total())
def no_repeat(found: Evidence) -> Violations:
    """A step that is on record is not executed again."""
    for call in found.calls:
        recorded = [
            event.created_at
            for run in found.on(call.booking)
            for event in run.events
            if event.step == call.step
        ]
        if call.what == "request" and recorded and call.at * 1000 > min(recorded):
            yield call.booking, f"{call.step} was executed again after it was on record"


@must_hold("same-account", facts=lambda found: len(_bookings(found)))
def same_account(found: Evidence) -> Violations:
    """What had an effect, what the events say, and what the last state says are the same steps."""
    for thread in _bookings(found):
        runs = found.on(thread)
        executed = sorted(step for booking, step in _count(found, "effect") if booking == thread)
        recorded = [event.step for run in runs for event in run.events if event.step]
        if sorted(recorded) != executed:
            yield thread, f"executed {executed}, recorded {recorded}"
        if runs[-1].state == "succeeded" and runs[-1].result["steps"] != recorded:
            yield thread, f"recorded {recorded}, the result says {runs[-1].result['steps']}"


def _count(found: Evidence, what: str) -> Counter[tuple[str, str]]:
    return Counter((call.booking, call.step) for call in found.calls if call.what == what)


def _bookings(found: Evidence) -> list[str]:
    return [thread for thread in found.threads if any(run.agent == "booking" for run in found.on(thread))]


# ---------------------------------------------------------------- the story


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """What must have become of a thread: its runs' states and reasons, and how many attempts the last had."""

    states: tuple[tuple[str, str | None], ...] = (("succeeded", None),)
    attempts: int = 1
    charges: int = 1
    again: str = ""


STORIES: dict[str, Story] = {
    "1-cancel": Story(states=(("stopped", "disconnect"), ("succeeded", None)), again="continued"),
    "2-continue": Story(again="replayed"),
    "4-notify": Story(attempts=2),
    "4-charge": Story(attempts=2, charges=2),
    "5-frozen": Story(attempts=2),
    "5-checkpoint": Story(attempts=2),
    "5-event": Story(attempts=2),
    "5-verdict": Story(attempts=2),
    "6-clicks": Story(),
}


@must_hold("as-declared", facts=lambda found: len(found.threads))
def as_declared(found: Evidence) -> Violations:
    """Each booking came to what its policy and its accident say."""
    for thread in found.threads:
        runs, story = found.on(thread), STORIES[thread]
        states = tuple((run.state, run.reason) for run in runs)
        if states != story.states:
            yield thread, f"the runs are {states}, not {story.states}"
        attempts = len(runs[-1].of_kind("attempt"))
        if attempts < story.attempts:
            yield thread, f"{attempts} attempts, not {story.attempts}"
        charges = _count(found, "request")[thread, "charge"]
        if thread in _bookings(found) and charges != story.charges:
            yield thread, f"the charge was asked for {charges} times, not {story.charges}"
        if any(before.run_id != after.continues for before, after in itertools.pairwise(runs)):
            yield thread, "a run does not continue the one before it"
        yield from _answers(found, thread, story)


def _answers(found: Evidence, thread: str, story: Story) -> Violations:
    posts = [c for c in found.connections if c.thread == thread and c.method == "POST"]
    if story.again and posts[-1].admitted != story.again and posts[0].admitted != story.again:
        yield thread, f"the same intent again was {[post.admitted for post in posts]}, not {story.again}"
    taken = [post.status for post in posts if post.status in (200, 201)]
    others = {post.status for post in posts} - {200, 201}
    if thread == "6-clicks" and (len(taken) != 1 or others != {409}):
        yield thread, f"{len(taken)} of {len(posts)} messages were taken, the others answered {others}"
