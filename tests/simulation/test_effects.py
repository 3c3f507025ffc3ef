"""Simulated bad days of effects that go through the ledger, and bugs in the ledger that they must notice."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from outlive import lease, ledger
from outlive.effects import aftermath, asking, attempt
from outlive.ledger import Effect, EffectState, Step
from outlive.store import effect_moves, effect_steps, sql
from outlive.store.script import Steps, script, statement
from outlive.testing.simulation import Sabotage, application, purchases, simulate
from simulation.mutations import edited

SEEDS, WITHIN = 40, 120
"""Seeds that must keep every promise, and those of which one must notice a bug."""
OWNER = "AND epoch = :epoch AND claim_token = :claim_token"
LEASE = f"AND lease_until > {sql.BOUND_CLOCK}"
SHOP = application._cast(
    application._maker(purchases.shop, purchases.POLICY),
    purchases.ORDERS,
    None,
    purchases.begin,
    purchases.check,
)
CAST = dataclasses.replace(
    SHOP,
    agents=lambda process: [*SHOP.agents(process), application.Watched(aftermath.AGENT, process)],
    policies={**SHOP.policies, aftermath.AGENT.name: effect_steps._POLICY},
)
MADE_BY_AN_END = ("from None to ('queued', 0)", "first runs for fewer keys")
"""What the checker says of runs that no submit made: the end of another did, and that is as it should be."""
_decide, _of = ledger.decide, asking.Call.of


def cut_is_failed(row: Effect | None, wish: Any, *, ours_cut: bool = False) -> Step:
    """What was cut in flight is taken for what did not happen."""
    step = _decide(row, wish, ours_cut=ours_cut)
    return Step.START if step in (Step.REPLAY, Step.LOOK_UP, Step.ASK) else step


def key_of_a_call(effect: Effect) -> asking.Call:
    """A provider key of each call's own."""
    return dataclasses.replace(_of(effect), provider_key=f"{effect.provider_key}-{effect.calls}")


def key_without_generation(effect: Effect) -> asking.Call:
    """The provider key of the first generation, for all of them."""
    first = ledger.effect_id(effect.tenant, effect.name, effect.key, 1)
    return dataclasses.replace(_of(effect), provider_key=f"outlive-{first}")


def unwritten(holder: Any, wish: Any, start: bool) -> Any:
    """The start is remembered and not written down."""

    @script()
    def begin() -> Steps[Effect | None]:
        rows = yield statement("find_effect", tenant=wish.tenant, name=wish.name, key=wish.key)
        if rows:
            return None
        made = yield effect_moves._insert(holder, wish, 1, start)
        effect = Effect.from_row(made[0]) if made else None
        if effect is not None:
            yield statement("cut_effect", effect_id=effect.effect_id, calls=effect.calls)
            yield statement(
                "settle_effect",
                effect_id=effect.effect_id,
                state=EffectState.INTENDED.value,
                result=None,
                error=None,
                by="nobody",
                calls=effect.calls,
            )
        return effect

    return begin()


def written_after(holder: Any, effect: Effect, answer: Any) -> Any:
    """The start is written down together with the answer."""

    @script()
    def finish() -> Steps[bool]:
        claim = effect_moves._claim(holder)
        replay = {"for_ever": True, "replay_within_ms": None}
        yield statement("start_effect", effect_id=effect.effect_id, calls=effect.calls, **replay, **claim)
        rows = yield statement(
            "finish_effect",
            effect_id=effect.effect_id,
            state=answer.state.value,
            result=answer.result,
            error=answer.error,
            calls=effect.calls + 1,
            **claim,
        )
        return bool(rows)

    return finish()


SURE = (
    mock.patch.object(attempt.Ledger, "trusted", new=property(lambda _: True)),
    mock.patch.object(lease.Keeper, "trust_left", return_value=3600.0),
    mock.patch.object(lease.Keeper, "_lost", return_value=None),
)
"""An executor that never doubts itself: only what it is refused by the record stops it."""
Mutation = tuple[Callable[[], Sabotage], tuple[Any, ...]]
MUTATIONS: dict[str, Mutation] = {
    "the ledger is written after the call": (
        Sabotage,
        (
            mock.patch.object(effect_moves, "begin", unwritten),
            mock.patch.object(effect_moves, "finish_plainly", written_after),
        ),
    ),
    "an unknown outcome is taken for a failure": (
        lambda: edited(("start_effect", "OR :for_ever", "OR :for_ever = :for_ever")),
        (mock.patch.object(ledger, "decide", cut_is_failed),),
    ),
    "every call has a key of its own": (
        Sabotage,
        (mock.patch.object(asking.Call, "of", staticmethod(key_of_a_call)),),
    ),
    "what was refunded and bought again has the old key": (
        Sabotage,
        (mock.patch.object(asking.Call, "of", staticmethod(key_without_generation)),),
    ),
    "a refund is forgotten by the ledger": (
        lambda: edited(("compensate_effect", "state = 'compensated', due = NULL", "due = NULL")),
        (),
    ),
    "a look-up that finds nothing is believed at once": (
        Sabotage,
        (mock.patch.object(ledger, "landed", return_value=True),),
    ),
    "the guard proves neither epoch, token, lease nor that nobody asked for a stop": (
        lambda: edited(
            *((name, OWNER, "") for name in ("begin_effect", "start_effect")),
            *((name, LEASE, "") for name in ("begin_effect", "start_effect")),
            *((name, "AND state = 'running'", "") for name in ("begin_effect", "start_effect")),
            *((name, "AND stop_requested_at IS NULL", "") for name in ("begin_effect", "start_effect")),
        ),
        SURE,
    ),
}


def effects_broken(seed: int, sabotage: Sabotage | None = None) -> list[str]:
    """What a seed's history shows of the effects."""
    result = simulate(seed, sabotage=sabotage, cast=CAST)
    own = [violation.what for violation in result.violations if violation.invariant == "own"]
    return own + purchases.late_calls(result.history)


@pytest.mark.invariant("I9")
@pytest.mark.timeout(180)
def test_on_bad_days_nothing_is_bought_twice_and_nothing_by_an_executor_that_was_replaced() -> None:
    for seed in range(SEEDS):
        result = simulate(seed, cast=CAST)
        assert [one for one in result.violations if not one.what.endswith(MADE_BY_AN_END)] == [], seed
        assert purchases.late_calls(result.history) == [], seed


@pytest.mark.invariant("I9")
@pytest.mark.timeout(180)
def test_executors_that_never_doubt_themselves_buy_nothing_twice_either() -> None:
    """One that froze between the guard and the call makes it late: the provider's key absorbs that."""
    with contextlib.ExitStack() as stack:
        for patch in SURE:
            stack.enter_context(patch)
        results = [simulate(seed, cast=CAST) for seed in range(SEEDS)]
    assert [one for result in results for one in result.violations if one.invariant == "own"] == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_in_the_ledger_is_noticed(name: str) -> None:
    sabotage, patches = MUTATIONS[name]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        broke = sabotage()
        assert any(effects_broken(seed, broke) for seed in range(WITHIN)), f"{WITHIN} seeds kept it"
