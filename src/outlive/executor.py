"""Which threads an agent's code still runs in: they cannot be cut, so that whoever ends an attempt waits.

Decides what counts: calls that the attempt's own tasks gave to the loop's default executor, as LangGraph does
with a synchronous node, LangChain with a synchronous tool, and ``asyncio.to_thread`` with anything.  Does not
decide for how long anybody waits, nor what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """The calls of one attempt that have not returned."""

    def __init__(self) -> None:
        self._calls: dict[Future[Any], object] = {}

    def begin(self) -> None:
        """Count what this task, and what it starts, calls from now on."""
        CURRENT.set(self)

    def add(self, call: Future[Any]) -> None:
        """Know of a call until it returns."""
        self._calls[call] = PART.get()
        call.add_done_callback(self._forget)

    def _forget(self, call: Future[Any]) -> None:
        self._calls.pop(call, None)

    def of(self, part: object) -> list[Future[Any]]:
        """The calls of one part of the agent that have not returned."""
        return [call for call, caller in tuple(self._calls.items()) if caller is part and not call.done()]

    async def outlasting(self, give_up: float) -> asyncio.Task[None] | None:
        """Wait until every call has returned; return the waiting if it lasts longer than until ``give_up``.

        What a thread does is the run's: until it returns, the run has not stopped.
        """
        if not self._running():
            return None
        loop = asyncio.get_running_loop()
        returning = loop.create_task(self.returned())
        await asyncio.wait({returning}, timeout=max(0.0, give_up - loop.time()))
        return None if returning.done() else returning

    def _running(self) -> list[Future[Any]]:
        return [call for call in tuple(self._calls) if not call.done()]

    async def returned(self) -> None:
        """Wait until every call has returned."""
        while waiting := self._running():
            await self.over(waiting)

    @staticmethod
    async def over(calls: Iterable[Future[Any]]) -> None:
        """Wait until these calls have returned."""
        loop = asyncio.get_running_loop()
        for call in calls:
            over = asyncio.Event()

            def tell(_: Future[Any], over: asyncio.Event = over) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    loop.call_soon_threadsafe(over.set)

            call.add_done_callback(tell)
            await over.wait()


CURRENT: ContextVar[Threads | None] = ContextVar("outlive_threads", default=None)
"""Set in the agent's own task, and so in all that it starts."""
PART: ContextVar[object] = ContextVar("outlive_part", default=None)
"""Which part of the agent calls, if it works in parts."""


class Executor(ThreadPoolExecutor):
    """A default executor that says which attempt a call belongs to."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like its base, in the context of whoever submits."""
        call = super().submit(fn, *args, **kwargs)
        if (threads := CURRENT.get()) is not None:
            threads.add(call)
        return call


_watched: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def watch() -> None:
    """Make the running loop's default executor one that tells, once; an application's own may replace it.

    It is the loop's, which ends it: another runtime on the same loop uses it too.
    """
    loop = asyncio.get_running_loop()
    if loop not in _watched:
        _watched.add(loop)
        loop.set_default_executor(Executor(thread_name_prefix="asyncio"))
