"""The nouns: runs, events, claims, submissions.

Decides their shape and how a database row becomes one; no behaviour.  Times are seconds since the epoch on
the database's clock; the tables hold milliseconds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlive.artifacts import Artifact
from outlive.limits import Quota
from outlive.policy import RunPolicy
from outlive.states import Position, Reason, State

Row = Mapping[str, Any]


class EventKind(StrEnum):
    """What a stored event says.

    ``attempt``: an executor took over, and chunks of an earlier epoch may repeat after it.
    ``chunk``: what the agent yielded.  ``note``: a warning.  ``end``: the verdict; nothing follows it.
    """

    ATTEMPT = "attempt"
    CHUNK = "chunk"
    NOTE = "note"
    END = "end"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The right to drive one run: what every write of an executor must prove to still hold."""

    run_id: str
    thread_id: str
    epoch: int
    claim_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run as the record has it.  ``thread`` is the caller's name for the thread, ``thread_id`` ours.

    ``origin`` is the first run of a chain of same-intent continuations; ``continues`` the one before this.
    It came in the place of ``displaces``.  ``position`` is where this run left its thread;
    ``thread_position`` is where the thread stood when this was read, as the run ``left_by`` left it; None: no
    run of an agent that can tell has ended there.  ``traceparent`` is where the run belongs in a trace.
    """

    run_id: str
    tenant: str
    thread_id: str
    thread: str
    agent: str
    state: State
    reason: Reason | None
    epoch: int
    claim_token: str | None
    worker: str | None
    pos: int
    losses: int
    last_seq: int
    input: str
    output: str | None
    error: str | None
    error_detail: str | None
    metadata: str
    policy: RunPolicy
    origin: str
    continues: str | None
    displaces: str | None
    position: Position | None
    thread_position: Position | None
    left_by: str | None
    lease_until: float | None
    not_before: float | None
    stop_requested_at: float | None
    stop_reason: Reason | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    notify: str | None
    traceparent: str | None

    @property
    def claim(self) -> Claim:
        """The claim of the current holder; raises ``ValueError`` unless the run is running."""
        if self.claim_token is None or self.state is not State.RUNNING:
            raise ValueError(f"run {self.run_id} has no holder")
        return Claim(
            run_id=self.run_id, thread_id=self.thread_id, epoch=self.epoch, claim_token=self.claim_token
        )

    @classmethod
    def from_row(cls, row: Row) -> Run:
        """Build a run from a row of ``runs`` joined with its thread's name."""
        plain: dict[str, Any] = {name: row[name] for name in _SAME}
        times: dict[str, Any] = {name: seconds(row[name]) for name in _TIMES}
        return cls(
            **plain,
            **times,
            state=State(row["state"]),
            reason=Reason(row["reason"]) if row["reason"] else None,
            stop_reason=Reason(row["stop_reason"]) if row["stop_reason"] else None,
            position=_position(row["position"]),
            thread_position=_position(row["thread_position"]),
            policy=RunPolicy.from_json(row["policy"]),
        )

    def public(self) -> dict[str, Any]:
        """Return what a principal may see of the run, as JSON-able values."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _PUBLIC}
        texts = {name: getattr(self, name) for name in ("input", "output", "error", "metadata")}
        shown.update({name: None if text is None else json.loads(text) for name, text in texts.items()})
        shown["policy"] = self.policy.to_dict()
        shown["stop_requested"] = self.stop_requested_at is not None
        return shown


_TIMES = ("lease_until", "not_before", "stop_requested_at", "created_at", "started_at", "ended_at")
_TYPED = frozenset({*_TIMES, "state", "reason", "stop_reason", "position", "thread_position", "policy"})
_SAME = tuple(column.name for column in dataclasses.fields(Run) if column.name not in _TYPED)
_PUBLIC = (
    *("run_id", "thread", "agent", "state", "reason", "position", "epoch", "losses", "last_seq", "origin"),
    *("continues", "displaces", "stop_reason", "not_before", "created_at", "started_at", "ended_at"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Thread:
    """A conversation: runs in order, with a sequence of its own over all their events."""

    thread_id: str
    thread: str
    last_seq: int
    created_at: float
    position: Position | None
    left_by: str | None
    copied_from: str | None = None

    @classmethod
    def from_row(cls, row: Row) -> Thread:
        """Build a thread from a row of ``threads``."""
        same = ("thread_id", "thread", "last_seq", "left_by", "copied_from")
        plain: dict[str, Any] = {name: row[name] for name in same}
        return cls(**plain, created_at=row["created_at"] / 1000, position=_position(row["position"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """An event on its way into the log: its seq is given by the transaction that stores it."""

    kind: EventKind
    payload: str
    mode: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A committed event.  ``payload`` is strict ASCII JSON text."""

    run_id: str
    seq: int
    thread_seq: int
    epoch: int
    kind: EventKind
    mode: str | None
    payload: str
    created_at: float

    @property
    def cursor(self) -> str:
        """The event's id on the wire: ``<run>:<seq>``."""
        return f"{self.run_id}:{self.seq}"

    @property
    def data(self) -> Any:
        """The payload, parsed."""
        return json.loads(self.payload)

    @classmethod
    def from_row(cls, row: Row) -> Event:
        """Build an event from a row of ``events``."""
        return cls(
            run_id=row["run_id"],
            seq=row["seq"],
            thread_seq=row["thread_seq"],
            epoch=row["epoch"],
            kind=EventKind(row["kind"]),
            mode=row["mode"],
            payload=row["payload"],
            created_at=row["created_at"] / 1000,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A free slot that a submit may take at once, and the claim that it would get."""

    worker: str
    claim_token: str
    lease: float
    agents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Everything a submit needs, minted by the caller so that it can be repeated after a lost reply.

    ``thread`` None means a thread of its own.  ``viewer`` is a subscription that exists from the start,
    for ``viewer_lease`` seconds unless it goes on to say so.  ``quotas`` are counted with the insert.
    ``positioned``: the agent knows where it left a thread.  The input ``answers`` a question, or only
    ``goes_on``; ``checked`` is False while nobody has seen whether it fits the questions.
    """

    run_id: str
    tenant: str
    agent: str
    input: str
    fingerprint: str
    policy: RunPolicy
    thread: str | None = None
    key: str | None = None
    not_before: float | None = None
    viewer: str | None = None
    viewer_lease: float = 15.0
    metadata: str = "{}"
    quotas: tuple[Quota, ...] = ()
    positioned: bool = False
    answers: bool = False
    checked: bool = True
    goes_on: bool = False
    notify: str | None = None
    traceparent: str | None = None


class Admitted(StrEnum):
    """What a submit came to."""

    CREATED = "created"
    CONTINUED = "continued"
    ATTACHED = "attached"
    REPLAYED = "replayed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """The run that answers a submission, how it came to be that, and the runs that it has displaced."""

    run: Run
    admitted: Admitted
    claimed: bool = False
    displaced: tuple[Run, ...] = ()


class StopOutcome(StrEnum):
    """What a stop request found: nothing running (now stopped), a holder (told), or an ended run."""

    STOPPED = "stopped"
    REQUESTED = "requested"
    ALREADY = "already"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """The answer to a stop request."""

    run: Run
    outcome: StopOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How an attempt ended, as its holder will record it.  ``output`` and ``error`` are JSON text.

    ``detail`` is for operators only: it may hold what must not reach a client.  ``failure`` is the class of
    what a failed agent raised, for the log.  ``position`` None leaves the thread's as it is.
    """

    state: State
    reason: Reason | None = None
    output: str | None = None
    error: str | None = None
    detail: str | None = None
    failure: str | None = None
    tail: tuple[NewEvent, ...] = field(default=())
    artifacts: tuple[Artifact, ...] = ()
    position: Position | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """What the record added to the events of one write: the time, and the thread's seq of the last one."""

    thread_seq: int
    at: float

    @classmethod
    def from_row(cls, row: Row) -> Stored:
        """Build it from the row of the statement that stored them."""
        return cls(thread_seq=row["thread_seq"], at=row["stored_at"] / 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Appended:
    """What an append learned: the new last seq, and whether somebody asked the run to stop.

    ``stored`` is None if the append was found done already.
    """

    last_seq: int
    stop_requested: bool
    stop_reason: Reason | None
    stored: Stored | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What a settle learned: whether other work of the thread may now go on, for all that it can see.

    ``stored`` is None if whoever follows has to read how the run ended.
    """

    others_wait: bool
    stored: Stored | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """One renewed lease, and whether somebody asked the run to stop."""

    run_id: str
    epoch: int
    stop_requested: bool
    stop_reason: Reason | None

    @classmethod
    def from_row(cls, row: Row) -> Renewed:
        """Build one from a row that names a run, its epoch and its stop request."""
        return cls(
            run_id=row["run_id"],
            epoch=row["epoch"],
            stop_requested=row["stop_requested_at"] is not None,
            stop_reason=Reason(row["stop_reason"]) if row["stop_reason"] else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A running run whose holder is late.  ``expired`` by the database's clock, or merely unrenewed."""

    run_id: str
    thread_id: str
    epoch: int
    worker: str
    expired: bool
    renewed_at: int
    traceparent: str | None = None


class Swept(StrEnum):
    """What a sweep did: gave the run back, ended it, or left it because it had moved on."""

    REQUEUED = "requeued"
    STOPPED = "stopped"
    ABANDONED = "abandoned"
    SPARED = "spared"


def seconds(milliseconds: int | None) -> float | None:
    """Convert the tables' milliseconds to seconds."""
    return None if milliseconds is None else milliseconds / 1000


def millis(value: float) -> int:
    """Convert seconds to the tables' whole milliseconds."""
    return round(value * 1000)


def _position(word: str | None) -> Position | None:
    return Position(word) if word else None
