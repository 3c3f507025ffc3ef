"""Which parts of an agent a cancellation may reach, and when it would tear what was done.

An agent that works in parts, as a graph does in nodes, has something to do between a part's return and the
record of what it returned: whoever is cancelled there has executed the part and lost it.  So the parts are
cut, each by itself and only while it runs, and the agent's own task only once nothing of that can be under
way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

QUIET = 0.1
TURNS = 50
"""Seconds without a running part, and turns of the event loop: more than lie between the return of a part and
the start of the write of what it returned, also where the loop is busy."""


class Cut(Exception):
    """This part may not run, or go on: its attempt is being ended."""


class Parts:
    """The parts of one attempt's agent."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], bool] = {}
        self._used = False
        self._is_cut = False
        self._cut: set[asyncio.Task[Any]] = set()
        self._moved = asyncio.Event()

    def begin(self) -> None:
        """Count what this task, and what it starts, runs from now on."""
        CURRENT.set(self)

    @contextmanager
    def part(self, *, yields: bool) -> Iterator[None]:
        """Run a part in the current task; raises ``Cut`` in place of a cancellation that is ours.

        ``yields`` False: it cannot be cut, as what runs in a thread; its end is waited for.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._is_cut:
            raise Cut
        self._used = True
        self._running[task] = yields
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            task.uncancel()
            raise Cut from None
        finally:
            self._running.pop(task, None)
            self._moved.set()

    async def cut(self, work: asyncio.Task[Any], until: float) -> None:
        """Cut what runs; return once ``work`` is over, or can be cancelled and nothing is torn.

        ``until`` is by the loop's clock: then it returns whatever may be torn.
        """
        loop = asyncio.get_running_loop()
        self._is_cut = True
        self._cut = {task for task, yields in self._running.items() if yields}
        for task in self._cut:
            task.cancel()
        if not self._used:
            return
        while not work.done() and loop.time() < until and not await self._is_quiet(work, until):
            pass

    async def _is_quiet(self, work: asyncio.Task[Any], until: float) -> bool:
        """Wait until no part runs, and see whether that lasts."""
        loop = asyncio.get_running_loop()
        if self._running:
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
            if work.done() or self._running:
                return False
            await asyncio.sleep(0)
        return True


CURRENT: ContextVar[Parts | None] = ContextVar("outlive_parts", default=None)
"""Set in the agent's own task, and so in all that it starts."""
