"""Schedules and their occurrences as they are kept, and the transactions that move them.

A slot is accounted for by the row of its occurrence, which is written in the same transaction that moves its
schedule past it: one that died between the two does not exist.  What an occurrence becomes is written after
its run was submitted, under an id that the row had from the beginning; so whoever repeats that makes no
second run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from outlive import errors
from outlive.model import Row, millis, seconds
from outlive.store import steps
from outlive.store.script import Steps, script, statement


class Missed(StrEnum):
    """What becomes of slots that are noticed late: none of them runs, the newest, or all, within a bound."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class Status(StrEnum):
    """Whether a schedule's slots become runs; one that ended has none any more."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class Fate(StrEnum):
    """What became of an occurrence."""

    PENDING = "pending"
    FIRED = "fired"
    SKIPPED = "skipped"


class Why(StrEnum):
    """Why there is no run."""

    MISSED = "missed"
    PAUSED = "paused"
    THREAD_BUSY = "thread_busy"
    THREAD_LEFT = "thread_left"
    LIMIT = "limit"
    KEY_REVOKED = "key_revoked"
    AGENT_UNKNOWN = "agent_unknown"
    REFUSED = "refused"


_SAME = ("schedule_id", "tenant", "name", "cron", "timezone", "agent", "thread", "webhook")


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A schedule as it stands.  Times are in seconds since the epoch; ``grace`` is in seconds.

    ``policy`` are changes to its agent's.  ``seen_until``: all slots up to here are accounted for.
    ``principal``: whose limits its runs count for, and whose API key must still hold.  ``passes_after``: how
    many seconds after the last that happens on it the thread of a run is deleted (None: never).
    """

    schedule_id: str
    tenant: str
    name: str
    cron: str
    timezone: str
    agent: str
    thread: str | None
    input: Any
    metadata: dict[str, Any]
    policy: dict[str, Any]
    webhook: str | None
    principal: str
    missed: Missed
    grace: float
    ends_at: float | None
    state: Status
    seen_until: float
    next_at: float | None
    passes_after: float | None = None
    version: int = 1
    created_at: float = 0.0
    updated_at: float = 0.0
    now: float = 0.0

    @classmethod
    def from_row(cls, row: Row) -> Schedule:
        """Build one from a row, which also says what time the database has."""
        return cls(
            **{name: row[name] for name in (*_SAME, "principal")},
            input=json.loads(row["input"]),
            metadata=json.loads(row["metadata"]),
            policy=json.loads(row["policy"]),
            missed=Missed(row["missed"]),
            grace=row["grace_ms"] / 1000,
            ends_at=seconds(row["ends_at"]),
            state=Status(row["state"]),
            seen_until=row["seen_until"] / 1000,
            next_at=seconds(row["next_at"]),
            passes_after=seconds(row["passes_after_ms"]),
            version=row["version"],
            created_at=row["created_at"] / 1000,
            updated_at=row["updated_at"] / 1000,
            now=row["now_ms"] / 1000,
        )

    @property
    def due(self) -> bool:
        """True if there are slots that are not accounted for."""
        return self.next_at is not None and self.next_at <= self.now

    def columns(self) -> dict[str, Any]:
        """Return the columns that a change may write."""
        return {
            **{name: getattr(self, name) for name in _SAME},
            **{name: json.dumps(getattr(self, name)) for name in ("input", "metadata", "policy")},
            **{name: _ms(getattr(self, name)) for name in ("ends_at", "seen_until", "next_at")},
            "missed": self.missed.value,
            "grace_ms": millis(self.grace),
            "passes_after_ms": _ms(self.passes_after),
            "state": self.state.value,
        }

    def public(self) -> dict[str, Any]:
        """Return what may be shown, as JSON-able values."""
        hidden = {"tenant", "principal", "version", "seen_until", "now"}
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in hidden}


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """A slot and what became of it.  ``slots`` > 1: skipped, with those before it in a row."""

    schedule_id: str
    slot: float
    run_id: str
    slots: int
    tenant: str
    agent: str
    thread: str | None
    input: Any
    metadata: dict[str, Any]
    policy: dict[str, Any]
    webhook: str | None
    principal: str
    state: Fate
    reason: Why | None
    error: str | None
    created_at: float
    ended_at: float | None
    passes_after: float | None = None
    barred: Why | None = None

    @classmethod
    def from_row(cls, row: Row) -> Occurrence:
        """Build one from a row."""
        same = ("schedule_id", "run_id", "slots", "tenant", "agent", "thread", "webhook", "principal")
        return cls(
            **{name: row[name] for name in (*same, "error")},
            slot=row["slot"] / 1000,
            input=json.loads(row["input"]),
            metadata=json.loads(row["metadata"]),
            policy=json.loads(row["policy"]),
            state=Fate(row["state"]),
            reason=Why(row["reason"]) if row["reason"] else None,
            created_at=row["created_at"] / 1000,
            ended_at=seconds(row["ended_at"]),
            passes_after=seconds(row["passes_after_ms"]),
            barred=Why(row["barred"]) if row["barred"] else None,
        )

    def public(self) -> dict[str, Any]:
        """Return what may be shown; ``run_id`` only once there is a run."""
        shown = ("schedule_id", "slot", "slots", "state", "reason", "error", "created_at", "ended_at")
        run_id = self.run_id if self.state is Fate.FIRED else None
        return {**{name: getattr(self, name) for name in shown}, "run_id": run_id}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A row to be written for a slot.  ``reason`` None: it is to become the run of this id."""

    slot: int
    run_id: str
    reason: Why | None = None
    slots: int = 1
    deadline: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to write for the slots that a schedule has come past, and where it stands then."""

    rows: tuple[Planned, ...]
    seen_until: float
    next_at: float | None
    state: Status


def _ms(value: float | None) -> int | None:
    return None if value is None else millis(value)


@script()
def create(new: Schedule) -> Steps[Schedule]:
    """Keep a new schedule."""
    yield statement("insert_schedule", **new.columns(), principal=new.principal)
    return Schedule.from_row((yield _of(new.schedule_id, new.tenant))[0])


@script(reads=True)
def find(schedule_id: str, tenant: str | None) -> Steps[Schedule]:
    """Return a schedule; raises ``NotFound``."""
    rows = yield _of(schedule_id, tenant)
    if not rows:
        raise unknown(schedule_id)
    return Schedule.from_row(rows[0])


def _of(schedule_id: str, tenant: str | None) -> Any:
    return statement("schedule", schedule_id=schedule_id, tenant=tenant)


def unknown(schedule_id: str) -> errors.NotFound:
    """Return the error for a schedule that is not there, or not this tenant's."""
    return errors.NotFound(f"There is no schedule {schedule_id}.", field="schedule_id")


@script(reads=True)
def listed(tenant: str, limit: int, before: str | None = None) -> Steps[list[Schedule]]:
    """Return schedules, newest first, older than the one ``before``."""
    rows = yield statement("list_schedules", tenant=tenant, limit=limit, before=before)
    return [Schedule.from_row(row) for row in rows]


@script(reads=True)
def clock() -> Steps[float]:
    """Return the database's time in seconds since the epoch."""
    return float((yield statement("clock"))[0]["now_ms"]) / 1000


@script(reads=True)
def due(limit: int) -> Steps[list[Schedule]]:
    """Return schedules whose next slot has come, those that wait longest first."""
    return [Schedule.from_row(row) for row in (yield statement("due_schedules", limit=limit))]


@script(reads=True)
def wait() -> Steps[float | None]:
    """Return in how many seconds the next slot of any schedule comes; None if none does."""
    rows = yield statement("next_schedule")
    return rows[0]["wait_ms"] / 1000 if rows else None


@script()
def advance(found: Schedule, plan: Plan) -> Steps[list[Planned]]:
    """Write the rows and move the schedule past them; nothing if somebody else has, or does so now."""
    seen = millis(found.seen_until)
    params = {"schedule_id": found.schedule_id, "seen_until": seen, "version": found.version}
    if not (yield statement("lock_schedule", **params)):
        return []
    written = []
    for each in plan.rows:
        rows = yield statement(
            "insert_occurrence",
            schedule_id=found.schedule_id,
            slot=each.slot * 1000,
            run_id=each.run_id,
            slots=each.slots,
            state=(Fate.SKIPPED if each.reason else Fate.PENDING).value,
            reason=each.reason.value if each.reason else None,
            deadline=_ms(each.deadline),
        )
        written += [each] if rows else []
    yield statement(
        "advance_schedule",
        schedule_id=found.schedule_id,
        seen_until=millis(plan.seen_until),
        next_at=_ms(plan.next_at),
        state=plan.state.value,
    )
    return written


@script()
def change(now: Schedule, changed: Schedule) -> Steps[Schedule | None]:
    """Write a change; None if the schedule has moved since it was read."""
    rows = yield statement(
        "change_schedule", **changed.columns(), version=now.version, seen=millis(now.seen_until)
    )
    return Schedule.from_row(rows[0]) if rows else None


@script()
def drop(schedule_id: str, tenant: str) -> Steps[None]:
    """Take a schedule and its occurrences away, not its runs; raises ``NotFound``."""
    if not (yield statement("drop_schedule", schedule_id=schedule_id, tenant=tenant)):
        raise unknown(schedule_id)
    yield statement("drop_occurrences", schedule_id=schedule_id)


@script()
def drop_of_thread(tenant: str, thread: str) -> Steps[None]:
    """Take away the schedules whose runs are on a thread."""
    for row in (yield statement("schedules_of_thread", tenant=tenant, thread=thread)):
        yield statement("drop_schedule", schedule_id=row["schedule_id"], tenant=tenant)
        yield statement("drop_occurrences", schedule_id=row["schedule_id"])


@script(reads=True)
def waiting() -> Steps[bool]:
    """Say whether there is anything to take."""
    return bool((yield statement("occurrence_waits")))


@script()
def take(agents: Sequence[str], limit: int, lease: float, patience: float) -> Steps[list[Occurrence]]:
    """Take up to ``limit`` occurrences that wait to become runs, for ``lease`` seconds.

    Those of agents that are not known here only after ``patience`` seconds.
    """
    rows = yield statement(
        "pending_occurrences", agents=list(agents), limit=limit, patience_ms=millis(patience)
    )
    ids = [row["run_id"] for row in rows]
    taken = (yield statement("take_occurrences", ids=ids, lease_ms=millis(lease))) if ids else []
    return sorted((Occurrence.from_row(row) for row in taken), key=lambda each: each.slot)


@script()
def fired(run_id: str) -> Steps[float | None]:
    """Note that an occurrence has its run; returns how many seconds late it was, None if that was known."""
    rows = yield statement("fire_occurrence", run_id=run_id)
    return rows[0]["late_ms"] / 1000 if rows else None


@script()
def skipped(run_id: str, why: Why, error: str | None) -> Steps[bool]:
    """Note that an occurrence has no run and why; False if it has one, or that was known."""
    if (yield from steps.own(run_id)) is not None:  # whoever submitted it died before it could say so
        yield statement("fire_occurrence", run_id=run_id)
        return False
    return bool((yield statement("skip_occurrence", run_id=run_id, reason=why.value, error=error)))


@script()
def prune(retention: float, limit: int) -> Steps[int]:
    """Delete up to ``limit`` occurrences that were settled more than ``retention`` seconds ago, oldest first.

    Their slots do not come again: their schedules are past them.
    """
    rows = yield statement("ended_occurrences", retention_ms=millis(retention), limit=limit)
    ids = [row["run_id"] for row in rows]
    return len((yield statement("prune_occurrences", ids=ids))) if ids else 0


@script(reads=True)
def occurrences(schedule_id: str, tenant: str, limit: int, before: float) -> Steps[list[Occurrence]]:
    """Return what became of a schedule's slots, newest first, of those before a time."""
    rows = yield statement(
        "list_occurrences", schedule_id=schedule_id, tenant=tenant, limit=limit, before=millis(before)
    )
    return [Occurrence.from_row(row) for row in rows]
