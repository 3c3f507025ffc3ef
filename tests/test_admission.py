"""Admission: what a message becomes, given what its thread and its key have already."""

from __future__ import annotations

import itertools

import pytest

from outlive import admission, policy
from outlive.admission import (
    Accept,
    Decision,
    Displace,
    Left,
    LiveRun,
    Look,
    Reject,
    SameIntent,
    Standing,
    Unasked,
)
from outlive.policy import OnTorn
from outlive.states import Position, Reason, State

QUEUED, RUNNING = LiveRun(run_id="q", state=State.QUEUED), LiveRun(run_id="r", state=State.RUNNING)
BUSY = ([QUEUED], [RUNNING], [RUNNING, QUEUED])


def test_an_idle_thread_takes_a_message_at_once_whatever_the_policy() -> None:
    for declared in (policy.chat(), policy.job()):
        assert admission.admit([], declared) == Accept(at_once=True)


@pytest.mark.parametrize("live", BUSY)
def test_a_busy_thread_queues_or_rejects_as_declared(live: list[LiveRun]) -> None:
    assert admission.admit(live, policy.chat(on_busy="enqueue")) == Accept(at_once=False)
    assert admission.admit(live, policy.chat(on_busy="reject")) == Reject(run_id=live[0].run_id)


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
def test_a_message_displaces_what_has_begun_and_what_was_to_displace_it(on_busy: str) -> None:
    waits = LiveRun(run_id="w", state=State.QUEUED, begun=False)
    newer = LiveRun(run_id="n", state=State.QUEUED, begun=False, displaces=True)
    declared = policy.chat(on_busy=on_busy)
    assert admission.admit([RUNNING, waits], declared) == Displace(run_ids=("r",))
    assert admission.admit([newer, RUNNING, waits], declared) == Displace(run_ids=("n", "r"))
    assert admission.admit([QUEUED, waits], declared) == Displace(run_ids=("q",))
    assert admission.admit([waits], declared) == Displace(run_ids=())
    assert admission.admit([RUNNING], declared, answers=True) == Reject(run_id="r")


@pytest.mark.parametrize("position", Position)
def test_a_message_that_brings_nothing_new_goes_on_with_whatever_is_there(position: Position) -> None:
    standing = Standing(position=position, left_by="l")
    assert admission.admit([], policy.chat(on_torn="reject"), standing, goes_on=True) == Accept(at_once=True)


def onto(position: Position, on_torn: OnTorn, *, answers: bool = False) -> Decision:
    """What becomes of a message on an idle thread that stands so."""
    standing = Standing(position=position, left_by="l")
    return admission.admit([], policy.chat(on_torn=on_torn), standing, answers=answers)


@pytest.mark.parametrize("on_torn", OnTorn)
def test_an_idle_thread_takes_or_refuses_a_message_as_it_stands_and_as_declared(on_torn: OnTorn) -> None:
    taken = Accept(at_once=True)
    torn, waiting = (Left(run_id="l", position=each) for each in (Position.TORN, Position.WAITING))
    assert onto(Position.CLEAN, on_torn) == taken
    assert onto(Position.UNKNOWN, on_torn) == Look()
    assert onto(Position.TORN, on_torn) == (torn if on_torn is OnTorn.REJECT else taken)
    goes_over_it = on_torn in (OnTorn.RESTART, OnTorn.ROLLBACK)
    assert onto(Position.WAITING, on_torn) == (taken if goes_over_it else waiting)


@pytest.mark.parametrize("on_torn", OnTorn)
def test_an_answer_is_taken_where_a_question_stands_and_nowhere_else(on_torn: OnTorn) -> None:
    assert onto(Position.WAITING, on_torn, answers=True) == Accept(at_once=True)
    assert onto(Position.CLEAN, on_torn, answers=True) == Unasked()
    assert onto(Position.TORN, on_torn, answers=True) == Unasked()
    assert onto(Position.UNKNOWN, on_torn, answers=True) == Look()


@pytest.mark.parametrize("live", BUSY)
@pytest.mark.parametrize("on_busy", policy.OnBusy)
def test_an_answer_is_never_queued_behind_a_live_run(on_busy: policy.OnBusy, live: list[LiveRun]) -> None:
    standing = Standing(position=Position.WAITING, left_by="l")
    decided = admission.admit(live, policy.chat(on_busy=on_busy), standing, answers=True)
    assert decided == Reject(run_id=live[0].run_id)


@pytest.mark.parametrize("position", Position)
def test_a_busy_thread_stands_nowhere_yet(position: Position) -> None:
    standing = Standing(position=position, left_by="l")
    for on_torn in OnTorn:
        queued = admission.admit([RUNNING], policy.chat(on_torn=on_torn), standing)
        assert queued == Accept(at_once=False)


GOES_ON = {
    (state, reason)
    for state in (State.STOPPED, State.ABANDONED)
    for reason in (Reason.DISCONNECT, Reason.TIMEOUT, Reason.LOST)
}


def test_the_same_intent_attaches_while_live_goes_on_where_cut_off_and_replays_else() -> None:
    for state, reason in itertools.product(State, (None, *Reason)):
        found = admission.same_intent(state, reason, policy.chat())
        if state in (State.QUEUED, State.RUNNING):
            assert found is SameIntent.ATTACH
        elif (state, reason) in GOES_ON:
            assert found is SameIntent.CONTINUE
        else:
            assert found is SameIntent.REPLAY


def test_what_a_user_stopped_is_never_begun_again() -> None:
    for reason in (Reason.REQUESTED, Reason.DISPLACED):
        assert admission.same_intent(State.STOPPED, reason, policy.chat()) is SameIntent.REPLAY


def test_a_run_whose_effects_are_undone_is_not_gone_on_from() -> None:
    for state, reason in GOES_ON:
        found = admission.same_intent(state, reason, policy.chat(compensate="always"))
        assert found is SameIntent.REPLAY
