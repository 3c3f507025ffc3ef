"""Reads as scripts: what a principal or a follower asks of the record.  They write and lock nothing."""

from __future__ import annotations

from collections.abc import Sequence

from outlive import errors
from outlive.model import Claim, Event, Renewed, Run, Suspect, Thread
from outlive.states import State
from outlive.store.script import Steps, script, statement


@script(reads=True)
def run(run_id: str, tenant: str | None) -> Steps[Run]:
    """Return one run; ``tenant`` None reads across tenants.  Raises ``NotFound``."""
    rows = yield statement("run", run_id=run_id, tenant=tenant)
    if not rows:
        raise errors.NotFound(f"There is no run {run_id}.", run_id=run_id)
    return Run.from_row(rows[0])


@script(reads=True)
def runs(
    tenant: str,
    *,
    limit: int,
    before: str | None = None,
    agent: str | None = None,
    state: State | None = None,
    thread: str | None = None,
) -> Steps[list[Run]]:
    """Return up to ``limit`` runs, newest first, older than ``before``, matching every filter given."""
    filters = {"limit": limit, "before": before, "agent": agent, "state": state.value if state else None}
    if thread is None:
        rows = yield statement("list_runs", tenant=tenant, **filters)
    else:
        rows = yield statement("list_thread_runs", tenant=tenant, thread=thread, **filters)
    return [Run.from_row(row) for row in rows]


@script(reads=True)
def thread(name: str, tenant: str) -> Steps[Thread]:
    """Return a thread by its external name; raises ``NotFound``."""
    rows = yield statement("thread", tenant=tenant, thread=name)
    if not rows:
        raise errors.NotFound(f"There is no thread {name!r}.", field="thread")
    return Thread.from_row(rows[0])


@script(reads=True)
def thread_is_there(thread_id: str) -> Steps[bool]:
    """Say whether a thread is there, by its internal id, and was not deleted."""
    return bool((yield statement("thread_is_there", thread_id=thread_id)))


@script(reads=True)
def threads(tenant: str, *, limit: int, before: str | None = None) -> Steps[list[Thread]]:
    """Return up to ``limit`` threads, newest first, older than the one named ``before``."""
    rows = yield statement("list_threads", tenant=tenant, limit=limit, before=before)
    return [Thread.from_row(row) for row in rows]


@script(reads=True)
def events(run_id: str, after: int, limit: int) -> Steps[list[Event]]:
    """Return up to ``limit`` committed events of a run with a seq above ``after``, in order."""
    rows = yield statement("events_after", run_id=run_id, after=after, limit=limit)
    return [Event.from_row(row) for row in rows]


@script(reads=True)
def thread_events(thread_id: str, after: int, limit: int) -> Steps[list[Event]]:
    """Return up to ``limit`` committed events of a thread above ``after`` in its own sequence."""
    rows = yield statement("thread_events_after", thread_id=thread_id, after=after, limit=limit)
    return [Event.from_row(row) for row in rows]


@script(reads=True)
def suspects(missed_ms: int, limit: int) -> Steps[list[Suspect]]:
    """Return running runs that nobody renewed for ``missed_ms`` milliseconds."""
    rows = yield statement("suspects", missed_ms=missed_ms, limit=limit)
    return [
        Suspect(
            run_id=row["run_id"],
            thread_id=row["thread_id"],
            epoch=row["epoch"],
            worker=row["worker"],
            expired=bool(row["expired"]),
            renewed_at=row["renewed_at"],
            traceparent=row["traceparent"],
        )
        for row in rows
    ]


@script(reads=True)
def held(claims: Sequence[Claim]) -> Steps[list[Renewed]]:
    """Return which of ``claims`` still stand, and which of those were asked to stop."""
    rows = yield statement("held", run_ids=[claim.run_id for claim in claims])
    asked = {(claim.run_id, claim.epoch, claim.claim_token) for claim in claims}
    return [
        Renewed.from_row(row) for row in rows if (row["run_id"], row["epoch"], row["claim_token"]) in asked
    ]


@script(reads=True)
def uptime() -> Steps[int]:
    """Return for how many milliseconds the database has been up (0: it cannot restart under us)."""
    rows = yield statement("uptime")
    return int(rows[0]["up_ms"])


@script(reads=True)
def claimable(agents: Sequence[str]) -> Steps[bool]:
    """Say whether a worker for ``agents`` would find a run to claim."""
    rows = yield statement("claimable", agents=list(agents), limit=1)
    return bool(rows)


@script(reads=True)
def migrations() -> Steps[set[str]]:
    """Return the names of the migrations that the database has: the smallest thing that asks it at all."""
    rows = yield statement("applied_migrations")
    return {row["name"] for row in rows}


@script(reads=True)
def clock() -> Steps[float]:
    """Return the database's time, in seconds since the epoch."""
    rows = yield statement("clock")
    return float(rows[0]["now_ms"]) / 1000
