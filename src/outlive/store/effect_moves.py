"""The moves of an effect as transactions, and the reads of the ledger.

Which move is allowed when is in ``ledger``; a guard that safety rests on is in the statement itself.  Every
script may be run again after a lost reply: an effect's id comes from its key; who started it is in its row.

Locks: the run's row first, then the effect's, and nothing after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from outlive import errors, ledger, states
from outlive.ledger import Effect, EffectState, Kind, Step, Wish
from outlive.model import Claim, Settled, Verdict, millis
from outlive.states import Move, State
from outlive.store import effect_steps, steps
from outlive.store.script import Statement, Steps, script, statement


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What an executor shall do, and the row that says so."""

    step: Step
    effect: Effect


# ---------------------------------------------------------------- wishing and starting


@script(single=True)
def begin(holder: Claim, wish: Wish, start: bool) -> Steps[Effect | None]:
    """Take down a wish that nobody had before, and start it unless ``start`` is False.

    None says nothing: a row is there, the resource is not free, or the claim does not stand.  See ``open_``.
    """
    rows = yield _insert(holder, wish, 1, start)
    return Effect.from_row(rows[0]) if rows else None


@script()
def open_(holder: Claim, wish: Wish, start: bool) -> Steps[Opened]:
    """Find out what to do about a wish, and do it as far as one transaction can.

    No call of this effect is on its way in the caller's hands, so one that its own claim started was cut.
    ``START`` comes back only if this claim has started it: now the call must follow.  With ``start`` False
    the caller has something to ask before.  Raises ``Fenced``, ``Stopping``, ``NotApproved``.
    """
    row = yield from _newest(wish)
    cut = row is not None and _ours(row, holder)
    step = ledger.decide(row, wish, ours_cut=cut)
    if row is not None and row.state is EffectState.STARTED and (cut or not row.held):
        yield _cut(row)
    if step is Step.INTEND:
        row = yield from _intend(holder, wish, ledger.next_generation(row))
        step = ledger.decide(row, wish)
    assert row is not None
    if step is Step.HOLD and row.run_id != holder.run_id:
        yield statement("take_over_effect", effect_id=row.effect_id, **_claim(holder))
    if step not in (Step.START, Step.REPLAY):
        return Opened(step=step, effect=row)
    if not start:
        return Opened(step=step, effect=row)
    return (yield from _start(holder, wish, row))


@script()
def start(holder: Claim, wish: Wish, effect: Effect) -> Steps[Opened]:
    """Start what ``open_`` found ready; ``WAIT`` if something else came first.  Raises ``Fenced``."""
    return (yield from _start(holder, wish, effect))


def _start(holder: Claim, wish: Wish, effect: Effect) -> Steps[Opened]:
    rows = yield statement(
        "start_effect",
        effect_id=effect.effect_id,
        calls=effect.calls,
        for_ever=wish.kind is Kind.IDEMPOTENT,
        replay_within_ms=_replay_within(effect, wish),
        **_claim(holder),
    )
    if not rows:
        yield from _refuse_the_late(holder)
        return Opened(step=Step.WAIT, effect=effect)
    if wish.approval and not (yield _use_approval(wish, effect)):
        raise errors.NotApproved(
            f"Nobody has approved {wish.name} for {wish.key!r}, or not any more.", effect_id=effect.effect_id
        )
    return Opened(step=Step.START, effect=Effect.from_row(rows[0]))


def _replay_within(effect: Effect, wish: Wish) -> int | None:
    known = [ttl for ttl in (wish.key_ttl, effect.key_ttl) if ttl is not None]
    return millis(min(known) * (1 - ledger.KEY_MARGIN)) if known else None


def _use_approval(wish: Wish, effect: Effect) -> Statement:
    return statement(
        "use_approval",
        effect_id=effect.effect_id,
        tenant=wish.tenant,
        name=wish.name,
        key=wish.key,
        fingerprint=wish.fingerprint,
    )


def _intend(holder: Claim, wish: Wish, generation: int) -> Steps[Effect]:
    rows = yield _insert(holder, wish, generation, False)
    if not rows:
        yield from _refuse_the_late(holder)
    row = yield from _newest(wish)
    if row is None:
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    return row


def _insert(holder: Claim, wish: Wish, generation: int, start: bool) -> Statement:
    effect_id = ledger.effect_id(wish.tenant, wish.name, wish.key, generation)
    return statement(
        "begin_effect",
        effect_id=effect_id,
        name=wish.name,
        key=wish.key,
        generation=generation,
        provider_key=f"outlive-{effect_id}",
        fingerprint=wish.fingerprint,
        kind=wish.kind.value,
        resource=wish.resource,
        state=(EffectState.STARTED if start else EffectState.INTENDED).value,
        compensates=wish.compensates,
        key_ttl_ms=None if wish.key_ttl is None else millis(wish.key_ttl),
        inputs=wish.inputs,
        **_claim(holder),
    )


def _claim(holder: Claim) -> dict[str, object]:
    return {"run_id": holder.run_id, "epoch": holder.epoch, "claim_token": holder.claim_token}


def _ours(row: Effect, holder: Claim) -> bool:
    return (row.run_id, row.epoch, row.claim_token) == (holder.run_id, holder.epoch, holder.claim_token)


def _refuse_the_late(holder: Claim) -> Steps[None]:
    """Raise ``Fenced`` unless the claim stands and nobody asked it to stop."""
    rows = yield statement("check_fence", **_claim(holder))
    run = yield from steps.own(holder.run_id)
    if not rows or run is None:
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    if run.stop_requested_at is not None:
        raise errors.Stopping(run_id=holder.run_id)


def _newest(wish: Wish) -> Steps[Effect | None]:
    rows = yield statement("find_effect", tenant=wish.tenant, name=wish.name, key=wish.key)
    return Effect.from_row(rows[0]) if rows else None


def _by_id(effect_id: str, tenant: str | None) -> Steps[Effect | None]:
    rows = yield statement("effect", effect_id=effect_id, tenant=tenant)
    return Effect.from_row(rows[0]) if rows else None


# ---------------------------------------------------------------- what came of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a call came to: a result, or the reason why it definitely had no effect.  Both are JSON text."""

    result: str | None = None
    error: str | None = None

    @property
    def state(self) -> EffectState:
        """What the effect is then."""
        return EffectState.DONE if self.error is None else EffectState.FAILED

    def evidence(self) -> str:
        """The same as a late holder may leave it."""
        return json.dumps({"result": self.result, "error": self.error})


@script()
def finish(holder: Claim, effect: Effect, answer: Answer) -> Steps[bool]:
    """Store the answer of a call; False if it came too late, and only the evidence could be kept."""
    rows = yield statement(
        "finish_effect",
        effect_id=effect.effect_id,
        state=answer.state.value,
        result=answer.result,
        error=answer.error,
        calls=effect.calls,
        **_claim(holder),
    )
    if rows:
        if rows[0]["compensates"] and answer.error is None:
            yield statement("compensate_effect", effect_id=rows[0]["compensates"])
        return True
    now = yield from _by_id(effect.effect_id, None)
    if now is not None and _ours(now, holder) and now.state is answer.state and now.calls == effect.calls:
        return True  # a repeat after a lost reply
    yield statement(
        "store_evidence", effect_id=effect.effect_id, evidence=answer.evidence(), calls=effect.calls
    )
    if now is not None and now.due == "compensate":
        yield from again(now)
    return False


@script(single=True)
def finish_plainly(holder: Claim, effect: Effect, answer: Answer) -> Steps[bool]:
    """The common case of ``finish`` in one statement; False says nothing."""
    rows = yield statement(
        "finish_effect",
        effect_id=effect.effect_id,
        state=answer.state.value,
        result=answer.result,
        error=answer.error,
        calls=effect.calls,
        **_claim(holder),
    )
    return bool(rows)


def _cut(effect: Effect) -> Statement:
    return statement("cut_effect", effect_id=effect.effect_id, calls=effect.calls)


@script(single=True)
def cut(effect: Effect) -> Steps[bool]:
    """Note that a call was cut in flight: its effect may or may not have happened.  False if it was over."""
    return bool((yield _cut(effect)))


# ---------------------------------------------------------------- finding out afterwards


@script()
def settle(effect_id: str, tenant: str | None, executed: bool, result: str | None, by: str) -> Steps[Effect]:
    """Say what became of an effect that was cut in flight; raises ``NotFound``, ``AlreadySettled``.

    What has executed is compensated if its run has ended so that it must be; what has not may be called.
    """
    found = yield from _by_id(effect_id, tenant)
    if found is None:
        raise errors.NotFound(f"There is no effect {effect_id}.", field="effect_id")
    state = EffectState.RECONCILED if executed else EffectState.INTENDED
    if found.state is state and found.settled_by == by:
        return found  # a repeat after a lost reply
    if found.known is not EffectState.UNKNOWN:
        raise errors.AlreadySettled(f"Effect {effect_id} is {found.known}.", effect_id=effect_id)
    if found.state is EffectState.STARTED:
        yield _cut(found)
    yield from _settled(found, state, result, None, by)
    if found.due == "compensate":
        yield from again(found)
    return (yield from _by_id(effect_id, None)) or found


def again(effect: Effect, cause: str = "") -> Steps[str]:
    """Have the aftermath of an effect's run seen to once more; returns the run that does."""
    run = yield from steps.own(effect.run_id)  # None: its thread was deleted
    cause = cause or f"{effect.effect_id}/{effect.calls}"
    return (yield from effect_steps.enter_aftermath(run or effect, cause))


@script()
def retry(effect_id: str, tenant: str | None, cause: str) -> Steps[str]:
    """Have what an end released or has to undo tried again; raises ``NotFound``, ``AlreadySettled``."""
    found = yield from _by_id(effect_id, tenant)
    if found is None:
        raise errors.NotFound(f"There is no effect {effect_id}.", field="effect_id")
    if found.due is None:
        raise errors.AlreadySettled(f"Nothing is due for effect {effect_id}.", effect_id=effect_id)
    return (yield from again(found, cause))


@script()
def reconcile(effect: Effect, answer: Answer | None, by: str) -> Steps[None]:
    """Record what an executor found out: an answer, or (None) that nothing was executed."""
    if answer is None:
        yield from _settled(effect, EffectState.INTENDED, None, None, by)
        return
    state = EffectState.RECONCILED if answer.error is None else EffectState.FAILED
    yield from _settled(effect, state, answer.result, answer.error, by)


def _settled(
    effect: Effect, state: EffectState, result: str | None, error: str | None, by: str
) -> Steps[None]:
    yield statement(
        "settle_effect",
        effect_id=effect.effect_id,
        state=state.value,
        result=result,
        error=error,
        by=by,
        calls=effect.calls,
    )


@script()
def approve(
    approval_id: str, *, tenant: str, name: str, key: str, fingerprint: str | None, by: str, lasts: float
) -> Steps[str]:
    """Allow one effect of this name and key, started within ``lasts`` seconds; returns the approval's id."""
    yield statement(
        "grant_approval",
        approval_id=approval_id,
        tenant=tenant,
        name=name,
        key=key,
        fingerprint=fingerprint,
        granted_by=by,
        lasts_ms=millis(lasts),
    )
    return approval_id


# ---------------------------------------------------------------- the end of a run that had effects


@script()
def settle_run(holder: Claim, verdict: Verdict, expected: int, raise_epoch: bool = False) -> Steps[Settled]:
    """Like ``moves.settle``, for a run that may have had effects: they end with it.  Raises ``Fenced``."""
    if not states.allowed(Move.SETTLE, State.RUNNING, verdict.state):
        raise ValueError(f"a holder cannot settle a run as {verdict.state}")
    yield statement("lock_thread", thread_id=holder.thread_id)
    yield statement("lock_run", run_id=holder.run_id)
    run = yield from steps.own(holder.run_id)
    if run is None:  # its thread was deleted
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    step = int(raise_epoch)
    if run.state is verdict.state and run.claim_token == holder.claim_token:
        if run.epoch == holder.epoch + step and run.last_seq == expected + len(verdict.tail) + 1:
            return Settled(others_wait=True)  # a repeat after a lost reply
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    if run.state is not State.RUNNING or run.epoch != holder.epoch:
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    effects = yield from effect_steps.close(run, verdict)
    rows = yield steps.finish_as(
        verdict,
        thread_id=holder.thread_id,
        run_id=holder.run_id,
        epoch=holder.epoch,
        source=State.RUNNING,
        expected=expected,
        claim_token=holder.claim_token,
        step=step,
        effects=effects,
    )
    if not rows:
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    return Settled(others_wait=bool(rows[0]["others_wait"]) or bool(effects and "aftermath" in effects))
