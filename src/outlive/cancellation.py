"""Which parts of an agent a cancellation may reach, and when it would tear what was done.

An agent that works in parts, as a graph does in nodes, has something to do between a part's return and the
record of what it returned: whoever is cancelled there has executed the part and lost it.  So the parts are
cut, each by itself and only while it runs, and the agent's own task only once nothing of that can be under
way.  What has to be done between the two, and takes time, is left time for most of the patience there is.

A part that has called a thread is cut once that has returned: a thread goes on, and what it did would be
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from outlive import executor

T = TypeVar("T")

QUIET = 0.1
TURNS = 50
"""Seconds without a running part, and turns of the event loop: more than lie between the return of a part and
the start of the write of what it returned, also where the loop is busy."""
LATE = 0.2
"""The last share of a cut's time: half of it to cut what follows a part, half to cancel the agent."""


class Cut(Exception):
    """This part may not run, or go on: its attempt is being ended."""


class Parts:
    """The parts of one attempt's agent; ``failures`` is what parts answered to being cut."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self._running: dict[asyncio.Task[Any], bool] = {}
        self._finishing: dict[asyncio.Task[Any], None] = {}
        self._used = False
        self._is_cut = False
        self._cut: set[asyncio.Task[Any]] = set()
        self._moved = asyncio.Event()
        self._threads = executor.Threads()

    def begin(self) -> None:
        """Count what this task, and what it starts, runs from now on."""
        CURRENT.set(self)
        self._threads = executor.CURRENT.get() or self._threads

    @contextmanager
    def part(self, *, yields: bool) -> Iterator[None]:
        """Run a part in the current task; raises ``Cut`` in place of a cancellation that is ours.

        Also in place of any error with which a part answers it: what was cut has not failed.
        ``yields`` False: it cannot be cut, as what runs in a thread; its end is waited for.
        """
        if self._is_cut:
            raise Cut
        with self._counted(self._running, yields):
            yield

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Do in the current task what follows a part's return and precedes the record of it.

        It begins although parts are being cut, and is cut last: the part would have to be run again.
        """
        with self._counted(self._finishing, None):
            yield

    @contextmanager
    def _counted(self, where: dict[asyncio.Task[Any], T], how: T) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._used = True
        where[task] = how
        executor.PART.set(task)
        try:
            yield
        except (asyncio.CancelledError, Exception) as ended:
            if task not in self._cut:
                raise
            if isinstance(ended, Exception):
                self.failures.append(ended)
            raise Cut from None
        finally:
            if task in self._cut:
                self._cut.discard(task)
                task.uncancel()
            where.pop(task, None)
            self._moved.set()

    async def cut(self, work: asyncio.Task[Any], until: float) -> None:
        """Cut what runs; return once ``work`` is over, or can be cancelled and nothing is torn.

        ``until`` is by the loop's clock: shortly before, it returns whatever may be torn.
        """
        late = LATE * (until - asyncio.get_running_loop().time())
        self._is_cut = True
        running = {task for task, yields in self._running.items() if yields}
        calling = {task for task in running if self._threads.of(task)}
        self._end(running - calling)
        returning = [asyncio.create_task(self._end_behind_its_threads(task)) for task in calling]
        try:
            if self._used and not await self._are_over(work, until - late):
                self._end(set(self._finishing))
                await self._are_over(work, until - late / 2)
        finally:
            for each in returning:
                each.cancel()

    async def _end_behind_its_threads(self, task: asyncio.Task[Any]) -> None:
        """Cut a part that does not return with what its threads have done."""
        await self._threads.over(self._threads.of(task))
        for _ in range(TURNS):
            if task not in self._running:
                return
            await asyncio.sleep(0)
        self._end({task})

    def _end(self, tasks: set[asyncio.Task[Any]]) -> None:
        self._cut |= tasks
        for task in tasks:
            task.cancel()

    async def _are_over(self, work: asyncio.Task[Any], until: float) -> bool:
        loop = asyncio.get_running_loop()
        while not work.done() and loop.time() < until:
            if await self._is_quiet(work, until):
                return True
        return work.done()

    async def _is_quiet(self, work: asyncio.Task[Any], until: float) -> bool:
        """Wait until no part runs, and see whether that lasts."""
        loop = asyncio.get_running_loop()
        if self._running or self._finishing:
            self._moved.clear()
            moved = loop.create_task(self._moved.wait())
            try:
                await asyncio.wait(
                    {work, moved},
                    timeout=max(0.0, until - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                moved.cancel()
            return False
        await asyncio.wait({work}, timeout=max(0.0, min(QUIET, until - loop.time())))
        for _ in range(TURNS):
            if work.done() or self._running or self._finishing:
                return False
            await asyncio.sleep(0)
        return True


CURRENT: ContextVar[Parts | None] = ContextVar("outlive_parts", default=None)
"""Set in the agent's own task, and so in all that it starts."""
