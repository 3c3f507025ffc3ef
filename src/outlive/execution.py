"""Drives one attempt at one run, from its claim to its verdict.

The task that runs the agent can be stopped at any await and therefore never records anything; this one
records, cannot be stopped by the same means, and does so once, shielded, with a deadline.
"""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, assert_never

from outlive import (
    agents,
    artifacts,
    cancellation,
    encoding,
    errors,
    failpoints,
    failures,
    patience,
    recorder,
    seams,
    signals,
    spans,
)
from outlive.agents.positions import Positions
from outlive.effects import attempt as effects
from outlive.executor import Threads
from outlive.lease import Halt, Held, Keeper
from outlive.model import NewEvent, Run, Verdict
from outlive.recorder import Recorder
from outlive.states import Position, Reason, State
from outlive.store import Store, effect_moves, moves, reads, steps, wakeup

DRAIN_SECONDS = 2.0
LOOK_SECONDS = 5.0
"""Seconds for which the verdict of a run that was cut waits to learn where the run has left its thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What an attempt needs of its process."""

    store: Store
    keeper: Keeper
    happenings: signals.Signals
    local: seams.Seams = seams.REAL
    drain: float = DRAIN_SECONDS
    artifacts: artifacts.Root | None = None
    max_event_bytes: int = recorder.MAX_EVENT_BYTES


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One attempt while it lasts.

    ``linking``: perhaps the record links its files.  ``cut``: the agent was cut, so whatever it returns is
    not its own end; ``cancelled``: all of it, so that it has nothing more to say.  ``over_at``: when it
    ended, by the process's clock.  ``leaked`` holds an agent that would not return, or the wait for a thread
    of its that would not.
    """

    run: Run
    agent: agents.Agent
    held: Held
    around: Surroundings
    recorder: Recorder = field(init=False)
    context: agents.Context = field(init=False)
    patience: patience.Patience = field(init=False)
    ledger: effects.Ledger = field(init=False)
    files: artifacts.Attempt | None = field(init=False)
    linking: bool = False
    cut: bool = False
    cancelled: bool = False
    over_at: float = 0.0
    parts: cancellation.Parts = field(default_factory=cancellation.Parts)
    threads: Threads = field(default_factory=Threads)
    leaked: asyncio.Task[Any] | None = None

    def __post_init__(self) -> None:
        self.patience = patience.Patience(self.run.policy)
        root, claim = self.around.artifacts, self.held.claim
        self.files = root.attempt(claim.run_id, claim.epoch) if root else None
        self.context = agents.Context(run=self.run, claim=claim, files=self.files)
        self.recorder = Recorder(
            self.around.store,
            self.around.keeper,
            self.held,
            last_seq=self.run.last_seq,
            local=self.around.local,
            max_event_bytes=self.around.max_event_bytes,
            gathering=agents.gathering_of(self.agent),
        )
        self.ledger = effects.Ledger(
            self.run,
            held=self.held,
            keeper=self.around.keeper,
            store=self.around.store,
            happenings=self.around.happenings,
            note=self.recorder.note,
            local=self.around.local,
        )


class AgentExitedError(Exception):
    """The agent called ``sys.exit`` or raised something that would have ended the process."""


async def drive(attempt: Attempt) -> None:
    """Run the agent until it ends or must end, then record how, once.

    Returns normally in every case; what could not be recorded is signalled, and the sweeper recovers it.
    """
    loop = asyncio.get_running_loop()
    work = loop.create_task(_consume(attempt), name=f"outlive-run-{attempt.run.run_id}")
    writing = loop.create_task(attempt.recorder.run())
    try:
        await _until_over(attempt, work, writing)
    except asyncio.CancelledError:
        attempt.held.end(Halt.SHUTDOWN)
        raise
    finally:
        await patience.sheltered(_conclude(attempt, work, writing))
        if attempt.files is not None and not attempt.linking:
            await patience.sheltered(attempt.files.dropped())


async def _consume(attempt: Attempt) -> agents.Outcome | None:
    """Read the agent to its end; None if it was cut short but returned by itself."""
    effects.CURRENT.set(attempt.ledger)  # this task is the agent's alone
    attempt.threads.begin()
    attempt.parts.begin()
    if attempt.files is not None:
        artifacts.CURRENT.set(attempt.files)
        await attempt.files.begin()
    outcome = agents.Outcome()
    try:
        async with aclosing(attempt.agent.stream(attempt.context)) as items:
            async for item in items:
                if isinstance(item, agents.Drained):
                    return None
                if attempt.cancelled:  # never before the one cancel: a second one would tear the clean-up
                    _cleanup_failed(attempt, "YieldAfterCancel", "The agent yielded after it was cancelled.")
                    return None
                if isinstance(item, agents.Outcome):
                    outcome = item
                    await attempt.recorder.complete()
                else:
                    attempt.patience.taking()
                    await attempt.recorder.put(item)
                    attempt.patience.taken()
    except (SystemExit, KeyboardInterrupt) as exit_:
        raise AgentExitedError(type(exit_).__name__) from exit_
    return None if attempt.cut else outcome


async def _until_over(
    attempt: Attempt, work: asyncio.Task[agents.Outcome | None], writing: asyncio.Task[None]
) -> None:
    """Wait until the agent ends, its log can no longer be written, or it must end."""
    loop = asyncio.get_running_loop()
    helpers: list[asyncio.Task[Any]] = [loop.create_task(attempt.held.halted.wait())]
    if attempt.patience.bounded:
        helpers.append(loop.create_task(attempt.patience.over()))
    try:
        await asyncio.wait({work, writing, *helpers}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for helper in helpers:
            helper.cancel()
    if writing.done():
        attempt.held.end(Halt.LOST)
    elif not work.done() and attempt.held.halt is None:
        attempt.recorder.note(*helpers[-1].result())
        attempt.held.end(Halt.STOP, Reason.TIMEOUT)


def _writing_failed(attempt: Attempt, failure: BaseException) -> None:
    claim = attempt.held.claim
    if isinstance(failure, errors.Fenced):
        _refused(attempt, signals.Write.EVENT)
    else:
        attempt.around.happenings.emit(
            signals.RecordingFailed(run_id=claim.run_id, epoch=claim.epoch, error=repr(failure))
        )
    attempt.held.end(Halt.LOST)


async def _conclude(
    attempt: Attempt, work: asyncio.Task[agents.Outcome | None], writing: asyncio.Task[None]
) -> None:
    await _end_work(attempt, work)
    attempt.over_at = attempt.around.local.monotonic()
    attempt.recorder.close()
    await asyncio.wait({writing})
    if (failure := writing.exception()) is not None:
        _writing_failed(attempt, failure)
    if (failure := _write_failed_within(work)) is not None:
        # It could not store a checkpoint, say: a verdict would be a guess.  Who refused it has counted that.
        if isinstance(failure, errors.Unavailable):
            _writing_failed(attempt, failure)
        attempt.held.end(Halt.LOST)
    if attempt.held.halt is Halt.LOST:
        claim = attempt.held.claim
        attempt.around.happenings.emit(signals.LeaseLost(run_id=claim.run_id, epoch=claim.epoch))
        return
    attempt.held.ending = True
    failpoints.reach("execution.finalise")
    await _record(attempt, work)


async def _end_work(attempt: Attempt, work: asyncio.Task[agents.Outcome | None]) -> None:
    """Bring the agent's task to its end: drained if there is time, cut, cancelled once, then given up on."""
    patience = attempt.run.policy.stop_deadline
    if not work.done() and attempt.held.halt is Halt.SHUTDOWN:
        patience = min(patience, attempt.around.drain)
        if attempt.agent.drains:
            attempt.context.draining.set()
            await asyncio.wait({work}, timeout=attempt.around.drain)
    give_up = asyncio.get_running_loop().time() + patience
    if not work.done():
        await _cut(attempt, work, give_up)
    if not work.done():
        attempt.cancelled = True
        work.cancel()
        await asyncio.wait({work}, timeout=max(0.0, give_up - asyncio.get_running_loop().time()))
    if not work.done():
        attempt.leaked = asyncio.get_running_loop().create_task(_gone(work, attempt.threads))
    elif attempt.cut or work.cancelled() or work.exception():  # threads are not cut with it
        attempt.leaked = await attempt.threads.outlasting(give_up)
    if attempt.leaked is not None:
        attempt.around.happenings.emit(signals.SlotLeaked(run_id=attempt.run.run_id, seconds=patience))
    if attempt.ledger.used and attempt.held.halt is not Halt.LOST:
        # Also for what a thread still does: it cannot be cut, and what it did is to be told.
        await attempt.ledger.settled(patience)


async def _cut(attempt: Attempt, work: asyncio.Task[agents.Outcome | None], give_up: float) -> None:
    """Cut the agent's parts, and let it go no further."""
    attempt.cut = True
    attempt.ledger.cut()
    if attempt.agent.drains:  # what a thread of its drives cannot be cut, but goes no further
        attempt.context.draining.set()
    await attempt.parts.cut(work, give_up)
    for failure in attempt.parts.failures:
        _cleanup_failed(attempt, type(failure).__name__)


async def _gone(work: asyncio.Task[Any], threads: Threads) -> None:
    """Wait until an agent that was given up on has returned with all its threads."""
    try:
        await asyncio.wait({work})
    except asyncio.CancelledError:
        work.cancel()
        raise
    await threads.returned()
    await work


def _write_failed_within(work: asyncio.Task[agents.Outcome | None]) -> BaseException | None:
    failure = work.exception() if work.done() and not work.cancelled() else None
    return failure if isinstance(failure, errors.Fenced | errors.Unavailable) else None


async def _record(attempt: Attempt, work: asyncio.Task[agents.Outcome | None]) -> None:
    verdict = _verdict(attempt, work)
    tail = attempt.recorder.tail()
    write = signals.Write.VERDICT if verdict else signals.Write.HAND_BACK
    try:
        if verdict is None:
            verdict = await _hand_back(attempt, tail)
        if verdict is not None:
            verdict = dataclasses.replace(verdict, position=await _left(attempt, work, verdict.state))
            await _settle(attempt, verdict, tail)
    except errors.Fenced:
        attempt.linking = False
        _refused(attempt, write)
    except errors.Unavailable as failure:
        claim = attempt.held.claim
        attempt.around.happenings.emit(
            signals.FinalisationFailed(run_id=claim.run_id, epoch=claim.epoch, error=str(failure))
        )


def _verdict(attempt: Attempt, work: asyncio.Task[agents.Outcome | None]) -> Verdict | None:
    """Decide how the attempt ended; None means that the run goes back into the queue."""
    halt = attempt.held.halt
    if work.done() and not work.cancelled():
        failure = work.exception()
        if failure is None and (outcome := work.result()) is not None:
            return Verdict(state=outcome.state, output=_output(attempt, outcome))
        if failure is not None and not attempt.cut:
            return failures.verdict(attempt.run.run_id, "agent_error", failure)
        if failure is not None:
            _cleanup_failed(attempt, type(failure).__name__)
    match halt:
        case Halt.STOP:
            return Verdict(state=State.STOPPED, reason=attempt.held.reason or Reason.REQUESTED)
        case Halt.SHUTDOWN:
            return None
        case Halt.LOST | None:
            return failures.verdict(attempt.run.run_id, "agent_cut_itself_short", asyncio.CancelledError())
        case _:
            assert_never(halt)


def _output(attempt: Attempt, outcome: agents.Outcome) -> str:
    encoded = encoding.encode(outcome.output)
    attempt.recorder.warn_of(encoded)
    return encoded.text


def _cleanup_failed(attempt: Attempt, error: str, message: str = "") -> None:
    attempt.recorder.note("cleanup_failed", message or f"Closing the agent raised {error}.")
    attempt.around.happenings.emit(signals.CleanupFailed(run_id=attempt.run.run_id, error=error))


async def _left(attempt: Attempt, work: asyncio.Task[agents.Outcome | None], state: State) -> Position | None:
    """Tell where the attempt leaves its thread; None: where it was, or its agent cannot tell."""
    if not isinstance(attempt.agent, Positions):
        return None
    if state in (State.SUCCEEDED, State.WAITING):
        return Position.CLEAN if state is State.SUCCEEDED else Position.WAITING
    if attempt.leaked is not None:
        return Position.UNKNOWN
    failure = None if work.cancelled() else work.exception()
    if isinstance(failure, errors.ThreadLeft):  # it has looked, and did not begin
        found = Position(failure.position)
        return None if found is attempt.run.thread_position else found
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await attempt.agent.position(attempt.run.thread_id)
    except Exception as broken:  # whatever a foreign checkpoint raises: the verdict must be recorded
        happening = signals.CleanupFailed(run_id=attempt.run.run_id, error=f"position: {broken!r}")
        attempt.around.happenings.emit(happening)
        return Position.UNKNOWN


async def _hand_back(attempt: Attempt, tail: tuple[NewEvent, ...]) -> Verdict | None:
    """Put the run back into the queue; a verdict if a stop request came first."""
    around, claim = attempt.around, attempt.held.claim
    step = moves.hand_back(claim, tail, attempt.recorder.last_seq, around.keeper.timing.lease)
    if not await around.keeper.write(attempt.held, step):
        standing = await around.store.read(reads.held([claim]))
        return Verdict(state=State.STOPPED, reason=standing[0].stop_reason if standing else None)
    handed = signals.RunHandedBack(run_id=claim.run_id, epoch=claim.epoch, thread_id=claim.thread_id)
    around.happenings.emit(handed)
    around.store.announce(wakeup.QUEUE, wakeup.run_topic(claim.run_id))
    return None


async def _settle(attempt: Attempt, verdict: Verdict, tail: tuple[NewEvent, ...]) -> None:
    around, claim = attempt.around, attempt.held.claim
    verdict = dataclasses.replace(await _with_files(attempt, verdict), tail=tail)
    # An earlier attempt may have left something in the ledger; this one knows of itself.
    settle = effect_moves.settle_run if attempt.ledger.used or claim.epoch > 1 else moves.settle
    step = settle(claim, verdict, attempt.recorder.last_seq, raise_epoch=attempt.leaked is not None)
    settled = await around.keeper.write(attempt.held, step)
    spans.CURRENT.get().failed(verdict.detail)
    around.happenings.show(claim.run_id, output=verdict.output, error=verdict.detail)
    around.happenings.emit(
        signals.RunEnded(
            run_id=claim.run_id,
            state=verdict.state,
            reason=verdict.reason,
            error=verdict.failure,
            seconds=around.local.monotonic() - attempt.over_at,
            thread_id=claim.thread_id,
            epoch=claim.epoch,
        )
    )
    if attempt.files is not None and claim.epoch > 1:
        await attempt.files.alone()
    if settled.others_wait:
        around.store.announce(wakeup.QUEUE)
    if attempt.run.notify:
        around.store.announce(wakeup.OUTBOX)
    batch = (*tail, steps.end_event(verdict))
    recorder.announce(around.store, claim, batch, attempt.recorder.last_seq + len(batch), settled.stored)


async def _with_files(attempt: Attempt, verdict: Verdict) -> Verdict:
    """Link what the agent made, unless it has not returned: it may write on for ever."""
    if attempt.files is None or attempt.leaked is not None:
        return verdict
    try:
        files = await attempt.files.finished()
    except OSError as failure:  # the disk is full, or broken: a verdict without them would be a lie
        return failures.verdict(attempt.run.run_id, "artifacts_lost", failure)
    attempt.linking = bool(files)
    return dataclasses.replace(verdict, artifacts=files)


def _refused(attempt: Attempt, write: signals.Write) -> None:
    claim = attempt.held.claim
    attempt.around.happenings.emit(
        signals.StaleWriteRefused(run_id=claim.run_id, epoch=claim.epoch, write=write)
    )
