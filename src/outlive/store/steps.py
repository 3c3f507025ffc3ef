"""Pieces of transactions that several moves share: read a run, claim it, write its log, end it.

Like the moves themselves these are generators of statements; each assumes the locks that its caller took.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from outlive import errors, failpoints
from outlive.model import Claim, EventKind, NewEvent, Offer, Run, Verdict, millis
from outlive.states import Position, State
from outlive.store import effect_steps
from outlive.store.script import Statement, Steps, statement

LATE = "The executor came back after its run had moved on; nothing was written."


def own(run_id: str) -> Steps[Run | None]:
    """Read a run whoever it belongs to."""
    rows = yield statement("run", run_id=run_id, tenant=None)
    return Run.from_row(rows[0]) if rows else None


def known(run_id: str) -> Steps[Run]:
    """Read a run that this transaction has just written."""
    run = yield from own(run_id)
    if run is None:
        raise errors.OutliveError(f"Run {run_id} vanished inside a transaction.", run_id=run_id)
    return run


def visible(run_id: str, tenant: str | None) -> Steps[Run]:
    """Read a run as ``tenant`` sees it (None sees all); raises ``NotFound``."""
    rows = yield statement("run", run_id=run_id, tenant=tenant)
    if not rows:
        raise errors.NotFound(f"There is no run {run_id}.", run_id=run_id)
    return Run.from_row(rows[0])


def claim_one(run_id: str, thread_id: str, offer: Offer) -> Steps[bool]:
    """Claim one run whose thread row is locked, and open the attempt in its log."""
    rows = yield statement(
        "claim",
        run_id=run_id,
        claim_token=offer.claim_token,
        worker=offer.worker,
        lease_ms=millis(offer.lease),
    )
    if not rows:
        return False
    holder = Claim(run_id=run_id, thread_id=thread_id, epoch=rows[0]["epoch"], claim_token=offer.claim_token)
    yield from _open(holder, rows[0]["last_seq"], millis(offer.lease))
    return True


def opening(epoch: int) -> NewEvent:
    """The event with which an attempt begins."""
    return NewEvent(kind=EventKind.ATTEMPT, payload=json.dumps({"epoch": epoch}))


def _open(holder: Claim, last_seq: int, lease_ms: int) -> Steps[None]:
    stored = yield append_to(holder, (opening(holder.epoch),), last_seq, lease_ms)
    if not stored:
        # The lease was over before the attempt was in the log: without this the run would be driven and
        # its log would never say so.
        raise errors.Fenced(LATE, run_id=holder.run_id)


def append_to(holder: Claim, batch: Sequence[NewEvent], expected: int, lease_ms: int) -> Statement:
    """Append ``batch`` after ``expected`` if the claim stands; no row if it does not."""
    return statement(
        "append",
        run_id=holder.run_id,
        thread_id=holder.thread_id,
        epoch=holder.epoch,
        claim_token=holder.claim_token,
        expected=expected,
        count=len(batch),
        events=tuple(batch),
        lease_ms=lease_ms,
    )


def already_stored(run_id: str, batch: Sequence[NewEvent], expected: int) -> Steps[bool]:
    """Say whether exactly ``batch``, and nothing more, stands in the log after ``expected``."""
    rows = yield statement("events_after", run_id=run_id, after=expected, limit=len(batch) + 1)
    found = [(row["kind"], row["mode"], row["payload"]) for row in rows]
    return found == [(event.kind.value, event.mode, event.payload) for event in batch]


def finish(run: Run, verdict: Verdict, *, source: State, step: int = 0) -> Steps[None]:
    """End a run whose thread lock is held; raises ``Fenced`` if the row is not as it was read."""
    effects = None
    if run.epoch:  # else it never ran
        effects = yield from effect_steps.close(run, verdict)
        verdict = dataclasses.replace(verdict, position=Position.UNKNOWN)  # its holder alone could look
    rows = yield finish_as(
        verdict,
        thread_id=run.thread_id,
        run_id=run.run_id,
        epoch=run.epoch,
        source=source,
        expected=run.last_seq,
        claim_token=None,
        step=step,
        effects=effects,
    )
    if not rows:
        raise errors.Fenced(LATE, run_id=run.run_id)


def finish_as(
    verdict: Verdict,
    *,
    thread_id: str,
    run_id: str,
    epoch: int,
    source: State,
    expected: int,
    claim_token: str | None,
    step: int,
    effects: Mapping[str, Any] | None = None,
) -> Statement:
    """State, result and end event in one statement; with a ``claim_token`` it also proves the lease."""
    failpoints.reach("finish")
    events = (*verdict.tail, end_event(verdict, effects))
    return statement(
        "finish",
        thread_id=thread_id,
        run_id=run_id,
        epoch=epoch,
        from_state=source.value,
        claim_token=claim_token,
        state=verdict.state.value,
        reason=verdict.reason.value if verdict.reason else None,
        output=verdict.output,
        error=verdict.error,
        detail=verdict.detail,
        position=verdict.position.value if verdict.position else None,
        **{"raise": step},
        expected=expected,
        count=len(events),
        events=events,
    )


def end_event(verdict: Verdict, effects: Mapping[str, Any] | None = None) -> NewEvent:
    """The terminal event of a run: everything a client needs to know how it ended, and what it executed."""
    payload: dict[str, Any] = {
        "state": verdict.state.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "error": None if verdict.error is None else json.loads(verdict.error),
        "closed": True,
    }
    if effects is not None:
        payload["effects"] = effects
    if verdict.artifacts:
        payload["artifacts"] = [artifact.entry() for artifact in verdict.artifacts]
    return NewEvent(kind=EventKind.END, payload=json.dumps(payload, separators=(",", ":")))
