"""Work handed from event loops to a thread, and its outcomes handed back.

Decides how both are carried at little cost: whatever ended together is told to a loop in one call.  What the
thread does with the work is ``writer``'s and ``reader``'s to say.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from outlive.store import retry

Work = Callable[[sqlite3.Connection], Any]


@dataclass(eq=False, slots=True)
class Job:
    """One piece of work and who waits for it: a future of ``loop``, or one that a thread waits for."""

    work: Work
    loop: asyncio.AbstractEventLoop | None = None
    future: Any = None
    value: Any = None
    error: BaseException | None = field(default=None)

    @classmethod
    def of_loop(cls, work: Work) -> Job:
        """Work that the running loop waits for."""
        loop = asyncio.get_running_loop()
        return cls(work, loop, loop.create_future())

    @classmethod
    def of_thread(cls, work: Work) -> Job:
        """Work that another thread waits for."""
        return cls(work, None, concurrent.futures.Future())

    async def ended(self, within: float | None) -> Any:
        """Await the outcome; after ``within`` seconds raises ``Transient``: what became of it is unknown."""
        if within is None or self.loop is None:
            return await self.future
        bound = self.loop.call_later(within, self._give_up)  # far cheaper than a time-out around the await
        try:
            return await self.future
        finally:
            bound.cancel()

    def _give_up(self) -> None:
        if not self.future.done():
            self.future.set_exception(retry.Transient("no answer within the budget"))

    def run(self, connection: sqlite3.Connection) -> None:
        """Do it; raises what it raises."""
        self.value = self.work(connection)

    def tell(self) -> None:
        """Tell whoever waits how it ended; one who has left meanwhile is not told."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


def deliver(jobs: Iterable[Job]) -> None:
    """Tell everybody, from the thread that did the work."""
    of_loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        if job.loop is None:
            job.tell()
        else:
            of_loops.setdefault(job.loop, []).append(job)
    for loop, told in of_loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed; nobody waits any more
            loop.call_soon_threadsafe(_tell_all, told)


def _tell_all(jobs: list[Job]) -> None:
    for job in jobs:
        job.tell()
