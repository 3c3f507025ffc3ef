"""Admission: what a message becomes, given what its thread and its key have already."""

from __future__ import annotations

import itertools

import pytest

from outlive import admission, policy
from outlive.admission import Accept, LiveRun, Reject, SameIntent
from outlive.states import Reason, State

QUEUED, RUNNING = LiveRun(run_id="q", state=State.QUEUED), LiveRun(run_id="r", state=State.RUNNING)
BUSY = ([QUEUED], [RUNNING], [RUNNING, QUEUED])


def test_an_idle_thread_takes_a_message_at_once_whatever_the_policy() -> None:
    for declared in (policy.chat(), policy.job()):
        assert admission.admit([], declared) == Accept(at_once=True)


@pytest.mark.parametrize("live", BUSY)
def test_a_busy_thread_queues_or_rejects_as_declared(live: list[LiveRun]) -> None:
    assert admission.admit(live, policy.chat(on_busy="enqueue")) == Accept(at_once=False)
    assert admission.admit(live, policy.chat(on_busy="reject")) == Reject(run_id=live[0].run_id)


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
