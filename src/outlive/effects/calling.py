"""Executes an effect once: asks the ledger, calls, stores the answer, and finds out what was cut.

Decides the order in which an unknown outcome is looked into: what a late executor left, the same call with
the same key while the provider knows it, a look-up, and at last a person.  Never a second call on a guess.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tenacity

from outlive import agents, encoding, errors, failpoints, ledger, signals, spans
from outlive.effects import asking, attempt, errand
from outlive.effects.asking import Asked, Call, Key
from outlive.effects.attempt import Ledger
from outlive.lease import Halt
from outlive.ledger import Effect, EffectState, Kind, Step
from outlive.policy import Durability, OnUnknown
from outlive.store import effect_moves, wakeup
from outlive.store.effect_moves import Answer, Opened

FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
"""Seconds between two identical calls: the first pause, and the longest."""
UNTIL_CUT = 10.0
"""Seconds that an effect which may not start waits for its stopped agent to be cut."""


class _Again(Exception):
    """The identical call may be made once more."""


class _Cut(Exception):
    """The call came to nothing that can be relied upon; its row says so."""


async def once(
    name: str,
    *,
    key: Key,
    call: Callable[..., Any],
    inputs: Any = None,
    kind: Kind | str = Kind.IRREVERSIBLE,
    key_ttl: float | None = None,
    lookup: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    authorize: Callable[..., Any] | None = None,
    approval: bool = False,
    resource: str | None = None,
    lands_within: float = 60.0,
    again_after_failure: bool = False,
    budget: float = 30.0,
) -> Any:
    """Have an effect executed once for its business ``key``, by whoever asks for it, and return its result.

    ``call`` makes it, with the `Call` if it takes an argument, and returns what JSON can hold; every attempt
    gets the same value.  ``inputs`` must be the same each time the key is used.  ``kind`` is a `ledger.Kind`;
    a deferrable effect is only taken down (the result is None) and executed once its run has succeeded, by
    what `effects.effect` declared under its name.

    What was cut in flight is called again with the same ``Call.provider_key`` while the provider knows it,
    which is for ``key_ttl`` seconds (None: it honours no keys); else ``lookup`` returns the result, or raises
    `NotExecuted`, which is believed ``lands_within`` seconds after the cut; else the run waits for a person,
    or fails, as its policy says.  ``budget``: seconds for which an identical call is repeated.

    ``authorize`` is asked right before each start; with ``approval`` a person must have approved this name
    and key, and that is used up.  Of one ``resource`` nothing starts while another is unsettled.
    ``compensate`` undoes the effect, as the policy says.  ``again_after_failure``: after a definite failure
    it is tried as a new one.

    Raises ``InvalidInput`` before anything runs, ``EffectConflict``, ``NotApproved``, ``EffectFailed``,
    ``EffectUnknown``, ``EffectBusy``, ``Fenced``, and what ``call`` raises if that proves that it had none.
    """
    current = attempt.current()
    asked = asking.ask(
        asking.in_coroutine,
        name,
        key=key,
        tenant=current.run.tenant,
        origin=current.run.origin,
        call=call,
        inputs=inputs,
        kind=kind,
        key_ttl=key_ttl,
        lookup=lookup,
        compensate=compensate,
        authorize=authorize,
        approval=approval,
        resource=resource,
        lands_within=lands_within,
        again_after_failure=again_after_failure,
        budget=budget,
    )
    return await execute(current, asked)


def once_in_thread(
    name: str,
    *,
    key: Key,
    call: Callable[..., Any],
    inputs: Any = None,
    kind: Kind | str = Kind.IRREVERSIBLE,
    key_ttl: float | None = None,
    lookup: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    authorize: Callable[..., Any] | None = None,
    approval: bool = False,
    resource: str | None = None,
    lands_within: float = 60.0,
    again_after_failure: bool = False,
    budget: float = 30.0,
) -> Any:
    """Like `once`, from a thread: for a sync node, or a tool.  ``call`` and the others run in this thread.

    A thread cannot be cut: its call comes to its end even if its run is stopped, and that is recorded.
    """
    current = attempt.current()
    if threading.get_ident() == current.thread:
        raise errors.Misconfigured(
            "An effect must not block the event loop.", hint="Await effects.once, or go into a thread."
        )
    sent = errand.Errand(current.loop)
    asked = asking.ask(
        sent.carried,
        name,
        key=key,
        tenant=current.run.tenant,
        origin=current.run.origin,
        call=call,
        inputs=inputs,
        kind=kind,
        key_ttl=key_ttl,
        lookup=lookup,
        compensate=compensate,
        authorize=authorize,
        approval=approval,
        resource=resource,
        lands_within=lands_within,
        again_after_failure=again_after_failure,
        budget=budget,
    )
    return sent.run(lambda: current.spawn(execute(current, asked)))


# ---------------------------------------------------------------- the engine


async def execute(current: Ledger, asked: Asked) -> Any:
    """Do what `once` promises, within the attempt of ``current``."""
    if current.run.policy.durability is Durability.EXIT:
        raise errors.Misconfigured(
            "A graph that has effects must write its checkpoints as it goes.",
            hint="Declare durability sync or async in the agent's policy.",
        )
    if (asked.wish.name, asked.wish.key) in asking.WITHIN.get():
        raise errors.Misconfigured(
            f"The effect {asked.wish.name} wants itself.", hint="Give each its own key."
        )
    repeated = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_Again), **_bounds(current, asked.budget), reraise=True
    )
    try:
        with current.during(spans.Effecting(name=asked.wish.name, run_id=current.run.run_id)):
            async with current.alone(asked.wish.name, asked.wish.key):
                try:
                    return await repeated(_try, current, asked, asked.wish)
                except _Again:
                    return await _try(current, asked, _without_replay(asked.wish))
    except errors.Stopping:
        await current.cut_short(UNTIL_CUT)
        raise


def _bounds(current: Ledger, budget: float) -> dict[str, Any]:
    """Pauses that double and differ, until the budget is spent; by this process's clock and dice.

    Both may be a simulation's, which is why the library's own are not used.
    """
    ends = current.local.monotonic() + budget

    def pause(state: tenacity.RetryCallState) -> float:
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(state.attempt_number, 20))
        return longest * (0.5 + current.local.random() / 2)

    return {"wait": pause, "stop": lambda _: current.local.monotonic() >= ends, "sleep": asyncio.sleep}


def _without_replay(wish: ledger.Wish) -> ledger.Wish:
    kind = Kind.IRREVERSIBLE if wish.kind is Kind.IDEMPOTENT else wish.kind
    return replace(wish, key_ttl=None, kind=kind)


_OVER = frozenset({Step.ANSWER, Step.HOLD, Step.FAIL, Step.CONFLICT})


async def _try(current: Ledger, asked: Asked, wish: ledger.Wish) -> Any:
    """Go from step to step until there is a result; raises ``_Again`` where only time can help."""
    told, cause, ends = False, None, current.local.monotonic() + asked.budget
    with current.store.hub.watch(attempt.topic(wish.tenant, wish.name, wish.key)) as waiter:
        while True:
            waiter.clear()
            if current.closing:  # only in a thread's stead: a coroutine would have been cancelled
                raise errors.Stopping(run_id=current.run.run_id)
            opened = await _opened(current, asked, wish)
            if opened.step in _OVER:
                return _over(opened)
            if opened.step is Step.START:
                try:
                    return await _called(current, asked, wish, opened.effect)
                except _Cut as cut:
                    cause = cut.__cause__
                    continue
            if opened.step is Step.WAIT and opened.effect.state in ledger.EXECUTED:
                _still_patient(current, opened.effect, ends)
            try:
                told = await _found_out(current, asked, opened, waiter, told)
            except errors.EffectUnknown as unknown:
                raise unknown from cause


def _still_patient(current: Ledger, effect: Effect, ends: float) -> None:
    """Raise ``EffectBusy`` after a while: whoever waits here holds a slot that the other run may need."""
    if current.local.monotonic() > ends:
        raise errors.EffectBusy(
            f"The effect {effect.name} was executed by a run that may yet undo it.",
            effect_id=effect.effect_id,
        )


def _over(opened: Opened) -> Any:
    """Return the result that is on record; raises ``EffectFailed`` or ``EffectConflict`` if there is none."""
    effect = opened.effect
    spans.CURRENT.get().say(effect_id=effect.effect_id, ledger=opened.step.value, state=effect.state.value)
    if opened.step is Step.FAIL:
        raise _failure(effect)
    if opened.step is Step.CONFLICT:
        raise errors.EffectConflict(effect_id=effect.effect_id, field="inputs")
    return None if opened.step is Step.HOLD else agents.restored(effect.result or "null")


async def _found_out(
    current: Ledger, asked: Asked, opened: Opened, waiter: wakeup.Waiter, told: bool
) -> bool:
    """Do what can be done about an open outcome, or wait for others; says whether a person was told."""
    if opened.step is Step.TAKE_EVIDENCE:
        await take_evidence(current, opened.effect)
        return told
    if opened.step is Step.LOOK_UP:
        found = await looked_up(current, asked, opened.effect)
        if found:
            return told
        if found is None:
            told = _ask_around(current, opened.effect, told)
    if opened.step is Step.ASK:
        told = _ask_around(current, opened.effect, told)
    await waiter.wait()
    return told


async def _opened(current: Ledger, asked: Asked, wish: ledger.Wish) -> Opened:
    """Ask the ledger, and then whoever else must be asked before a call may begin."""
    asks = asked.authorize is not None or wish.approval
    start = not asks and wish.kind is not Kind.DEFERRABLE
    failpoints.reach("effects.wished")
    begun = await current.write(effect_moves.begin(current.claim, wish, start))
    if begun is not None and start:
        return Opened(step=Step.START, effect=begun)
    opened = await current.write(effect_moves.open_(current.claim, wish, not asks))
    if asks and opened.step in (Step.START, Step.REPLAY):
        failpoints.reach("effects.intended")
        if asked.authorize is not None and not await asked.authorize(Call.of(opened.effect)):
            raise errors.NotApproved(
                f"The effect {wish.name} is not allowed now.", effect_id=opened.effect.effect_id
            )
        return await current.write(effect_moves.start(current.claim, wish, opened.effect))
    return opened


async def _called(current: Ledger, asked: Asked, wish: ledger.Wish, effect: Effect) -> Any:
    """Make the call of an effect that was started, and store what it came to."""
    failpoints.reach("effects.guarded")
    if not current.trusted:  # frozen since the guard, say: somebody else may be at it
        current.held.end(Halt.LOST)
        raise errors.Fenced(run_id=current.run.run_id, effect_id=effect.effect_id)
    failpoints.reach("effects.call")
    try:
        with asking.calling(Call.of(effect)):
            value = await _identical(current, asked, effect)
    except Exception as failure:
        await _cut_off(current, asked, wish, effect, failure)
        raise
    except BaseException:
        spans.CURRENT.get().say(effect_id=effect.effect_id, state=EffectState.UNKNOWN.value)
        current.leave_unknown(effect)  # not awaited: this task is being cancelled
        raise
    answer, value = attempt.answer_of(value, current)
    await asyncio.shield(current.spawn(current.finish(effect, answer)))
    return value


async def _identical(current: Ledger, asked: Asked, effect: Effect) -> Any:
    """Make the call, and the identical one again while the provider still works on its key."""
    repeated = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(
            lambda failure: isinstance(failure, asking.KeyInUse) and current.trusted and not current.closing
        ),
        **_bounds(current, asked.budget),
        reraise=True,
    )
    return await repeated(asked.run, Call.of(effect))


async def _cut_off(
    current: Ledger, asked: Asked, wish: ledger.Wish, effect: Effect, failure: Exception
) -> None:
    """Record a call that raised; returns if the failure is definite and shall be seen by the agent."""
    definite = asked.definite or asking.definitely_without_effect
    if definite(failure):
        error = encoding.encode({"type": type(failure).__name__}).text
        await asyncio.shield(current.spawn(current.finish(effect, Answer(error=error))))
        return
    await asyncio.shield(current.spawn(current.mark_unknown(effect)))
    if wish.kind is Kind.IDEMPOTENT or ledger.remembered(effect, wish.key_ttl):
        raise _Again from failure
    current.note("effect_cut", f"The effect {wish.name} ended with {type(failure).__name__}.")
    raise _Cut from failure


def _failure(effect: Effect) -> errors.EffectFailed:
    what = json.loads(effect.error or "null")
    kind = what.get("type", "an error") if isinstance(what, dict) else "an error"
    return errors.EffectFailed(
        f"The effect {effect.name} was not executed: it ended with {kind}.", effect_id=effect.effect_id
    )


# ---------------------------------------------------------------- finding out


async def take_evidence(current: Ledger, effect: Effect) -> None:
    """Believe what an executor left that had the provider's answer and no longer the run."""
    left = json.loads(effect.evidence or "{}")
    answer = Answer(result=left.get("result"), error=left.get("error"))
    await current.write(effect_moves.reconcile(effect, answer, "evidence"))


async def looked_up(current: Ledger, asked: Asked, effect: Effect) -> bool | None:
    """Ask the provider what became of it; False if it is too early to believe it, None if it did not tell."""
    assert asked.look_up is not None
    try:
        value = await asked.look_up(Call.of(effect))
    except asking.NotExecuted:
        if not ledger.landed(effect, asked.wish):
            return False
        await current.write(effect_moves.reconcile(effect, None, "lookup"))
        return True
    except Exception as failure:
        current.note("effect_lookup_failed", f"Looking {effect.name} up ended with {type(failure).__name__}.")
        return None
    answer, _ = attempt.answer_of(value, current)
    await current.write(effect_moves.reconcile(effect, answer, "lookup"))
    return True


def _ask_around(current: Ledger, effect: Effect, told: bool) -> bool:
    """Wait for a person, saying so once; or raise ``EffectUnknown``, as the policy says."""
    if current.run.policy.on_unknown is OnUnknown.FAIL:
        raise errors.EffectUnknown(
            f"The effect {effect.name} may have been executed.", effect_id=effect.effect_id
        )
    if not told:
        hint = f"outlive effects settle {effect.effect_id}"
        current.note("effect_unknown", f"The effect {effect.name} was cut in flight. Settle it: {hint}")
        current.tell(
            signals.EffectWaits(run_id=current.run.run_id, effect_id=effect.effect_id, name=effect.name)
        )
    return True
