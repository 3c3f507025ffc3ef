"""May this message become a run now?  A pure function, called inside the submit transaction.

Decides over what the transaction read under the thread's lock; reads and writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from outlive.policy import OnBusy, RunPolicy
from outlive.states import Reason, State


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveRun:
    """A queued or running run of the thread."""

    run_id: str
    state: State


@dataclass(frozen=True, kw_only=True, slots=True)
class Accept:
    """Insert the run.  ``at_once``: nothing on the thread stands before it."""

    at_once: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """Refuse: the thread is busy with ``run_id``."""

    run_id: str


Decision = Accept | Reject


def admit(live: Sequence[LiveRun], policy: RunPolicy) -> Decision:
    """Decide what a new message does on a thread with these live runs, oldest first."""
    if not live:
        return Accept(at_once=True)
    match policy.on_busy:
        case OnBusy.REJECT:
            return Reject(run_id=live[0].run_id)
        case OnBusy.ENQUEUE:
            return Accept(at_once=False)
        case _ as unknown:
            assert_never(unknown)


class SameIntent(StrEnum):
    """What the same idempotency key means for the run it points to."""

    ATTACH = "attach"
    REPLAY = "replay"
    CONTINUE = "continue"


_CUT_OFF = frozenset({Reason.DISCONNECT, Reason.TIMEOUT, Reason.LOST})


def same_intent(state: State, reason: Reason | None, policy: RunPolicy) -> SameIntent:
    """Decide what a repeated key does: attach while live, go on where the run was cut off, else replay.

    What was undone at the end of a run cannot be gone on from: its checkpoints say that it was done.

    A run that its user stopped, or that failed by itself, stays as it is: repeating the request must not
    restart what somebody ended on purpose.
    """
    if not state.terminal:
        return SameIntent.ATTACH
    cut_off = state in (State.STOPPED, State.ABANDONED) and reason in _CUT_OFF
    if cut_off and not policy.compensates(state):
        return SameIntent.CONTINUE
    return SameIntent.REPLAY
