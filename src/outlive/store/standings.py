"""Where a thread stands, as transactions: to look, to take back what a run has begun, to tell what it did.

What is to be done about a thread that was left part-way is decided in ``admission`` and ``agents.prelude``.
"""

from __future__ import annotations

from typing import assert_never

from outlive import admission, errors
from outlive.model import Claim, Row, Run, Submission
from outlive.states import Position, State
from outlive.store import effect_steps, steps
from outlive.store.script import Steps, script, statement


class Unlooked(Exception):
    """Nobody knows where the thread stands: look, ``looked``, and submit again."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(thread_id)


class Unchecked(Exception):
    """The thread waits for an answer: see whether this one fits its questions, and submit again."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(thread_id)


def refusal(
    decision: admission.Reject | admission.Left | admission.Unasked | admission.Look, thread_id: str
) -> Exception:
    """Return what a submit raises that is not let in."""
    match decision:
        case admission.Reject():
            return errors.ThreadBusy(run_id=decision.run_id)
        case admission.Left(position=Position.WAITING):
            return errors.ThreadWaiting(run_id=decision.run_id)
        case admission.Left():
            return errors.ThreadTorn(run_id=decision.run_id)
        case admission.Unasked():
            return errors.NothingToAnswer()
        case admission.Look():
            return Unlooked(thread_id)
        case _:
            assert_never(decision)


def live(row: Row) -> admission.LiveRun:
    """Read a live run of a thread, as far as it concerns a message."""
    return admission.LiveRun(
        run_id=row["run_id"],
        state=State(row["state"]),
        begun=row["epoch"] > 0,
        displaces=row["displaces"] is not None,
    )


def standing(new: Submission, place: Row) -> admission.Standing | None:
    """Where the thread stands that this submit has just entered; None if there is nothing to repeat."""
    if not new.positioned or place["pos"] == 1:
        return None
    return admission.Standing(
        position=Position(place["position"] or Position.UNKNOWN), left_by=place["left_by"]
    )


@script()
def looked(thread_id: str, position: Position) -> Steps[None]:
    """Keep what a look at a thread found, unless a run has begun or ended there meanwhile."""
    yield statement("lock_thread", thread_id=thread_id)
    yield statement("look_at_thread", thread_id=thread_id, position=position.value)


@script(reads=True)
def executed(origin: str) -> Steps[effect_steps.Summary]:
    """Return what a chain of runs executed, as its end events have it."""
    counted = yield statement("count_effects", origin=origin)
    return effect_steps.summarised([dict(row) for row in counted])


@script()
def undo(holder: Claim, run: Run) -> Steps[None]:
    """Have the effects of ``run``'s chain undone, on behalf of ``holder``; raises ``Fenced``.

    Repeating it does nothing: the run that undoes them is the same one.
    """
    yield statement("lock_thread", thread_id=holder.thread_id)
    fence = {"run_id": holder.run_id, "epoch": holder.epoch, "claim_token": holder.claim_token}
    if not (yield statement("check_fence", **fence)):
        raise errors.Fenced(steps.LATE, run_id=holder.run_id)
    if (yield statement("mark_for_compensation", origin=run.origin)):
        yield from effect_steps.enter_aftermath(run, holder.run_id)
