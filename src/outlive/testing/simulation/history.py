"""What happened in a simulation, as the checker and a person read it afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outlive import signals

EPOCH_MS = 1_700_000_000_000
"""What the database's clock says when a simulation begins."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run's row before and after one commit (``before`` None: inserted)."""

    run_id: str
    thread_id: str
    before: tuple[str, int] | None
    after: tuple[str, int]
    losses: int
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as it was committed."""

    run_id: str
    seq: int
    thread_id: str
    thread_seq: int
    epoch: int
    kind: str
    payload: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed transaction that changed something."""

    at: float
    process: str
    script: str
    runs: tuple[RunChange, ...]
    events: tuple[EventRow, ...]
    told: tuple[str, ...] = ()


@dataclass(slots=True)
class Transcript:
    """What one subscriber got.  ``ended``: with the end event; ``closed``: the server hung up
    without one; ``cut``: not to the end, for whatever reason; ``ours``: it was the server that ended it."""

    client: str
    process: str
    run_id: str
    after: int
    joined_at: float
    watching: bool
    events: list[tuple[float, int, int, str, str]] = field(default_factory=list)
    ended: bool = False
    closed: bool = False
    cut: bool = False
    ours: bool = False
    left_at: float | None = None


@dataclass(slots=True)
class Feed:
    """What one follower of a whole thread got: (when, the thread's seq, run, its seq)."""

    client: str
    thread_id: str
    joined_at: float
    left_at: float = 0.0
    events: list[tuple[float, int, str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told: by a submit (``run`` and how), by a stop (outcome), by a
    look at the record, or when it pried.
    """

    at: float
    asked_at: float
    client: str
    what: str
    run_id: str
    detail: str
    state: str
    key: str | None = None
    body: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """A call that reached the model provider, at the moment of its execution."""

    at: float
    origin: str
    step: int
    epoch: int
    process: str
    repeated: bool
    run_id: str


@dataclass(frozen=True, slots=True)
class Told:
    """A notification at the moment at which it reached its receiver."""

    at: float
    process: str
    id: str
    receiver: str
    run_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A step that was recorded as done, under the fence."""

    at: float
    origin: str
    step: int
    epoch: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Yielded:
    """A chunk at the moment at which the agent gave it away."""

    run_id: str
    epoch: int
    payload: str


@dataclass(slots=True)
class FaultSpan:
    """A fault, while it lasted."""

    begin: float
    end: float
    fault: str
    process: str


@dataclass(slots=True)
class History:
    """Everything, in order."""

    commits: list[Commit] = field(default_factory=list)
    transcripts: list[Transcript] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    yielded: list[Yielded] = field(default_factory=list)
    notes: list[tuple[float, str, signals.Happening]] = field(default_factory=list)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    final_runs: list[dict[str, Any]] = field(default_factory=list)
    final_events: list[EventRow] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)
    final_outbox: list[dict[str, Any]] = field(default_factory=list)
    ended_at: float = 0.0
