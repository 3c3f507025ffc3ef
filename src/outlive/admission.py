"""May this message become a run now?  Pure functions, called inside the submit transaction.

They decide over what the transaction read under the thread's lock, and read and write nothing themselves.
What a run that was let in does with what it finds on its thread is ``agents.prelude``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from outlive.policy import OnBusy, OnTorn, RunPolicy
from outlive.states import Position, Reason, State


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveRun:
    """A queued or running run of the thread.

    ``begun``: an executor has had it.  ``displaces``: it has itself displaced another.
    """

    run_id: str
    state: State
    begun: bool = True
    displaces: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a thread stands, as the run ``left_by`` left it, for an agent that keeps what it has done."""

    position: Position
    left_by: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Accept:
    """Insert the run.  ``at_once``: nothing on the thread stands before it."""

    at_once: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Displace:
    """Insert the run before all who wait, and stop ``run_ids``: what runs or has begun, oldest first.

    A message that displaced a run and has not begun is displaced as well: the newer one replaces it.
    """

    run_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """Refuse: the thread is busy with ``run_id``."""

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """Refuse: the run ``run_id`` left the thread torn, or waiting for an answer that this message is not."""

    run_id: str | None
    position: Position


@dataclass(frozen=True, kw_only=True, slots=True)
class Unasked:
    """Refuse: the message answers a question, and none is open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Decide once somebody has looked where the thread stands."""


Decision = Accept | Displace | Reject | Left | Unasked | Look


def admit(
    live: Sequence[LiveRun],
    policy: RunPolicy,
    standing: Standing | None = None,
    *,
    answers: bool = False,
    goes_on: bool = False,
) -> Decision:
    """Decide what a new message does on a thread with these live runs, oldest first, that stands so.

    ``standing`` None: there is nothing to repeat.  ``answers``: the message answers a question of the thread.
    A live run is past the question, or was made by the first answer to it: a second one waits for nothing.
    ``goes_on``: it brings nothing new, and goes on with what is there.
    """
    if not live:
        return Accept(at_once=True) if goes_on else _onto(standing, policy, answers)
    if answers:
        return Reject(run_id=live[0].run_id)
    match policy.on_busy:
        case OnBusy.REJECT:
            return Reject(run_id=live[0].run_id)
        case OnBusy.ENQUEUE:
            return Accept(at_once=False)
        case OnBusy.INTERRUPT | OnBusy.ROLLBACK:
            return Displace(run_ids=tuple(run.run_id for run in live if run.begun or run.displaces))
        case _ as unknown:
            assert_never(unknown)


def _onto(standing: Standing | None, policy: RunPolicy, answers: bool) -> Decision:
    if standing is None:
        return Accept(at_once=True)
    accepted, left = Accept(at_once=True), Left(run_id=standing.left_by, position=standing.position)
    match standing.position:
        case Position.UNKNOWN:
            return Look()
        case Position.CLEAN:
            return Unasked() if answers else accepted
        case Position.WAITING:
            return accepted if answers or policy.on_torn in (OnTorn.RESTART, OnTorn.ROLLBACK) else left
        case Position.TORN if answers:
            return Unasked()  # what was cut may come to another question than the one that was shown
        case Position.TORN:
            return left if policy.on_torn is OnTorn.REJECT else accepted
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
