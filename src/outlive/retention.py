"""Takes away the events of runs that ended long ago; what a run was and came to is kept.

Of such a run the record, the end event and the last state before it stay.  What became of a schedule's slots
goes after the same time.  Decides when and how much at once; what exactly is taken is in ``store.pruning``.
"""

from __future__ import annotations

import asyncio

from outlive import errors, signals
from outlive.store import Store, pruning, schedules

EVERY = 60.0
RUNS = 100
BATCH = 1000
"""Events that one transaction deletes at most: writers wait for no more than that."""


class Retention:
    """A process's look-out for runs that ended more than ``seconds`` ago; any number may run side by side."""

    def __init__(self, store: Store, seconds: float, *, happenings: signals.Signals) -> None:
        if seconds < 0:
            raise errors.Misconfigured("retention is below zero.", hint="Give it in seconds.")
        self._store = store
        self._seconds = seconds
        self._signals = happenings

    async def run(self) -> None:
        """Prune for ever."""
        while True:
            try:
                await self.prune_once()
                await self.prune_occurrences()
            except Exception as failure:  # one row that cannot be read must not end the look-out
                self._signals.emit(signals.BackgroundFailed(duty="retention", error=repr(failure)))
            await asyncio.sleep(EVERY)

    async def prune_once(self) -> tuple[int, int]:
        """Prune every run that is old enough; returns how many runs and how many events that were."""
        runs = events = 0
        while found := await self._store.read(pruning.candidates(self._seconds, RUNS)):
            for run_id in found:
                events += await self._prune(run_id)
            runs += len(found)
        return runs, events

    async def prune_occurrences(self) -> int:
        """Take away every occurrence of a schedule that is old enough; returns how many that were."""
        deleted = 0
        while gone := await self._store.write(schedules.prune(self._seconds, BATCH)):
            deleted += gone
        return deleted

    async def _prune(self, run_id: str) -> int:
        deleted = 0
        while True:
            step = await self._store.write(pruning.prune(run_id, BATCH))
            deleted += step.deleted
            if step.over:
                return deleted
