"""The moves of a run as transactions: one function per move of ``states.MOVES``.

Each function is a *script*: a generator that yields statements and is sent their rows.  A store runs it in
one transaction; it knows nothing of connections, threads or dialects, so the same code serves SQLite,
PostgreSQL and the simulation, and a test can stand between any two statements.

Every script may be run again after a lost reply: ids and claim tokens are minted by the caller, and a script
that finds its own work already done reads it back instead of repeating it.

Locks: the thread's row first, then the run's, then the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import assert_never

from outlive import admission, errors, states
from outlive.model import (
    Admitted,
    Appended,
    Claim,
    NewEvent,
    Offer,
    Row,
    Run,
    Settled,
    Stop,
    StopOutcome,
    Stored,
    Submission,
    Submitted,
    Suspect,
    Swept,
    Verdict,
    millis,
)
from outlive.policy import Recovery
from outlive.states import Move, Reason, State
from outlive.store import displacing, quotas, standings, steps
from outlive.store.script import Steps, script, statement

# ---------------------------------------------------------------- command


@script(single=True)
def begin(new: Submission, offer: Offer | None) -> Steps[Submitted | None]:
    """Make a run that names no thread, in one statement; None if its key is taken, or a repeat finds it made.

    Then ``submit`` answers.
    """
    columns = {**_columns(new, None, {"thread_id": _thread_id(new), "pos": 1}), **_claim_columns(new, offer)}
    rows = yield statement("insert_run", **columns, fresh=True)
    return _again(_inserted(rows[0], new.run_id), new, offer) if rows else None


@script()
def submit(new: Submission, offer: Offer | None) -> Steps[Submitted]:
    """Make a run of ``new``, or find the run that already answers it.

    Raises ``KeyConflict``, ``ThreadBusy``, ``ThreadLeft``, ``NothingToAnswer``, and ``Unlooked`` while nobody
    knows where the thread stands.  With an ``offer`` the run goes straight to running when nothing on its
    thread or in the queue stands before it.
    """
    before: Run | None = None
    if new.key is not None:
        before = yield from _take_key(new, new.key)
        if before is not None and before.run_id == new.run_id:
            return _again(before, new, offer)
        if before is not None:
            intent = admission.same_intent(before.state, before.reason, before.policy)
            match intent:
                case admission.SameIntent.ATTACH:
                    return Submitted(run=before, admitted=Admitted.ATTACHED)
                case admission.SameIntent.REPLAY:
                    return Submitted(run=before, admitted=Admitted.REPLAYED)
                case admission.SameIntent.CONTINUE:
                    if new.positioned and not (yield from _can_go_on(before)):
                        return Submitted(run=before, admitted=Admitted.REPLAYED)
                case _:
                    assert_never(intent)
    return (yield from _insert(new, before, offer))


def _can_go_on(before: Run) -> Steps[bool]:
    """Say whether a run that was cut off is still the last that its thread knows of.

    Else somebody has gone on from there, or started over, or is about to: its work may be done already.
    """
    if before.epoch == 0:
        return True
    if before.left_by not in (None, before.run_id):
        return False
    return not (yield statement("live_runs", thread_id=before.thread_id))


def _again(run: Run, new: Submission, offer: Offer | None) -> Submitted:
    """Answer a submit whose reply was lost, from the run that it made."""
    if run.tenant != new.tenant:
        raise errors.InvalidInput("This run id is taken.", field="run_id")
    admitted = Admitted.CONTINUED if run.continues else Admitted.CREATED
    return Submitted(run=run, admitted=admitted, claimed=_took(run, offer))


def _took(run: Run, offer: Offer | None) -> bool:
    return offer is not None and run.claim_token == offer.claim_token and run.state is State.RUNNING


def _take_key(new: Submission, key: str) -> Steps[Run | None]:
    """Take the key for ``new``, or return the run that it points to, read under its thread's lock."""
    while True:
        fresh = yield statement(
            "take_key", tenant=new.tenant, key=key, fingerprint=new.fingerprint, run_id=new.run_id
        )
        if fresh:
            return None
        found = yield from _keyed(new, key)
        if found is not None:
            return found


def _keyed(new: Submission, key: str) -> Steps[Run | None]:
    """Return the run that the key points to, its thread locked; None if the key moved meanwhile."""
    rows = yield statement("read_key", tenant=new.tenant, key=key)
    if not rows:
        return None
    if rows[0]["fingerprint"] != new.fingerprint:
        raise errors.KeyConflict(run_id=rows[0]["run_id"], field="key")
    run = yield from steps.own(rows[0]["run_id"])
    if run is None:  # its thread was deleted since the key was read, and the key with it
        return None
    yield statement("lock_thread", thread_id=run.thread_id)
    again = yield statement("read_key", tenant=new.tenant, key=key)
    if not again or again[0]["run_id"] != run.run_id:
        return None
    return (yield from steps.known(run.run_id))


def _insert(new: Submission, before: Run | None, offer: Offer | None) -> Steps[Submitted]:
    external = before.thread if before else (new.thread or new.run_id)
    fresh = _thread_id(new)
    place = (yield statement("enter_thread", thread_id=fresh, tenant=new.tenant, thread=external))[0]
    # Whoever takes the first place has just created the thread: nothing else can be on it.
    rows = (yield statement("live_runs", thread_id=place["thread_id"])) if place["pos"] > 1 else ()
    live = [standings.live(row) for row in rows if row["run_id"] != new.run_id]
    standing = None if before is not None and before.epoch else standings.standing(new, place)
    decision = admission.admit(live, new.policy, standing, answers=new.answers, goes_on=new.goes_on)
    if new.quotas or not isinstance(decision, admission.Accept):
        repeated = yield from steps.own(new.run_id)
        if repeated is not None:  # it has its place already, and has displaced what it displaces
            return _again(repeated, new, offer)
    if not isinstance(decision, admission.Accept | admission.Displace):
        raise standings.refusal(decision, place["thread_id"])
    if new.answers and not new.checked:
        raise standings.Unchecked(place["thread_id"])
    yield from quotas.check(new.quotas)
    columns = _columns(new, before, place)
    displaced: tuple[Run, ...] = ()
    if isinstance(decision, admission.Displace):
        displaced = yield from displacing.displace(decision.run_ids)
        columns |= yield from displacing.place(place["thread_id"], displaced)
    taking = offer if isinstance(decision, admission.Accept) and decision.at_once else None
    columns |= _claim_columns(new, taking)
    inserted = yield statement("insert_run", **columns, fresh=False)
    if not inserted:
        return _again((yield from steps.known(new.run_id)), new, offer)
    if new.key is not None and before is not None:
        yield statement("point_key", tenant=new.tenant, key=new.key, run_id=new.run_id, seen=before.run_id)
    yield from quotas.note(new.quotas, new.run_id)
    made = _again(_inserted(inserted[0], external, place), new, offer)
    return dataclasses.replace(made, displaced=displaced)


def _inserted(row: Row, thread: str, place: Row | None = None) -> Run:
    standing = {"thread_position": place["position"], "left_by": place["left_by"]} if place else _NOTHING_LEFT
    return Run.from_row({**row, "thread": thread, "position": None, **standing})


_NOTHING_LEFT = {"thread_position": None, "left_by": None}


def _thread_id(new: Submission) -> str:
    """The internal id of the thread that this submit may create: the same at each repeat, nobody else's."""
    return hashlib.sha256(f"{new.tenant}/{new.run_id}".encode()).hexdigest()[:32]


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
        "notify": new.notify,
        "traceparent": new.traceparent,
        "on_disconnect": new.policy.on_disconnect.value,
        "grace_ms": millis(new.policy.grace),
        "recovery": new.policy.recovery.value,
        "max_losses": new.policy.max_losses,
        "origin": before.origin if before else new.run_id,
        "continues": before.run_id if before else None,
        "displaces": None,
        "thread": before.thread if before else (new.thread or new.run_id),
        "key": new.key,
        "fingerprint": new.fingerprint,
        "viewer": new.viewer,
        "viewer_lease_ms": millis(new.viewer_lease),
        "opening": steps.opening(1).payload,
    }


def _claim_columns(new: Submission, offer: Offer | None) -> dict[str, object]:
    """What a run that starts at once gets; without an offer no agent matches and the run is queued."""
    return {
        "agents": list(offer.agents) if offer and new.not_before is None else [],
        "claim_token": offer.claim_token if offer else None,
        "worker": offer.worker if offer else None,
        "lease_ms": millis(offer.lease) if offer else 0,
    }


@script()
def stop(run_id: str, tenant: str | None, reason: Reason, only_unwatched: bool = False) -> Steps[Stop]:
    """Ask a run to stop: a queued run ends now, a running one is told, an ended one is reported.

    ``only_unwatched`` re-checks, under the lock, that nobody watches; a viewer who came back keeps it.
    Raises ``NotFound``.
    """
    found = yield from steps.visible(run_id, tenant)
    yield statement("lock_thread", thread_id=found.thread_id)
    run = yield from steps.visible(run_id, tenant)
    if run.state.terminal:
        return Stop(run=run, outcome=StopOutcome.ALREADY)
    if only_unwatched and not (yield statement("is_unwatched", run_id=run_id)):
        return Stop(run=run, outcome=StopOutcome.ALREADY)
    if run.state is State.QUEUED:
        verdict = Verdict(state=State.STOPPED, reason=reason)
        yield from steps.finish(run, verdict, source=State.QUEUED)
        return Stop(run=(yield from steps.known(run_id)), outcome=StopOutcome.STOPPED)
    yield statement("request_stop", run_id=run_id, reason=reason.value)
    return Stop(run=(yield from steps.known(run_id)), outcome=StopOutcome.REQUESTED)


# ---------------------------------------------------------------- execution


@script()
def claim(offers: Sequence[Offer]) -> Steps[list[Run]]:
    """Take up to one run per offer, in queue order; returns the runs taken, with their attempt event.

    An offer whose token already holds a run made that claim in a try whose reply was lost: the run is
    returned, not another one taken.  ``run.claim_token`` says which offer took which run.
    """
    before = yield statement("claimed", claim_tokens=[offer.claim_token for offer in offers])
    taken: list[Run] = []
    for row in before:
        taken.append((yield from steps.known(row["run_id"])))  # noqa: PERF401 - a yield cannot stand in a comprehension
    used = {run.claim_token for run in taken}
    free = [offer for offer in offers if offer.claim_token not in used]
    agents = sorted({agent for offer in free for agent in offer.agents})
    waiting = (yield statement("claimable", agents=agents, limit=4 * len(free) + 16)) if agents else []
    for row in waiting:
        offer = next((offer for offer in free if row["agent"] in offer.agents), None)
        if offer is None or not (yield statement("try_lock_thread", thread_id=row["thread_id"])):
            continue
        if (yield from steps.claim_one(row["run_id"], row["thread_id"], offer)):
            free.remove(offer)
            taken.append((yield from steps.known(row["run_id"])))
    return taken


@script(single=True)
def append(holder: Claim, batch: Sequence[NewEvent], expected: int, lease: float) -> Steps[Appended]:
    """Append ``batch`` after ``expected``, extending the lease by ``lease`` seconds; raises ``Fenced``."""
    rows = yield steps.append_to(holder, batch, expected, millis(lease))
    if rows:
        return Appended(
            last_seq=rows[0]["last_seq"],
            stop_requested=rows[0]["stop_requested_at"] is not None,
            stop_reason=Reason(rows[0]["stop_reason"]) if rows[0]["stop_reason"] else None,
            stored=Stored.from_row(rows[0]),
        )
    run = yield from steps.own(holder.run_id)
    ours = batch and _mine(run, holder) and (yield from steps.already_stored(holder.run_id, batch, expected))
    if ours and run is not None:
        return Appended(
            last_seq=run.last_seq,
            stop_requested=run.stop_requested_at is not None,
            stop_reason=run.stop_reason,
        )
    raise errors.Fenced(steps.LATE, run_id=holder.run_id)


def _mine(run: Run | None, holder: Claim, state: State = State.RUNNING, step: int = 0) -> bool:
    return (
        run is not None
        and run.state is state
        and run.epoch == holder.epoch + step
        and run.claim_token == holder.claim_token
    )


@script(single=True)
def settle(holder: Claim, verdict: Verdict, expected: int, raise_epoch: bool = False) -> Steps[Settled]:
    """Record the holder's verdict with its last events; raises ``Fenced`` if the claim no longer stands.

    ``raise_epoch`` also shuts out the holder itself: an agent that has not returned may still write.
    Raises ``ValueError`` for a state that no holder may settle on.
    """
    if not states.allowed(Move.SETTLE, State.RUNNING, verdict.state):
        raise ValueError(f"a holder cannot settle a run as {verdict.state}")
    step = int(raise_epoch)
    rows = yield steps.finish_as(
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
        # A raised epoch is the end event's alone: those handed over would have that of their claim.
        stored = None if raise_epoch else Stored.from_row(rows[0])
        return Settled(others_wait=bool(rows[0]["others_wait"]), stored=stored)
    run = yield from steps.own(holder.run_id)
    events = (*verdict.tail, steps.end_event(verdict))
    ours = _mine(run, holder, verdict.state, step)
    if not (ours and (yield from steps.already_stored(holder.run_id, events, expected))):
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    return Settled(others_wait=True)


@script()
def hand_back(holder: Claim, tail: Sequence[NewEvent], expected: int, lease: float) -> Steps[bool]:
    """Put the run back into the queue at its place; False if a stop was requested (settle it instead).

    Raises ``Fenced``.  Events not yet stored go with it.  After a lost reply the run is found in the queue
    under this claim, or, if somebody took it meanwhile, the repeat is refused like any late holder.
    """
    yield statement("lock_thread", thread_id=holder.thread_id)
    run = yield from steps.own(holder.run_id)
    if run is not None and _mine(run, holder, State.QUEUED) and run.last_seq == expected + len(tail):
        return True
    if run is None or not _mine(run, holder) or run.last_seq != expected:
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    if run.stop_requested_at is not None:
        return False
    if tail and not (yield steps.append_to(holder, tail, expected, millis(lease))):
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    rows = yield statement(
        "hand_back", run_id=holder.run_id, epoch=holder.epoch, claim_token=holder.claim_token
    )
    if not rows:
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
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
    run = yield from steps.known(suspect.run_id)
    if run.stop_requested_at is not None:
        verdict = Verdict(state=State.STOPPED, reason=run.stop_reason)
        yield from steps.finish(run, verdict, source=State.RUNNING, step=1)
        return Swept.STOPPED
    if run.policy.recovery is Recovery.STOP or run.losses >= run.policy.max_losses:
        verdict = Verdict(state=State.ABANDONED, reason=Reason.LOST)
        yield from steps.finish(run, verdict, source=State.RUNNING, step=1)
        return Swept.ABANDONED
    yield statement("requeue_lost", run_id=run.run_id, epoch=run.epoch)
    yield statement("cut_effects", run_id=run.run_id)
    return Swept.REQUEUED
