"""Virtual time, and processes that can be frozen, stalled and killed inside one event loop.

Every callback of an event loop belongs to the process in whose context it was scheduled.  Before a callback
of a frozen process runs it is put aside until the thaw, timers and all, as SIGSTOP would have it; those of a
killed process are dropped: no ``finally`` of it ever runs, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
PROCESS: contextvars.ContextVar[Sandbox | None] = contextvars.ContextVar("process", default=None)
RENEWING: contextvars.ContextVar[bool] = contextvars.ContextVar("renewing", default=False)
MOST_CALLBACKS = 2_000_000


class StuckError(RuntimeError):
    """Nothing is scheduled and somebody still waits, or the simulation never comes to rest."""


class _Timer(asyncio.TimerHandle):
    """A timer that is made and cancelled in fewer steps: a simulation spends much of its time on these."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._when = when
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._scheduled = False

    def cancel(self) -> None:
        """Never run it."""
        self._cancelled = True
        self._args = ()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer; deterministic, without threads or sockets.

    Its own heap of timers orders equal times by the order in which they were asked for.  ``made`` holds every
    task ever made and its process: what a garbage collector would complain about at some time or other is
    looked up at the end instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[asyncio.Task[Any], Sandbox | None]] = []
        self._now = 0.0
        self._ran = 0
        self._clock_resolution = 1e-9
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._asked = itertools.count()

    def time(self) -> float:
        """Virtual seconds since the beginning of the simulation."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback at this moment, after those that were asked for before."""
        handle = _Timer(self._now, callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a time; at once if that has passed."""
        timer = _Timer(when, callback, args, self, context)
        if when <= self._now:
            self._ready.append(timer)  # type: ignore[attr-defined]
        else:
            heapq.heappush(self._timers, (when, next(self._asked), timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after some seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def get_debug(self) -> bool:
        """Never: it would only cost time."""
        return False

    def create_task(self, coro: Any, **how: Any) -> asyncio.Task[Any]:
        """Make a task, and remember whose it is."""
        task = super().create_task(coro, **how)
        context = how.get("context")
        self.made.append((task, PROCESS.get() if context is None else context.get(PROCESS)))
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call ``func`` here and now: a thread would bring in real time and an order that no seed decides."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as failure:
            future.set_exception(failure)
        return future

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready:
                self._advance(ready)
            handle = ready.popleft()
            if handle._cancelled:
                continue
            sandbox = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if sandbox is None or sandbox.lets(handle):
                handle._run()
            self._ran += 1
            if self._ran > MOST_CALLBACKS:
                raise StuckError("the simulation does not come to rest")

    def _advance(self, ready: deque[asyncio.Handle]) -> None:
        """Jump to the next timer, and take whatever else is due then."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise StuckError("everybody waits and nothing is due")
        self._now = timers[0][0]
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])

    def _write_to_self(self) -> None:
        """There is no other thread to wake this one."""

    def _process_events(self, event_list: object) -> None:
        """There are no sockets."""


class Sandbox:
    """One simulated process: the context of its tasks, and whether they run."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.dead = False
        self.frozen = 0
        self.stalled = 0
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)
        self._parked: list[asyncio.Handle] = []

    def lets(self, handle: asyncio.Handle) -> bool:
        """Say whether a callback may run now; park it if it may run later."""
        if self.dead:
            return False
        if not self.frozen and not self.stalled:
            return True
        if not self.frozen and handle._context.get(RENEWING):  # type: ignore[attr-defined]
            return True
        self._parked.append(handle)
        return False

    def freeze(self) -> None:
        """Stop everything, as SIGSTOP does."""
        self.frozen += 1

    def stall(self) -> None:
        """Stop the event loop but not the renewing thread, as a node that blocks does."""
        self.stalled += 1

    def thaw(self) -> None:
        """Take back one ``freeze``."""
        self.frozen -= 1
        self._unpark()

    def go_on(self) -> None:
        """Take back one ``stall``."""
        self.stalled -= 1
        self._unpark()

    def _unpark(self) -> None:
        """Let what was put aside run; it is put aside again if something else still stands in its way."""
        parked, self._parked = self._parked, []
        for handle in parked:
            self._loop._ready.append(handle)  # type: ignore[attr-defined]

    def kill(self) -> None:
        """Never run anything again."""
        self.dead = True
        self._parked.clear()

    def later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Call something as part of this process after ``delay`` seconds."""
        self._loop.call_later(delay, callback, *args, context=self._context)

    def spawn(self, work: Coroutine[Any, Any, T], *, renewing: bool = False) -> asyncio.Task[T]:
        """Run ``work`` as part of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        context.run(RENEWING.set, renewing)
        return self._loop.create_task(work, context=context)


class Dice:
    """Independent streams of randomness by purpose, so that a smaller plan rolls the same elsewhere."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._about = ""
        self._streams: dict[str, random.Random] = {}

    @classmethod
    def within(cls, dice: Dice, about: str) -> Dice:
        """Dice whose streams have nothing in common with those of ``dice``, whatever they are called."""
        apart = cls(dice._seed)
        apart._about = f"{about}/"
        return apart

    def of(self, purpose: str) -> random.Random:
        """The stream of one purpose."""
        purpose = self._about + purpose
        if purpose not in self._streams:
            self._streams[purpose] = random.Random(f"{self._seed}/{purpose}")
        return self._streams[purpose]
