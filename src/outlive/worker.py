"""Claims runs and drives them, up to a number of slots; hands them back when the process must go.

Decides who works, never what happens to the work: that is ``execution``'s and the record's.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlive import agents, execution, failpoints, lease, signals, spans
from outlive.model import Offer, Run
from outlive.store import moves, reads, wakeup


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """The slots of a process; ``leaked`` ones count as used."""

    total: int
    used: int
    leaked: int


class Worker:
    """The slots of one process.  Its id is the incarnation that a liveness token stands for."""

    def __init__(self, registry: agents.Registry, around: execution.Surroundings, *, slots: int) -> None:
        self.id = around.local.new_id()
        self.slots = slots
        self._registry = registry
        self._around = around
        self._reserved: set[str] = set()
        self._driving: dict[asyncio.Task[None], Run] = {}
        self._leaked: dict[asyncio.Task[Any], None] = {}  # in order, to be repeatable
        self._context = contextvars.copy_context()
        self._closing = False
        self._claiming: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ slots

    @property
    def free(self) -> int:
        """Slots that nothing uses: neither a run, nor an offer, nor an agent that never returned."""
        return self.slots - len(self._driving) - len(self._reserved) - len(self._leaked)

    def counted(self) -> Slots:
        """Return how the slots stand; from any thread."""
        return Slots(total=self.slots, used=self.slots - self.free, leaked=len(self._leaked))

    @property
    def driving(self) -> Mapping[str, Run]:
        """The runs driven here now, by id."""
        return {run.run_id: run for run in self._driving.values()}

    def offer(self, agent: str | None = None) -> Offer | None:
        """Reserve a slot for a claim about to be made; None if there is none, or not for this agent."""
        names = self._registry.driven
        if self._closing or self.free <= 0 or (agent is not None and agent not in names):
            return None
        offer = Offer(
            worker=self.id,
            claim_token=self._around.local.new_id(),
            lease=self._around.keeper.timing.lease,
            agents=names,
        )
        self._reserved.add(offer.claim_token)
        return offer

    def withdraw(self, offer: Offer) -> None:
        """Give a reserved slot back."""
        self._reserved.discard(offer.claim_token)
        self._freed()

    def start(self, run: Run, offer: Offer, since: float) -> None:
        """Drive a run that ``offer`` claimed; ``since`` was read before the claim was sent."""
        self._reserved.discard(offer.claim_token)
        held = self._around.keeper.hold(run.claim, since)
        agent = self._registry.driver(run.agent)
        attempt = execution.Attempt(run=run, agent=agent, held=held, around=self._around)
        task = asyncio.get_running_loop().create_task(self._drive(attempt), context=self._context.copy())
        self._driving[task] = run
        task.add_done_callback(self._ended)
        self._around.happenings.emit(
            signals.RunClaimed(run_id=run.run_id, epoch=run.epoch, thread_id=run.thread_id)
        )
        # The attempt is in the log already; an agent that is silent at first would leave it untold.
        self._around.store.announce(wakeup.run_topic(run.run_id), wakeup.thread_topic(run.thread_id))
        if self._closing:
            held.end(lease.Halt.SHUTDOWN)

    async def _drive(self, attempt: execution.Attempt) -> None:
        run = attempt.run
        attempting = spans.Attempting(
            run_id=run.run_id,
            thread_id=run.thread_id,
            epoch=run.epoch,
            agent=run.agent,
            traceparent=run.traceparent,
        )
        try:
            with self._around.happenings.during(attempting):
                await execution.drive(attempt)
        finally:
            self._around.keeper.release(attempt.held)
            if attempt.leaked is not None:  # also if it has returned by now: its failure is looked at then
                self._leaked[attempt.leaked] = None
                attempt.leaked.add_done_callback(self._returned)

    def _ended(self, task: asyncio.Task[None]) -> None:
        run = self._driving.pop(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._around.happenings.emit(
                signals.FinalisationFailed(run_id=run.run_id, epoch=run.epoch, error=repr(failure))
            )
        self._freed()

    def _returned(self, task: asyncio.Task[Any]) -> None:
        self._leaked.pop(task, None)
        if not task.cancelled():
            task.exception()  # its run has ended long ago; reading it keeps the loop from complaining
        self._freed()

    def _freed(self) -> None:
        """Look for a run if this slot is the only free one: while there was another, none had to wait."""
        if self.free <= 1:
            self._around.store.hub.wake((wakeup.QUEUE,))

    # ------------------------------------------------------------ claiming

    async def begin(self) -> None:
        """Hold the liveness token and start claiming.

        Every attempt runs in the context of this call, whoever claims it: what a request had set when its
        submit took a slot here is not the run's, which has nothing of that in another process.
        """
        self._context = contextvars.copy_context()
        await self._around.store.hold_token(self.id)
        self._claiming = asyncio.get_running_loop().create_task(self._claim_for_ever())

    async def _claim_for_ever(self) -> None:
        with self._around.store.hub.watch(wakeup.QUEUE) as waiter:
            while not self._closing:
                waiter.clear()
                took = 0
                try:
                    took = await self.claim_once()
                except Exception as failure:  # a worker whose claiming died would look healthy and do nothing
                    self._around.happenings.emit(
                        signals.BackgroundFailed(duty="claiming", error=repr(failure))
                    )
                if not took:
                    await waiter.wait(self._around.store.hub.poll * (0.5 + self._around.local.random()))

    async def claim_once(self) -> int:
        """Claim up to as many runs as there are free slots; returns how many were taken."""
        if self.free <= 0 or not await self._around.store.read(reads.claimable(self._registry.driven)):
            return 0
        offers = [offer for _ in range(self.free) if (offer := self.offer()) is not None]
        if not offers:
            return 0
        unused = {offer.claim_token: offer for offer in offers}
        since = self._around.local.monotonic()
        try:
            taken = await self._around.store.write(moves.claim(offers))
            failpoints.reach("worker.claimed")
            for run in taken:
                self.start(run, unused.pop(run.claim.claim_token), since)
        finally:
            self._reserved.difference_update(unused)
        return len(taken)

    # ------------------------------------------------------------ the end

    async def shutdown(self, budget: float) -> None:
        """Take no more work and hand back what is driven, within ``budget`` seconds.

        What cannot be handed back in time is cancelled; its lease expires and the sweeper recovers it.
        """
        self._closing = True
        self._around.keeper.end_all(lease.Halt.SHUTDOWN)
        await self._end_claiming(budget / 2)
        if self._driving:
            await asyncio.wait(set(self._driving), timeout=budget)
        for task in (*self._driving, *self._leaked):
            task.cancel()

    async def _end_claiming(self, budget: float) -> None:
        """Let a claim in flight come back: cut off, its run would have no driver and be charged a loss."""
        if self._claiming is None:
            return
        self._around.store.hub.wake((wakeup.QUEUE,))
        await asyncio.wait({self._claiming}, timeout=budget)
        self._claiming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._claiming
