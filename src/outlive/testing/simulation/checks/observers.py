"""Checks of what subscribers got: what was committed, all of it, to the end."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History


def delivered_is_committed(history: History) -> Iterator[reading.Found]:
    committed = {
        (event.run_id, event.seq): (commit.at, event) for commit in history.commits for event in commit.events
    }
    for got in history.transcripts:
        for at, seq, epoch, kind, payload in got.events:
            found = committed.get((got.run_id, seq))
            if found is None or found[0] > at + reading.SLACK:
                yield at, f"{got.client} got event {seq} of {got.run_id[:8]} before it was committed"
            elif (found[1].epoch, found[1].kind, found[1].payload) != (epoch, kind, payload):
                yield at, f"{got.client} got another event {seq} of {got.run_id[:8]} than was committed"


def transcripts_have_no_hole(history: History) -> Iterator[reading.Found]:
    for got in history.transcripts:
        expected = got.after
        for at, seq, _, _, _ in got.events:
            expected += 1
            if seq != expected:
                yield at, f"{got.client} got seq {seq} of {got.run_id[:8]} where {expected} was due"
                break
        if got.ended and got.events and got.events[-1][3] != "end":
            yield f"the stream of {got.client} ended without an end event"


def subscribers_reach_the_end(history: History) -> Iterator[reading.Found]:
    ended_at = reading.ended_at(history)
    quiet = max((span.end for span in history.faults), default=0.0) + 12.0
    for got in history.transcripts:
        end = ended_at.get(got.run_id)
        if end is None or got.ended or got.left_at is None:
            continue
        waited = got.left_at - max(end, got.joined_at, quiet)
        if waited > 3.0 and not any(kind == "end" for _, _, _, kind, _ in got.events):
            yield (
                got.left_at,
                f"{got.client} waited {waited:.1f} s after the end of {got.run_id[:8]} and heard nothing",
            )


def streams_end_with_the_event(history: History) -> Iterator[reading.Found]:
    for got in history.transcripts:
        cut_off = got.closed and not got.ended and got.left_at is not None
        if cut_off and reading.calm(history, got.joined_at - 5.0, got.left_at or 0.0):
            yield f"the stream of {got.client} on {got.run_id[:8]} was closed without an end event"


def feeds_have_no_hole(history: History) -> Iterator[reading.Found]:
    """Who follows a thread gets its own sequence, each event once, and none that was not committed."""
    committed = {
        (event.thread_id, event.thread_seq): (commit.at, event.run_id, event.seq)
        for commit in history.commits
        for event in commit.events
    }
    for got in history.feeds:
        for expected, (at, thread_seq, run_id, seq) in enumerate(got.events, 1):
            if thread_seq != expected:
                yield at, f"{got.client} got seq {thread_seq} of its thread where {expected} was due"
                break
            born, *same = committed.get((got.thread_id, thread_seq), (at + 1.0, "", 0))
            if born > at + reading.SLACK or same != [run_id, seq]:
                yield at, f"{got.client} got {run_id[:8]}:{seq}, which was not committed as {thread_seq}"


def feeds_are_current(history: History) -> Iterator[reading.Found]:
    """Who follows a thread while nothing is wrong has everything of it that is a poll interval old."""
    for got in history.feeds:
        if got.left_at - got.joined_at < 8.0 or not reading.calm(history, got.left_at - 12.0, got.left_at):
            continue
        due = sum(
            event.thread_id == got.thread_id
            for commit in history.commits
            if commit.at < got.left_at - 3.0
            for event in commit.events
        )
        if len(got.events) < due:
            yield got.left_at, f"{got.client} followed a thread and got {len(got.events)} of {due} events"
