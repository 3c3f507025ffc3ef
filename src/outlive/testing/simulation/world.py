"""Virtual time, and processes that can be frozen, stalled and killed inside one event loop.

Every callback of an event loop belongs to the process in whose context it was scheduled.  Before a callback
of a frozen process runs it is put aside until the thaw, timers and all, as SIGSTOP would have it; those of a
killed process are dropped: no ``finally`` of it ever runs, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
PROCESS: contextvars.ContextVar[Sandbox | None] = contextvars.ContextVar("process", default=None)
RENEWING: contextvars.ContextVar[bool] = contextvars.ContextVar("renewing", default=False)
MOST_CALLBACKS = 2_000_000


class StuckError(RuntimeError):
    """Nothing is scheduled and somebody still waits, or the simulation never comes to rest."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer; deterministic, without threads or sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._ran = 0
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the beginning of the simulation."""
        return self._now

    def _run_once(self) -> None:
        self._collect_due()
        for _ in range(len(self._ready)):  # type: ignore[attr-defined]
            handle = self._ready.popleft()  # type: ignore[attr-defined]
            if handle._cancelled:
                continue
            sandbox = handle._context.get(PROCESS)
            if sandbox is None or sandbox.lets(handle):
                handle._run()
        self._ran += 1
        if self._ran > MOST_CALLBACKS:
            raise StuckError("the simulation does not come to rest")

    def _collect_due(self) -> None:
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                self._pop()
            if not scheduled:
                raise StuckError("everybody waits and nothing is due")
            self._now = max(self._now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now:
            ready.append(self._pop())

    def _pop(self) -> asyncio.TimerHandle:
        import heapq  # noqa: PLC0415 - the base class keeps its timers in a heap

        handle: asyncio.TimerHandle = heapq.heappop(self._scheduled)  # type: ignore[attr-defined]
        handle._scheduled = False  # type: ignore[attr-defined]
        return handle

    def _write_to_self(self) -> None:
        """There is no other thread to wake this one."""

    def _process_events(self, event_list: object) -> None:
        """There are no sockets."""


class Sandbox:
    """One simulated process: the context of its tasks, and whether they run."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.dead = False
        self.frozen = False
        self.stalled = False
        self._loop = loop
        self._parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def lets(self, handle: asyncio.Handle) -> bool:
        """Say whether a callback may run now; park it if it may run later."""
        if self.dead:
            return False
        renewing = handle._context.get(RENEWING)  # type: ignore[attr-defined]
        if self.frozen or (self.stalled and not renewing):
            self._parked.append(handle)
            return False
        return True

    def freeze(self) -> None:
        """Stop everything, as SIGSTOP does."""
        self.frozen = True

    def stall(self) -> None:
        """Stop the event loop but not the renewing thread, as a node that blocks does."""
        self.stalled = True

    def thaw(self) -> None:
        """Go on where it stood."""
        self.frozen = self.stalled = False
        parked, self._parked = self._parked, []
        for handle in parked:
            self._loop._ready.append(handle)  # type: ignore[attr-defined]

    def kill(self) -> None:
        """Never run anything again."""
        self.dead = True
        self._parked.clear()

    def spawn(self, work: Coroutine[Any, Any, T], *, renewing: bool = False) -> asyncio.Task[T]:
        """Run ``work`` as part of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        context.run(RENEWING.set, renewing)
        task = self._loop.create_task(work, context=context)
        self.tasks.append(task)
        return task


class Dice:
    """Independent streams of randomness by purpose, so that a smaller plan rolls the same elsewhere."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def of(self, purpose: str) -> random.Random:
        """The stream of one purpose."""
        if purpose not in self._streams:
            self._streams[purpose] = random.Random(f"{self._seed}/{purpose}")
        return self._streams[purpose]
