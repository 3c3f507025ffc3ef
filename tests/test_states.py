"""The table of moves: what it allows, what it forbids, and that it is whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from outlive import states
from outlive.states import Guard, Move, State, Who

Q, R = State.QUEUED, State.RUNNING
ALLOWED = {
    (Move.SUBMIT, None, Q): (0,),
    (Move.SUBMIT, None, R): (1,),
    (Move.CLAIM, Q, R): (1,),
    (Move.RENEW, R, R): (0,),
    (Move.APPEND, R, R): (0,),
    (Move.SETTLE, R, State.SUCCEEDED): (0,),
    (Move.SETTLE, R, State.WAITING): (0,),
    (Move.SETTLE, R, State.FAILED): (0, 1),
    (Move.SETTLE, R, State.STOPPED): (0, 1),
    (Move.HAND_BACK, R, Q): (0,),
    (Move.STOP, Q, State.STOPPED): (0,),
    (Move.STOP, R, R): (0,),
    (Move.SWEEP, R, Q): (1,),
    (Move.SWEEP, R, State.STOPPED): (1,),
    (Move.SWEEP, R, State.ABANDONED): (1,),
    (Move.DELETE, Q, State.STOPPED): (0,),
    (Move.DELETE, R, State.STOPPED): (1,),
}


def every_transition() -> Iterator[tuple[Move, State | None, State]]:
    return itertools.product(Move, (None, *State), State)


def test_the_table_allows_these_moves_and_no_others() -> None:
    assert {one for one in every_transition() if states.allowed(*one)} == set(ALLOWED)


def test_the_epoch_rises_by_what_the_table_says() -> None:
    for move, source, target in every_transition():
        if (move, source, target) in ALLOWED:
            assert states.epoch_steps(move, source, target) == ALLOWED[move, source, target]
            assert states.epoch_step(move, source, target) == ALLOWED[move, source, target][0]
        else:
            with pytest.raises(KeyError):
                states.epoch_step(move, source, target)


def test_no_move_leaves_a_terminal_state() -> None:
    assert {state for state in State if state.terminal} == states.TERMINAL == set(State) - {Q, R}
    assert all(rule.source is None or not rule.source.terminal for rule in states.RULES)


def test_every_state_can_be_reached_and_every_live_one_left() -> None:
    reached = {target for rule in states.RULES for target in rule.targets}
    assert reached == set(State)
    assert {rule.source for rule in states.RULES} == {None, Q, R}


def test_only_those_who_may_end_a_run_do() -> None:
    ending = {rule.move for rule in states.RULES if rule.targets & states.TERMINAL}
    assert ending == {Move.SETTLE, Move.STOP, Move.SWEEP, Move.DELETE}


def test_every_write_of_a_holder_proves_its_claim() -> None:
    for rule in states.RULES:
        if rule.who is Who.HOLDER:
            assert {Guard.OWNER, Guard.STATE} <= rule.guards
            assert (rule.guards >= states.FENCE) == (rule.move is not Move.RENEW), "only renewal may be late"


def test_whoever_takes_a_run_from_somebody_raises_its_epoch() -> None:
    for rule in states.RULES:
        takes = rule.targets == {R} and rule.move in (Move.SUBMIT, Move.CLAIM)
        if takes or rule.move is Move.SWEEP:
            assert rule.epoch == 1


def test_every_move_has_rules_and_every_rule_is_under_its_move() -> None:
    assert set(states.MOVES) == set(Move)
    assert [rule for move in Move for rule in states.MOVES[move]] == sorted(
        states.RULES, key=lambda rule: list(Move).index(rule.move)
    )
    with pytest.raises(TypeError):
        states.MOVES[Move.STOP] = ()  # type: ignore[index]
