"""The moves of a run as transactions: one function per move of ``states.MOVES``.

Each function is a *script*: a generator that yields statements and is sent their rows.  A store runs it in
one transaction; it knows nothing of connections, threads or dialects, so the same code serves SQLite,
PostgreSQL and the simulation, and a test can stand between any two statements.

Every script may be run again after a lost reply: ids and claim tokens are minted by the caller, and a script
that finds its own work already done reads it back instead of repeating it.

Locks: the thread's row first, then the run's, then the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import assert_never

from outlive import admission, errors, failpoints
from outlive.model import (
    Admitted,
    Appended,
    Claim,
    EventKind,
    NewEvent,
    Offer,
    Row,
    Run,
    Stop,
    StopOutcome,
    Submission,
    Submitted,
    Suspect,
    Swept,
    Verdict,
    millis,
)
from outlive.policy import Recovery
from outlive.states import Reason, State
from outlive.store.script import Statement, Steps, script, statement

LATE = "The executor came back after its run had moved on; nothing was written."


# ---------------------------------------------------------------- command


@script()
def submit(new: Submission, offer: Offer | None) -> Steps[Submitted]:
    """Make a run of ``new``, or find the run that already answers it.

    Raises ``KeyConflict``, ``ThreadBusy``.  With an ``offer`` the run goes straight to running when
    nothing on its thread or in the queue stands before it.
    """
    repeated = yield from _own(new.run_id)
    if repeated is not None:
        return Submitted(run=repeated, admitted=Admitted.CREATED, claimed=_took(repeated, offer))
    before: Run | None = None
    if new.key is not None:
        before = yield from _take_key(new, new.key)
        if before is not None:
            intent = admission.same_intent(before.state, before.reason)
            match intent:
                case admission.SameIntent.ATTACH:
                    return Submitted(run=before, admitted=Admitted.ATTACHED)
                case admission.SameIntent.REPLAY:
                    return Submitted(run=before, admitted=Admitted.REPLAYED)
                case admission.SameIntent.CONTINUE:
                    pass
                case _:
                    assert_never(intent)
    return (yield from _insert(new, before, offer))


def _own(run_id: str) -> Steps[Run | None]:
    rows = yield statement("run", run_id=run_id, tenant=None)
    return Run.from_row(rows[0]) if rows else None


def _took(run: Run, offer: Offer | None) -> bool:
    return offer is not None and run.claim_token == offer.claim_token and run.state is State.RUNNING


def _take_key(new: Submission, key: str) -> Steps[Run | None]:
    """Take the key for ``new``, or return the run that it points to, read under its thread's lock."""
    fresh = yield statement(
        "take_key", tenant=new.tenant, key=key, fingerprint=new.fingerprint, run_id=new.run_id
    )
    if fresh:
        return None
    while True:
        row = (yield statement("read_key", tenant=new.tenant, key=key))[0]
        if row["fingerprint"] != new.fingerprint:
            raise errors.KeyConflict(run_id=row["run_id"], field="Idempotency-Key")
        run = yield from _own(row["run_id"])
        if run is None:
            raise errors.OutliveError("An idempotency key points to no run.", run_id=row["run_id"])
        yield statement("lock_thread", thread_id=run.thread_id)
        again = (yield statement("read_key", tenant=new.tenant, key=key))[0]
        if again["run_id"] == run.run_id:
            return (yield from _own(run.run_id))


def _insert(new: Submission, before: Run | None, offer: Offer | None) -> Steps[Submitted]:
    external = before.thread if before else (new.thread or new.run_id)
    place = (yield statement("enter_thread", thread_id=new.run_id, tenant=new.tenant, thread=external))[0]
    live = yield statement("live_runs", thread_id=place["thread_id"])
    decision = admission.admit(
        [admission.LiveRun(run_id=row["run_id"], state=State(row["state"])) for row in live], new.policy
    )
    if isinstance(decision, admission.Reject):
        raise errors.ThreadBusy(run_id=decision.run_id)
    yield statement("insert_run", **_columns(new, before, place))
    if new.key is not None and before is not None:
        yield statement("point_key", tenant=new.tenant, key=new.key, run_id=new.run_id, seen=before.run_id)
    if new.viewer is not None:
        yield statement("join", viewer=new.viewer, run_id=new.run_id, lease_ms=VIEWER_LEASE_MS, last_seq=0)
    if offer is not None and decision.at_once and new.not_before is None:
        yield from _start_at_once(new.run_id, place["thread_id"], offer)
    run = yield from _own(new.run_id)
    assert run is not None
    admitted = Admitted.CONTINUED if before else Admitted.CREATED
    return Submitted(run=run, admitted=admitted, claimed=_took(run, offer))


VIEWER_LEASE_MS = 15_000


def _columns(new: Submission, before: Run | None, place: Row) -> dict[str, object]:
    return {
        "run_id": new.run_id,
        "tenant": new.tenant,
        "thread_id": place["thread_id"],
        "agent": new.agent,
        "pos": place["pos"],
        "not_before": None if new.not_before is None else millis(new.not_before),
        "input": new.input,
        "metadata": new.metadata,
        "policy": new.policy.to_json(),
        "on_disconnect": new.policy.on_disconnect.value,
        "grace_ms": millis(new.policy.grace),
        "recovery": new.policy.recovery.value,
        "max_losses": new.policy.max_losses,
        "origin": before.origin if before else new.run_id,
        "continues": before.run_id if before else None,
    }


def _start_at_once(run_id: str, thread_id: str, offer: Offer) -> Steps[None]:
    waiting = yield statement("older_claimable", agents=list(offer.agents), run_id=run_id)
    if not waiting:
        yield from _claim(run_id, thread_id, offer)


@script()
def stop(run_id: str, tenant: str | None, reason: Reason, only_unwatched: bool = False) -> Steps[Stop]:
    """Ask a run to stop: a queued run ends now, a running one is told, an ended one is reported.

    ``only_unwatched`` re-checks, under the lock, that nobody watches; a viewer who came back keeps it.
    Raises ``NotFound``.
    """
    found = yield from _visible(run_id, tenant)
    yield statement("lock_thread", thread_id=found.thread_id)
    run = yield from _visible(run_id, tenant)
    if run.state.terminal:
        return Stop(run=run, outcome=StopOutcome.ALREADY)
    if only_unwatched and not (yield statement("is_unwatched", run_id=run_id)):
        return Stop(run=run, outcome=StopOutcome.ALREADY)
    if run.state is State.QUEUED:
        verdict = Verdict(state=State.STOPPED, reason=reason)
        yield from finish(run, verdict, source=State.QUEUED)
        return Stop(run=(yield from _visible(run_id, tenant)), outcome=StopOutcome.STOPPED)
    yield statement("request_stop", run_id=run_id, reason=reason.value)
    return Stop(run=(yield from _visible(run_id, tenant)), outcome=StopOutcome.REQUESTED)


def _visible(run_id: str, tenant: str | None) -> Steps[Run]:
    rows = yield statement("run", run_id=run_id, tenant=tenant)
    if not rows:
        raise errors.NotFound(f"There is no run {run_id}.", run_id=run_id)
    return Run.from_row(rows[0])


# ---------------------------------------------------------------- execution


@script()
def claim(offers: Sequence[Offer]) -> Steps[list[Run]]:
    """Take up to one run per offer, in queue order; returns the runs taken, with their attempt event."""
    agents = list(offers[0].agents)
    taken: list[Run] = []
    waiting = yield statement("claimable", agents=agents, limit=4 * len(offers) + 16)
    for row in waiting:
        if len(taken) == len(offers):
            break
        if not (yield statement("try_lock_thread", thread_id=row["thread_id"])):
            continue
        if (yield from _claim(row["run_id"], row["thread_id"], offers[len(taken)])):
            run = yield from _own(row["run_id"])
            assert run is not None
            taken.append(run)
    return taken


def _claim(run_id: str, thread_id: str, offer: Offer) -> Steps[bool]:
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
    opening = NewEvent(kind=EventKind.ATTEMPT, payload=json.dumps({"epoch": holder.epoch}))
    yield _append(holder, (opening,), rows[0]["last_seq"], millis(offer.lease))
    return True


@script(single=True)
def append(holder: Claim, batch: Sequence[NewEvent], expected: int, lease: float) -> Steps[Appended]:
    """Append ``batch`` after ``expected``, extending the lease by ``lease`` seconds; raises ``Fenced``."""
    rows = yield _append(holder, batch, expected, millis(lease))
    if rows:
        return Appended(
            last_seq=rows[0]["last_seq"],
            stop_requested=rows[0]["stop_requested_at"] is not None,
            stop_reason=_reason(rows[0]["stop_reason"]),
        )
    run = yield from _own(holder.run_id)
    # Only the holder of this claim appends, one batch at a time: if the log stands exactly one batch
    # further under the same claim, this is our own write whose reply was lost.
    if _mine(run, holder) and run is not None and run.last_seq == expected + len(batch):
        return Appended(
            last_seq=run.last_seq,
            stop_requested=run.stop_requested_at is not None,
            stop_reason=run.stop_reason,
        )
    raise errors.Fenced(LATE, run_id=holder.run_id)


def _append(holder: Claim, batch: Sequence[NewEvent], expected: int, lease_ms: int) -> Statement:
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


def _mine(run: Run | None, holder: Claim) -> bool:
    return (
        run is not None
        and run.state is State.RUNNING
        and run.epoch == holder.epoch
        and run.claim_token == holder.claim_token
    )


@script(single=True)
def settle(holder: Claim, verdict: Verdict, expected: int, raise_epoch: bool = False) -> Steps[None]:
    """Record the holder's verdict with its last events; raises ``Fenced`` if the claim no longer stands.

    ``raise_epoch`` also shuts out the holder itself: an agent that has not returned may still write.
    """
    step = int(raise_epoch)
    rows = yield _finish(
        verdict,
        thread_id=holder.thread_id,
        run_id=holder.run_id,
        epoch=holder.epoch,
        source=State.RUNNING,
        expected=expected,
        claim_token=holder.claim_token,
        step=step,
    )
    if rows:
        return
    run = yield from _own(holder.run_id)
    ours = (
        run is not None
        and run.state is verdict.state
        and run.epoch == holder.epoch + step
        and run.claim_token == holder.claim_token
        and run.last_seq == expected + len(verdict.tail) + 1
    )
    if not ours:
        raise errors.Fenced(LATE, run_id=holder.run_id)


@script()
def hand_back(holder: Claim, tail: Sequence[NewEvent], expected: int, lease: float) -> Steps[bool]:
    """Put the run back into the queue at its place; False if a stop was requested (settle it instead).

    Raises ``Fenced``.  Events not yet stored go with it.  A repeat after a lost reply finds the claim
    gone and reports ``Fenced``: either way this executor has nothing left to do.
    """
    yield statement("lock_thread", thread_id=holder.thread_id)
    run = yield from _own(holder.run_id)
    if not _mine(run, holder) or run is None:
        raise errors.Fenced(LATE, run_id=holder.run_id)
    if run.stop_requested_at is not None:
        return False
    if tail:
        rows = yield _append(holder, tail, expected, millis(lease))
        if not rows:
            raise errors.Fenced(LATE, run_id=holder.run_id)
    rows = yield statement(
        "hand_back", run_id=holder.run_id, epoch=holder.epoch, claim_token=holder.claim_token
    )
    if not rows:
        raise errors.Fenced(LATE, run_id=holder.run_id)
    return True


@script()
def sweep(suspect: Suspect, early: bool) -> Steps[Swept]:
    """Take a run from a holder that is gone: expired by the database's clock, or ``early`` on proof.

    Nothing happens if the run was renewed, re-claimed or ended since ``suspect`` was read.
    """
    yield statement("lock_thread", thread_id=suspect.thread_id)
    rows = yield statement("lock_run", run_id=suspect.run_id)
    if not rows or rows[0]["state"] != State.RUNNING.value or rows[0]["epoch"] != suspect.epoch:
        return Swept.SPARED
    untouched = early and rows[0]["seen_at"] == suspect.renewed_at
    if not (rows[0]["expired"] or untouched):
        return Swept.SPARED
    run = yield from _own(suspect.run_id)
    assert run is not None
    if run.stop_requested_at is not None:
        verdict = Verdict(state=State.STOPPED, reason=run.stop_reason)
        yield from finish(run, verdict, source=State.RUNNING, step=1)
        return Swept.STOPPED
    if run.policy.recovery is Recovery.STOP or run.losses >= run.policy.max_losses:
        verdict = Verdict(state=State.ABANDONED, reason=Reason.LOST)
        yield from finish(run, verdict, source=State.RUNNING, step=1)
        return Swept.ABANDONED
    yield statement("requeue_lost", run_id=run.run_id, epoch=run.epoch)
    return Swept.REQUEUED


def finish(run: Run, verdict: Verdict, *, source: State, step: int = 0) -> Steps[None]:
    """End a run whose thread lock is held; raises ``Fenced`` if the row is not as it was read."""
    rows = yield _finish(
        verdict,
        thread_id=run.thread_id,
        run_id=run.run_id,
        epoch=run.epoch,
        source=source,
        expected=run.last_seq,
        claim_token=None,
        step=step,
    )
    if not rows:
        raise errors.Fenced(LATE, run_id=run.run_id)


def _finish(
    verdict: Verdict,
    *,
    thread_id: str,
    run_id: str,
    epoch: int,
    source: State,
    expected: int,
    claim_token: str | None,
    step: int,
) -> Statement:
    failpoints.reach("finish")
    events = (*verdict.tail, end_event(verdict))
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
        **{"raise": step},
        expected=expected,
        count=len(events),
        events=events,
    )


def end_event(verdict: Verdict) -> NewEvent:
    """The terminal event of a run: everything a client needs to know how it ended."""
    payload = {
        "state": verdict.state.value,
        "reason": verdict.reason.value if verdict.reason else None,
        "error": None if verdict.error is None else json.loads(verdict.error),
        "closed": True,
    }
    return NewEvent(kind=EventKind.END, payload=json.dumps(payload, separators=(",", ":")))


def _reason(text: str | None) -> Reason | None:
    return None if text is None else Reason(text)
