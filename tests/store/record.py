"""What a database holds, read by plain SQL, and what must never be so in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlive.states import State

Row = Mapping[str, Any]
Query = Callable[[str], list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Every row of the tables that moves write, at one moment."""

    runs: Mapping[str, Row]
    events: tuple[Row, ...]
    threads: Mapping[str, Row]
    keys: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, query: Query) -> Snapshot:
        runs = query("SELECT * FROM runs ORDER BY created_at, run_id")
        events = query("SELECT * FROM events ORDER BY run_id, seq")
        threads = query("SELECT * FROM threads")
        keys = query("SELECT * FROM run_keys")
        return cls(
            runs={row["run_id"]: row for row in runs},
            events=tuple(events),
            threads={row["thread_id"]: row for row in threads},
            keys={(row["tenant"], row["key"]): row["run_id"] for row in keys},
        )

    def on(self, thread_id: str, *states: State) -> list[Row]:
        """The runs of a thread in these states, in queue order."""
        found = [run for run in self.runs.values() if run["thread_id"] == thread_id]
        return sorted((run for run in found if run["state"] in states), key=lambda run: int(run["pos"]))

    def log(self, run_id: str) -> list[Row]:
        """The events of a run, in order."""
        return [event for event in self.events if event["run_id"] == run_id]


def is_terminal(run: Row) -> bool:
    return State(run["state"]).terminal


def faults(now: Snapshot) -> list[str]:
    """Every violation of an invariant, with the invariant's id."""
    found: list[str] = []
    for run_id, run in now.runs.items():
        log = now.log(run_id)
        found += [f"{fault} in {run_id}: {[e['kind'] for e in log]}" for fault in _of_a_run(run, log)]
    for thread_id, thread in now.threads.items():
        found += [f"{fault} in thread {thread_id}" for fault in _of_a_thread(now, thread_id, thread)]
    return found + list(_of_keys(now))


def _of_a_run(run: Row, log: list[Row]) -> Iterable[str]:
    ends = [event for event in log if event["kind"] == "end"]
    if len(ends) != is_terminal(run):
        yield f"I1: {len(ends)} end events in state {run['state']}"
    if ends and (log[-1] is not ends[0] or json.loads(ends[0]["payload"])["state"] != run["state"]):
        yield "I1: the end event is not last, or tells another state"
    if [event["seq"] for event in log] != list(range(1, run["last_seq"] + 1)):
        yield f"I4: hole or repeat in seq before {run['last_seq']}"
    epochs = [event["epoch"] for event in log]
    if epochs != sorted(epochs) or any(epoch > run["epoch"] for epoch in epochs):
        yield f"I2: epochs {epochs} in a run of epoch {run['epoch']}"
    openings = [event["epoch"] for event in log if event["kind"] == "attempt"]
    if len(set(openings)) != len(openings) or any(
        event["kind"] in ("chunk", "note") and event["epoch"] not in openings for event in log
    ):
        yield f"I4: attempts {openings} do not open the epochs of the log"
    if (run["state"] == "running") != (run["lease_until"] is not None):
        yield f"a lease of {run['lease_until']} in state {run['state']}"
    if run["state"] == "queued" and run["stop_requested_at"] is not None:
        yield "I7: a queued run with a stop request"


def _of_a_thread(now: Snapshot, thread_id: str, thread: Row) -> Iterable[str]:
    if len(now.on(thread_id, State.RUNNING)) > 1:
        yield "I3: two running runs"
    numbers = sorted(event["thread_seq"] for event in now.events if event["thread_id"] == thread_id)
    if numbers != list(range(1, thread["last_seq"] + 1)):
        yield f"I4: hole or repeat in the thread's seq {numbers}"
    places = [run["pos"] for run in now.on(thread_id, *State)]
    if len(set(places)) != len(places) or any(place >= thread["next_pos"] for place in places):
        yield f"places {places} before {thread['next_pos']}"


def _of_keys(now: Snapshot) -> Iterable[str]:
    for (tenant, key), run_id in now.keys.items():
        run = now.runs.get(run_id)
        if run is None or run["tenant"] != tenant:
            yield f"I8: key {key} points to {run_id}, which is not there"
    continued = [run["continues"] for run in now.runs.values() if run["continues"] is not None]
    if len(set(continued)) != len(continued):
        yield f"I8: a run was continued twice: {continued}"
    for run_id, run in now.runs.items():
        before = now.runs.get(run["continues"] or "")
        if (before["origin"] if before else run_id) != run["origin"]:
            yield f"I8: {run_id} has the origin {run['origin']}"


def chain(now: Snapshot, run_id: str) -> list[str]:
    """A run and those that it continues, newest first."""
    found = [run_id]
    while (before := now.runs[found[-1]]["continues"]) is not None:
        found.append(before)
    return found
