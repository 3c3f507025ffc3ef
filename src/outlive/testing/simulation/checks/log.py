"""Checks of the log of events: dense, in order, complete, one end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outlive.states import State
from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History


def sequences_are_dense(history: History) -> Iterator[reading.Found]:
    by_run: dict[str, int] = defaultdict(int)
    by_thread: dict[str, int] = defaultdict(int)
    for commit in history.commits:
        for event in commit.events:
            if event.seq != by_run[event.run_id] + 1:
                yield commit.at, f"{commit.script} wrote seq {event.seq} after {by_run[event.run_id]}"
            if event.thread_seq != by_thread[event.thread_id] + 1:
                yield commit.at, f"thread seq {event.thread_seq} follows {by_thread[event.thread_id]}"
            by_run[event.run_id] = event.seq
            by_thread[event.thread_id] = event.thread_seq


def epochs_open_and_never_return(history: History) -> Iterator[reading.Found]:
    for run_id, events in reading.by_run(history.final_events).items():
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


def nothing_follows_the_end(history: History) -> Iterator[reading.Found]:
    ended = {run["run_id"]: run for run in history.final_runs if State(run["state"]).terminal}
    for run_id, events in reading.by_run(history.final_events).items():
        ends = [event.seq for event in events if event.kind == "end"]
        if run_id in ended and ends != [events[-1].seq]:
            yield f"{run_id[:8]} has ended; its end events are {ends} of {events[-1].seq}"
        if run_id not in ended and ends:
            yield f"{run_id[:8]} has an end event and has not ended"


def what_was_yielded_is_logged(history: History) -> Iterator[reading.Found]:
    """The log holds what an attempt yielded, in that order and once; all of it if it succeeded or failed."""
    given: dict[tuple[str, int], list[str]] = defaultdict(list)
    for item in history.yielded:
        given[(item.run_id, item.epoch)].append(item.payload)
    stored: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in history.final_events:
        if event.kind == "chunk":
            stored[(event.run_id, event.epoch)].append(event.payload)
    for key, chunks in stored.items():
        if given[key][: len(chunks)] != chunks:
            yield f"attempt {key[1]} of {key[0][:8]} did not yield what is logged, in that order"
    for run in history.final_runs:
        if run["state"] in ("succeeded", "failed"):
            key = (run["run_id"], run["epoch"])
            if given[key] != stored[key]:
                yield f"{run['run_id'][:8]} yielded {len(given[key])} chunks, {len(stored[key])} are logged"
