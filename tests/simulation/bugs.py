"""The wrong code that mutations put in the place of the right one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from outlive import commands, execution, lease, presence, recorder, subscription, worker
from outlive.agents import Context
from outlive.model import (
    Event,
    EventKind,
    Offer,
    Run,
    Stop,
    StopOutcome,
    Stored,
    Submission,
    Submitted,
    Suspect,
    Swept,
    Verdict,
)
from outlive.states import State
from outlive.store import displacing, moves, reads, steps, wakeup
from outlive.store.script import Script, Steps, script, statement
from outlive.testing.simulation import agent
from outlive.testing.simulation.database import SimulatedStore
from outlive.testing.simulation.history import Checkpoint

_place = displacing.place
_commit = recorder.Recorder._commit
_suspects = reads.suspects
_finish = steps.finish
_stop = moves.stop
_submit = moves.submit
_verdict = execution._verdict
_end = lease.Held.end
_claim_once = worker.Worker.claim_once
_read_thread = subscription._read_thread


# ---------------------------------------------------------------- the record and who may write it


def unfenced_save(database: Any, holder: Any, origin: str, step: int) -> Script[None]:
    """Record a step, whoever asks."""

    @script()
    def save() -> Steps[None]:
        yield statement("clock")
        database.checkpoints[origin] = step + 1
        now = database.loop.time()
        database.history.checkpoints.append(Checkpoint(now, origin, step, holder.epoch, holder.run_id))

    return save()


async def forgetting_commit(self: Any, batch: Any) -> None:
    """The recorder counts by itself, whatever the reply says, and begins again after an error."""
    if not batch:
        return
    step = moves.append(self._held.claim, batch, max(0, self.last_seq - 1), self._keeper.timing.lease)
    appended = await self._store.write(step)
    self.last_seq = appended.last_seq


async def handing_commit(self: Any, batch: Any) -> None:
    """Whoever follows is handed what is about to be committed."""
    if batch:
        stored = Stored(thread_seq=0, at=0.0)
        recorder.announce(self._store, self._held.claim, batch, self.last_seq + len(batch), stored)
    await _commit(self, batch)


@script()
def sweep(suspect: Suspect, early: bool) -> Steps[Swept]:
    """Take the run from whoever holds it by now."""
    yield statement("lock_thread", thread_id=suspect.thread_id)
    rows = yield statement("lock_run", run_id=suspect.run_id)
    if not rows or rows[0]["state"] != "running":
        return Swept.SPARED
    yield statement("requeue_lost", run_id=suspect.run_id, epoch=rows[0]["epoch"])
    return Swept.REQUEUED


def all_suspects(missed_ms: int, limit: int) -> Script[list[Suspect]]:
    """Everybody is a suspect, however fresh the lease."""
    return _suspects(0, limit)


async def one_look(self: Any, workers: set[str]) -> set[str]:
    """Believe the first look at the tokens."""
    dead: set[str] = await self._store.dead(workers) if workers else set()
    return dead


async def nothing(self: Any, *_: Any) -> int:
    """Do nothing at all."""
    return 0


def never_stopped(run: Any, verdict: Verdict, *, source: State, step: int = 0) -> Steps[None]:
    """Sweeping gives every run back, also one that was to stop."""
    if step:
        yield statement("requeue_lost", run_id=run.run_id, epoch=run.epoch)
    else:
        yield from _finish(run, verdict, source=source, step=step)


# ---------------------------------------------------------------- commands


def ending_stop(run_id: str, tenant: str | None, reason: Any, only_unwatched: bool = False) -> Script[Stop]:
    """Whoever asks ends the run at once, under its holder's hands."""

    @script()
    def stop() -> Steps[Stop]:
        run = yield from steps.visible(run_id, tenant)
        if run.state is not State.RUNNING:
            return (yield from _stop(run_id, tenant, reason, only_unwatched).start())
        yield from steps.finish(run, Verdict(state=State.STOPPED, reason=reason), source=run.state)
        return Stop(run=(yield from steps.known(run_id)), outcome=StopOutcome.STOPPED)

    return stop()


def polite_stop(run_id: str, tenant: str | None, reason: Any, only_unwatched: bool = False) -> Script[Stop]:
    """Every stop is said to be under way, also of a run that ended long ago."""

    @script()
    def stop() -> Steps[Stop]:
        answer = yield from _stop(run_id, tenant, reason, only_unwatched).start()
        return dataclasses.replace(answer, outcome=StopOutcome.REQUESTED)

    return stop()


def deaf_end(self: lease.Held, halt: lease.Halt, reason: Any = None) -> None:
    """Hear everything but a stop."""
    if halt is not lease.Halt.STOP:
        _end(self, halt, reason)


async def key_after_run(self: commands.Commands, new: Submission, offer: Offer | None) -> Submitted:
    """Look for the key first, and write it down when the run is there."""
    if new.key is None or await self._store.read(_taken(new)):
        return await self._store.write(moves.submit(new, offer))
    made = await self._store.write(moves.submit(dataclasses.replace(new, key=None), offer))
    await self._store.write(_take(new))
    return made


@script(reads=True)
def _taken(new: Submission) -> Steps[bool]:
    return bool((yield statement("read_key", tenant=new.tenant, key=new.key)))


@script()
def _take(new: Submission) -> Steps[None]:
    names = {"tenant": new.tenant, "key": new.key, "run_id": new.run_id}
    yield statement("take_key", fingerprint=new.fingerprint, **names)


# ---------------------------------------------------------------- execution


async def leaking_claim(self: worker.Worker) -> int:
    """Keep the slots of a claim that failed."""
    before = set(self._reserved)
    try:
        return await _claim_once(self)
    except Exception:
        self._reserved |= {f"leaked-{len(self._reserved)}"} | before
        raise


async def cut_claiming(self: worker.Worker, budget: float) -> None:
    """Shutdown does not wait for the claim that is under way."""
    if self._claiming is not None:
        self._claiming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._claiming


async def forgetful_drive(self: worker.Worker, attempt: execution.Attempt) -> None:
    """Nobody looks at an agent that was given up on and returned before its run was over."""
    try:
        await execution.drive(attempt)
    finally:
        self._around.keeper.release(attempt.held)
        if attempt.leaked is not None and not attempt.leaked.done():
            self._leaked[attempt.leaked] = None
            attempt.leaked.add_done_callback(self._returned)


async def record_first(self: agent.StepsAgent, context: Context, step: int) -> None:
    """Write the step down as done, then do it."""
    saving = agent.save(self._process.fleet.database, context.claim, context.run.origin, step)
    await self._process.store.write(saving)
    await self._call(context, step)


async def fail_instead(attempt: Any, tail: Any) -> Verdict:
    """Shutdown ends what it cannot finish."""
    return Verdict(state=State.FAILED, error="{}")


# ---------------------------------------------------------------- observers


async def trusting_wait(self: Any, bound: float | None = None) -> None:
    """Wait for the hint, for as long as it takes."""
    await self._event.wait()


def early_hint(self: SimulatedStore, *topics: str) -> None:
    """The hint went out before the transaction began; nothing is said after its commit."""


async def hasty_follow(store: Any, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
    """Stop when the run is over, not when its end was handed on."""
    with store.hub.watch(wakeup.run_topic(run_id)) as waiter:
        while True:
            waiter.clear()
            for event in await store.read(reads.events(run_id, after, 500)):
                if event.kind is not EventKind.END:
                    yield event
                    after = event.seq
            if (await store.read(reads.run(run_id, None))).state.terminal:
                return
            await waiter.wait()


def unlooked_joined(self: presence.Presence, viewer: presence.Viewer, joining: Any) -> None:
    """Nobody looks at how a join ended whose viewer has left meanwhile."""
    self._joining.pop(viewer, None)


# ---------------------------------------------------------------- tenants, people, providers


def submit_for_everybody(new: Submission, offer: Offer | None) -> Script[Submitted]:
    """A thread of that name is the thread of that name, whoever asks."""
    return _submit(dataclasses.replace(new, tenant=""), offer)


def impatient_verdict(attempt: execution.Attempt, work: Any) -> Verdict | None:
    """Nobody is waited for."""
    verdict = _verdict(attempt, work)
    if verdict is not None and verdict.state is State.WAITING:
        return dataclasses.replace(verdict, state=State.SUCCEEDED)
    return verdict


def key_of_attempt(run: Run, step: int, epoch: int) -> str:
    """A key that no other attempt would think of."""
    return f"{run.origin}/{step}/{epoch}"


@contextlib.contextmanager
def both(first: Any, second: Any) -> Iterator[None]:
    """Put two patches in."""
    with first, second:
        yield


Patch = Callable[[], Any]


async def swapped(*args: Any) -> subscription.Look:
    """The last of a look stays in its place: a look that ends elsewhere than it should is noticed."""
    look = await _read_thread(*args)
    if len(look.events) < 3:
        return look
    first, second, *rest = look.events
    return subscription.Look([second, first, *rest], full=look.full)


def nobodys_place(thread_id: str, displaced: Sequence[Run]) -> Steps[dict[str, Any]]:
    """The place of somebody, without saying whose."""
    return (yield from _place(thread_id, displaced)) | {"displaces": None}


def last_place(thread_id: str, displaced: Sequence[Run]) -> Steps[dict[str, Any]]:
    """The place that any message gets."""
    found = yield from _place(thread_id, displaced)
    return {name: value for name, value in found.items() if name != "pos"}
