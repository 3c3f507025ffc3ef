"""The table of an effect's moves, what the SQL guards, and what an executor is told to do, agree."""

from __future__ import annotations

import itertools
import pathlib
import re
from typing import Any

import pytest

from outlive import ledger
from outlive.ledger import Effect, EffectMove, EffectState, Kind, Step, Wish
from outlive.store import effect_moves, sql

S = EffectState
MADE_BY = {
    "begin_effect": EffectMove.INTEND,
    "start_effect": EffectMove.START,
    "finish_effect": EffectMove.FINISH,
    "cut_effect": EffectMove.CUT,
    "cut_effects": EffectMove.CUT,
    "settle_effect": EffectMove.RECONCILE,
    "compensate_effect": EffectMove.COMPENSATE,
}
FENCED = {"begin_effect", "start_effect", "finish_effect", "take_over_effect"}
STARTS = {"begin_effect", "start_effect"}


def blocks(dialect: sql.Dialect) -> dict[str, str]:
    """The blocks that write the ledger."""
    found = {name: ";\n".join(block.statements) for name, block in sql.load(dialect).items()}
    return {name: text for name, text in found.items() if re.search(r"(UPDATE|INTO) effects\b", text)}


@pytest.mark.parametrize("dialect", sql.Dialect)
def test_only_these_blocks_change_an_effects_state_and_each_guards_the_state_that_it_leaves(
    dialect: sql.Dialect,
) -> None:
    changing = {
        name
        for name, text in blocks(dialect).items()
        if re.search(r"(SET|,)\s+state = ", text) or "INTO effects" in text
    }
    assert changing == set(MADE_BY)
    for name in changing - {"begin_effect"}:
        sources = {rule.source for rule in ledger.EFFECT_MOVES[MADE_BY[name]]}
        guarded = re.findall(
            r"\bstate (?:= '(\w+)'|IN \(([^)]*)\))", blocks(dialect)[name].split("WHERE", 1)[1]
        )
        named = [set(re.findall(r"\w+", one or many)) for one, many in guarded]
        assert any(names == {str(source) for source in sources} for names in named), name


@pytest.mark.parametrize("dialect", sql.Dialect)
def test_every_start_and_every_answer_carries_the_fence_in_its_own_statement(dialect: sql.Dialect) -> None:
    now = sql._WORDS[dialect]["now"]
    for name in FENCED:
        text = blocks(dialect)[name]
        for condition in (
            "run_id = ",
            "epoch = ",
            "claim_token = ",
            "state = 'running'",
            f"lease_until > {now}",
        ):
            assert condition in text, f"{name} does not check {condition}"
        assert ("FOR KEY SHARE" in text) == (dialect is sql.Dialect.POSTGRESQL)
    for name in STARTS:
        assert "stop_requested_at IS NULL" in blocks(dialect)[name]
        assert "o.state IN ('started', 'unknown')" in blocks(dialect)[name]


def test_every_state_is_reached_and_what_has_executed_is_never_called_again() -> None:
    reached = set().union(*(rule.targets for rule in ledger.EFFECT_RULES))
    assert reached == set(EffectState)
    for state in ledger.EXECUTED | {S.FAILED}:
        assert not ledger.allowed(EffectMove.START, state, S.STARTED)
    ended = {rule.source for rule in ledger.EFFECT_RULES} ^ {*EffectState, None}
    assert ended == {S.FAILED, S.COMPENSATED}  # where a generation ends


def effect(**changes: Any) -> Effect:
    """A row of the ledger."""
    plain: dict[str, Any] = {
        "effect_id": "e", "tenant": "", "name": "charge", "key": "k", "generation": 1, "provider_key": "p",
        "fingerprint": "f", "kind": Kind.IRREVERSIBLE, "resource": None, "state": S.UNKNOWN, "due": None,
        "compensates": None, "run_id": "r", "origin": "r", "epoch": 1, "claim_token": "c", "key_ttl": 100.0,
        "calls": 1, "inputs": "null", "result": None, "error": None, "evidence": None, "settled_by": None,
        "created_at": 0.0, "first_started_at": 0.0, "ended_at": 50.0, "held": True, "now": 60.0,
    }  # fmt: skip
    return Effect(**{**plain, **changes})


def wish(**changes: Any) -> Wish:
    """A wish for it."""
    plain: dict[str, Any] = {
        "tenant": "", "name": "charge", "key": "k", "fingerprint": "f", "inputs": "null",
        "kind": Kind.IRREVERSIBLE, "key_ttl": 100.0,
    }  # fmt: skip
    return Wish(**{**plain, **changes})


def test_an_executor_is_told_to_call_only_where_a_start_is_allowed() -> None:
    for state, held, ttl, kind, looks_up in itertools.product(
        EffectState, (True, False), (None, 100.0, 50.0), Kind, (True, False)
    ):
        row = effect(state=state, held=held, kind=kind, due="release" if kind is Kind.DEFERRABLE else None)
        step = ledger.decide(row, wish(key_ttl=ttl, kind=kind, looks_up=looks_up))
        if step in (Step.START, Step.REPLAY):
            assert ledger.allowed(EffectMove.START, row.known, S.STARTED)
        if step is Step.REPLAY:
            assert ttl == 100.0 or kind is Kind.IDEMPOTENT
        if row.known in ledger.EXECUTED and state is not S.COMPENSATED:
            assert step is Step.ANSWER
        if row.known is S.STARTED:
            assert step is Step.WAIT


def test_a_keys_time_to_live_is_not_used_up_to_its_end() -> None:
    assert ledger.remembered(effect(now=89.0), 100.0)
    assert not ledger.remembered(effect(now=91.0), 100.0)
    assert not ledger.remembered(effect(now=60.0, key_ttl=50.0), 100.0)  # the one that was declared first
    assert not ledger.remembered(effect(now=1.0, first_started_at=None), 100.0)


def test_finding_nothing_proves_nothing_before_the_call_must_have_landed() -> None:
    deaf = wish(key_ttl=None, lands_within=20.0)
    assert not ledger.landed(effect(now=69.0), deaf)
    assert ledger.landed(effect(now=70.0), deaf)
    assert not ledger.landed(effect(now=1e9, ended_at=None), deaf)
    assert ledger.landed(effect(now=60.0), wish(lands_within=1e6))  # the key's second use would be refused


def test_a_generation_rises_only_where_the_last_one_has_ended() -> None:
    assert ledger.next_generation(None) == 1
    for state in EffectState:
        if state in (S.FAILED, S.COMPENSATED):
            assert ledger.next_generation(effect(state=state)) == 2
        else:
            with pytest.raises(ValueError, match="cannot rise"):
                ledger.next_generation(effect(state=state))


def test_an_effects_id_comes_from_its_key_alone() -> None:
    words = [("", "a", "b", 1), ("", "ab", "", 1), ("a", "", "b", 1), ("", "a", "b", 2)]
    assert len({ledger.effect_id(*each) for each in words}) == len(words)
    source = pathlib.Path(effect_moves.__file__).read_text()
    assert "new_id" not in source
    assert "random" not in source
