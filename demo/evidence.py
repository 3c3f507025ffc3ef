"""What the demonstration left behind: the database, the provider's log, the clients' transcripts.

Decides how it is read, with SQL of its own and without a line of Outlive; what it proves is ``checker``'s.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNS = """
SELECT r.run_id, t.external_id AS thread, r.agent, r.state, r.reason, r.epoch, r.losses, r.last_seq, r.output,
    r.continues, r.created_at, r.ended_at, t.last_seq AS thread_last
FROM runs r JOIN threads t ON t.thread_id = r.thread_id ORDER BY r.pos, r.created_at
"""
EVENTS = """
SELECT e.run_id, e.seq, e.thread_seq, e.epoch, e.kind, e.mode, e.payload, e.created_at
FROM events e ORDER BY e.thread_id, e.thread_seq
"""
CHECKPOINTS = """
SELECT t.external_id AS thread, c.checkpoint_ns || '/' || coalesce(c.parent_checkpoint_id, '') AS parent,
    count(*) AS children
FROM checkpoints c JOIN threads t ON t.thread_id = c.thread_id GROUP BY c.thread_id, 2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A stored event."""

    run_id: str
    seq: int
    thread_seq: int
    epoch: int
    kind: str
    mode: str | None
    payload: str
    created_at: int

    @property
    def data(self) -> Any:
        """The payload, parsed."""
        return json.loads(self.payload)

    @property
    def step(self) -> str:
        """The step of a booking that it reports as done, or nothing."""
        if self.kind == "chunk" and self.mode == "updates":
            return str(next(iter(self.data)))
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run's row with its events; ``thread`` is the name that the clients gave.  Times are milliseconds."""

    run_id: str
    thread: str
    agent: str
    state: str
    reason: str | None
    epoch: int
    losses: int
    last_seq: int
    output: str | None
    continues: str | None
    created_at: int
    ended_at: int | None
    thread_last: int
    events: tuple[Event, ...]

    @property
    def live(self) -> bool:
        """True if it has not ended."""
        return self.state in ("queued", "running")

    @property
    def result(self) -> Any:
        """The output, parsed."""
        return None if self.output is None else json.loads(self.output)

    def of_kind(self, kind: str) -> list[Event]:
        """Its events of one kind, in order."""
        return [event for event in self.events if event.kind == kind]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A line of the provider's log: ``what`` is request, effect or replayed."""

    at: float
    what: str
    step: str
    booking: str
    caller: int
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """An event as a client received it."""

    at: float
    run_id: str
    seq: int
    kind: str
    data: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One request of one client and what came back.  ``closed`` is by client, by server, or cut."""

    client: str
    thread: str
    method: str
    path: str
    after: str
    status: int
    admitted: str
    seen: tuple[Seen, ...]
    closed: str

    @property
    def streamed(self) -> bool:
        """True if it carried events."""
        return bool(self.seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything that the checker may look at."""

    runs: tuple[Run, ...]
    children: tuple[tuple[str, str, int], ...]
    calls: tuple[Call, ...]
    connections: tuple[Connection, ...]
    looks: Any
    refused: tuple[tuple[str, str], ...]

    @property
    def threads(self) -> list[str]:
        """The threads, sorted by name: the scenarios' numbers."""
        return sorted({run.thread for run in self.runs})

    def on(self, thread: str) -> list[Run]:
        """A thread's runs, oldest first."""
        return [run for run in self.runs if run.thread == thread]

    def run(self, run_id: str) -> Run | None:
        """One run."""
        return next((run for run in self.runs if run.run_id == run_id), None)


def read(folder: Path) -> Evidence:
    """Read what is in ``folder``."""
    with contextlib.closing(sqlite3.connect(folder / "record.db")) as connection:
        connection.row_factory = sqlite3.Row
        runs = _runs(connection)
        children = tuple((r["thread"], r["parent"], r["children"]) for r in connection.execute(CHECKPOINTS))
    return Evidence(
        runs=runs,
        children=children,
        calls=tuple(Call(**line) for line in _lines(folder / "provider.jsonl")),
        connections=tuple(
            connection
            for path in sorted((folder / "transcripts").glob("*.jsonl"))
            for connection in _connections(path)
        ),
        looks=json.loads((folder / "looks.json").read_text("utf-8")),
        refused=tuple(
            refused for path in sorted((folder / "logs").glob("*.log")) for refused in _refused(path)
        ),
    )


def _runs(connection: sqlite3.Connection) -> tuple[Run, ...]:
    events: dict[str, list[Event]] = {}
    for row in connection.execute(EVENTS):
        events.setdefault(row["run_id"], []).append(Event(**dict(row)))
    return tuple(
        Run(**dict(row), events=tuple(events.get(row["run_id"], ()))) for row in connection.execute(RUNS)
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _connections(path: Path) -> Iterator[Connection]:
    lines = _lines(path)
    starts = [number for number, line in enumerate(lines) if line["what"] == "request"]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield _connection(path.stem, lines[start], lines[start + 1 : stop])


def _connection(client: str, request: dict[str, Any], lines: Sequence[dict[str, Any]]) -> Connection:
    nothing: dict[str, Any] = {"status": 0, "headers": {}}
    status = next((line for line in lines if line["what"] == "status"), nothing)
    return Connection(
        client=client,
        thread=client.partition(".")[0],
        method=request["method"],
        path=request["path"],
        after=request["headers"].get("Last-Event-ID", ""),
        status=status["status"],
        admitted=status["headers"].get("outlive-admitted", ""),
        seen=tuple(_seen(line) for line in lines if line["what"] == "event"),
        closed=next((line["by"] for line in lines if line["what"] == "closed"), "never"),
    )


def _seen(line: dict[str, Any]) -> Seen:
    run_id, _, seq = line["id"].partition(":")
    return Seen(at=line["at"], run_id=run_id, seq=int(seq or 0), kind=line["event"], data=line["data"])


def _refused(log: Path) -> list[tuple[str, str]]:
    """Which late writes a server says that it refused: run and kind of write."""
    return re.findall(r"StaleWriteRefused run_id=(\w+) .*write=(\w+)", log.read_text("utf-8", "replace"))
