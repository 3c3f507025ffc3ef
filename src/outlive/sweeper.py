"""Finds runs whose executor is gone and gives them back, or ends them as their policy says.

A lease that expired by the database's clock is enough.  Earlier than that only on proof: the worker's
liveness token was absent in two looks, a renewal was missed, and the database has been up for longer than a
lease (its restart drops every token of a healthy fleet).
"""

from __future__ import annotations

import asyncio

from outlive import lease, seams, signals
from outlive.model import Suspect, Swept
from outlive.states import State
from outlive.store import Store, moves, reads, wakeup

LIMIT = 100
_STATES = {
    Swept.REQUEUED: State.QUEUED,
    Swept.STOPPED: State.STOPPED,
    Swept.ABANDONED: State.ABANDONED,
}


class Sweeper:
    """One process's look-out for lost executors; any number may run side by side."""

    def __init__(
        self,
        store: Store,
        *,
        timing: lease.Timing,
        happenings: signals.Signals,
        local: seams.Seams = seams.REAL,
        every: float = 0.15,
    ) -> None:
        self._store = store
        self._timing = timing
        self._signals = happenings
        self._local = local
        self._every = every
        self._absent: set[str] = set()

    async def run(self) -> None:
        """Sweep for ever, every ``every`` seconds with some jitter so that a fleet spreads out."""
        while True:
            try:
                await self.sweep_once()
            except Exception as failure:  # one row that cannot be read must not end the look-out
                self._signals.emit(signals.BackgroundFailed(duty="sweeping", error=repr(failure)))
            await asyncio.sleep(self._every * (0.8 + 0.4 * self._local.random()))

    async def sweep_once(self) -> int:
        """Look once; returns how many runs were taken from lost executors."""
        missed = round(self._timing.renew_every * 1.6 * 1000)
        suspects = await self._store.read(reads.suspects(missed, LIMIT))
        proven = await self._proven_dead({suspect.worker for suspect in suspects})
        taken = 0
        for suspect in suspects:
            early = not suspect.expired and suspect.worker in proven
            if suspect.expired or early:
                taken += await self._sweep(suspect, early)
        return taken

    async def _proven_dead(self, workers: set[str]) -> set[str]:
        """Workers absent in this look and the last, as far as absence proves anything now."""
        absent = await self._store.dead(workers) if workers else set()
        twice, self._absent = absent & self._absent, absent
        if twice and 0 < await self._store.read(reads.uptime()) < self._timing.lease * 1000:
            return set()
        return twice

    async def _sweep(self, suspect: Suspect, early: bool) -> bool:
        swept = await self._store.write(moves.sweep(suspect, early))
        if swept is Swept.SPARED:
            return False
        self._signals.emit(
            signals.RunSwept(
                run_id=suspect.run_id,
                epoch=suspect.epoch,
                state=_STATES[swept],
                early=early,
                thread_id=suspect.thread_id,
                heard_of=suspect.renewed_at / 1000,
                traceparent=suspect.traceparent,
            )
        )
        ended = (wakeup.OUTBOX,) if _STATES[swept].terminal else ()
        self._store.announce(
            *ended, wakeup.QUEUE, wakeup.run_topic(suspect.run_id), wakeup.thread_topic(suspect.thread_id)
        )
        return True
