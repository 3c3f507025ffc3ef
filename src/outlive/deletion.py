"""Deletes threads, by a word or when their time has passed: their runs, events, checkpoints, bodies, files.
Also the items of graphs' memory whose time has passed.

Decides the order, and who goes on where somebody was cut off in the middle: any process, within a minute.
From when on nothing can be written any more is in ``store.deleting``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlive import artifacts, errors, signals
from outlive.agents.positions import Forgets
from outlive.store import Store, deleting, items, wakeup

EVERY = 60.0
THREADS = 100
BATCH = 1000
"""Events that one transaction deletes at most: writers wait for no more than that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """What became of a thread.  ``stopped`` are the runs that were live; ``effects`` remain in the ledger.

    ``open`` are those of them whose outcome is open still.  ``cleared`` is False where something could not be
    taken away now: nobody finds it, and it is tried again.
    """

    thread: str
    runs: tuple[str, ...]
    stopped: tuple[str, ...]
    effects: int
    open: tuple[str, ...]
    cleared: bool

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "thread": self.thread,
            "deleted": True,
            "runs": len(self.runs),
            "stopped": list(self.stopped),
            "effects_kept": self.effects,
            "effects_open": list(self.open),
            "cleared": self.cleared,
        }


class Deletion:
    """One process's part in it; any number may work side by side."""

    def __init__(
        self,
        store: Store,
        *,
        happenings: signals.Signals,
        files: artifacts.Root | None = None,
        agents: Iterable[object] = (),
    ) -> None:
        """``agents``: those that keep something of a thread elsewhere are asked to forget it."""
        self._store = store
        self._signals = happenings
        self._files = files
        self._forgetful = [agent for agent in agents if isinstance(agent, Forgets)]

    async def delete(self, thread: str, thread_id: str, *, force: bool) -> Deleted:
        """Delete a thread that was just found; raises ``ThreadUnsettled`` unless ``force``.

        Once this has begun to take effect it is not undone by a cancellation or a crash.
        """
        return await self._over(thread, await self._store.write(deleting.bury(thread_id, force=force)))

    async def _over(self, thread: str, buried: deleting.Buried) -> Deleted:
        thread_id = buried.thread_id
        runs = (wakeup.run_topic(run_id) for run_id in buried.stopped)
        self._store.announce(wakeup.STOP, wakeup.QUEUE, *runs, wakeup.thread_topic(thread_id))
        return Deleted(
            thread=thread,
            runs=buried.runs,
            stopped=buried.stopped,
            effects=buried.effects,
            open=buried.open,
            cleared=await self._cleared(thread_id),
        )

    async def _cleared(self, thread_id: str) -> bool:
        try:
            await self.clear(thread_id)
        except Exception as failure:  # nobody finds the thread any more; the duty tries again
            self._signals.emit(signals.BackgroundFailed(duty="deletion", error=repr(failure)))
            return False
        self._store.announce(wakeup.thread_topic(thread_id))
        return True

    async def clear(self, thread_id: str) -> None:
        """Take away what is left of a thread that nobody finds any more."""
        for run_id, _ in await self._store.read(deleting.runs(thread_id)):
            await self._remove_files(run_id)
        for agent in self._forgetful:
            await agent.forget(thread_id)
        while await self._store.write(deleting.clear_events(thread_id, BATCH)) == BATCH:
            pass
        await self._store.write(deleting.clear(thread_id))

    async def _remove_files(self, run_id: str) -> None:
        if self._files is None:
            return
        try:
            await self._files.remove(run_id)
        except errors.InvalidInput:  # an id that no file was ever kept under
            return

    async def run(self) -> None:
        """Go on for ever with what others have left behind."""
        while True:
            try:
                await self.clear_once()
                await self.delete_passed()
                await self._store.write(items.drop_passed())
            except Exception as failure:  # one thread that cannot be cleared must not end the look-out
                self._signals.emit(signals.BackgroundFailed(duty="deletion", error=repr(failure)))
            await asyncio.sleep(EVERY)

    async def clear_once(self) -> int:
        """Clear every thread that was deleted and left; returns how many."""
        found = await self._store.read(deleting.buried(THREADS))
        for thread_id in found:
            await self._cleared(thread_id)
        return len(found)

    async def delete_passed(self) -> int:
        """Delete every thread whose time has passed; returns how many.

        One of which the outcome of an effect is open stays, and is looked at again.
        """
        deleted, after = 0, ""
        while found := await self._store.read(deleting.passed(after, THREADS)):
            for thread_id, thread in found:
                try:
                    buried = await self._store.write(deleting.bury_passed(thread_id))
                except errors.ThreadUnsettled:
                    continue
                if buried is not None:
                    await self._over(thread, buried)
                    deleted += 1
            after = found[-1][0]
        return deleted
