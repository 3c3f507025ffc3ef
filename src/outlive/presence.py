"""Who watches a run: joins, leaves, and how far each viewer was served.

Presence is a lease on the record, so an API process that dies and a client that vanishes without a word both
count as gone.  What their going means is ``disconnect``'s to say, never this file's.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlive import errors, signals
from outlive.store import Store, wakeup, watching
from outlive.store.script import Script


class Left(StrEnum):
    """Why a viewer's subscription ended."""

    END = "end"
    DISCONNECT = "disconnect"
    OURS = "ours"


LEASE = 15.0
LINGER = 0.05
"""Seconds after which it is recorded that a viewer saw the end."""
HOLD = watching.HOLD


@dataclass(kw_only=True, eq=False, slots=True)
class Viewer:
    """One subscription.  ``seen`` is the last seq handed to its transport.

    With a ``thread_id`` it is of the whole thread: ``run_id`` is empty then, and ``seen`` the thread's seq.
    """

    name: str
    run_id: str
    seen: int
    thread_id: str | None = None
    since: float = field(default_factory=time.time)


class Presence:
    """The viewers that this process serves."""

    def __init__(self, store: Store, *, happenings: signals.Signals, lease: float = LEASE) -> None:
        """``lease``: seconds for which a viewer counts as present without a further word."""
        self._store = store
        self._lease = lease
        self._signals = happenings
        self._viewers: dict[str, Viewer] = {}
        self._joining: dict[Viewer, asyncio.Task[None]] = {}
        self._ended: dict[str, int] = {}
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_lag: Callable[[float], None] | None = None

    @property
    def watching(self) -> int:
        """How many viewers this process serves now."""
        return len(self._viewers)

    def delivered(self, viewer: Viewer, committed_at: float) -> None:
        """An event was handed to a viewer's transport; one from before it came says nothing about delays."""
        if self.on_lag is not None and committed_at >= viewer.since:
            self.on_lag(max(0.0, time.time() - committed_at))

    async def join(self, viewer: Viewer, *, recorded: bool = False) -> None:
        """Record that a viewer watches; ``recorded`` says that the submit of the run just did."""
        self._viewers[viewer.name] = viewer
        if recorded:
            return
        step = watching.join(viewer.name, viewer.run_id, self._lease, viewer.seen, thread_id=viewer.thread_id)
        joining = self._joining[viewer] = self._spawn(self._store.write(step))
        joining.add_done_callback(functools.partial(self._joined, viewer))
        await asyncio.shield(joining)

    def _joined(self, viewer: Viewer, joining: asyncio.Task[None]) -> None:
        self._joining.pop(viewer, None)
        if not joining.cancelled():
            joining.exception()  # whoever waited for it may be gone; the loop would complain

    def leave(self, viewer: Viewer, cause: Left) -> None:
        """Record that a viewer left, in a task of its own: the caller is often being cancelled.

        A viewer who never joined may still have been recorded by the submit that began the run.
        """
        self._viewers.pop(viewer.name, None)
        if cause is Left.END and viewer not in self._joining:
            self._ended[viewer.name] = viewer.seen
            if len(self._ended) == 1:
                self._spawn(self._leave_at_end())
        else:
            self._spawn(self._leave(viewer, cause))

    async def _leave_at_end(self) -> None:
        """Record the viewers of a moment who saw the end: alone, each would cost a commit."""
        await asyncio.wait({self._closing}, timeout=LINGER)
        ended, self._ended = self._ended, {}
        await self._told(watching.leave_at_end(ended))

    async def _leave(self, viewer: Viewer, cause: Left) -> None:
        hold = HOLD if cause is Left.OURS else 0.0
        if (joining := self._joining.get(viewer)) is not None:
            # Cut off while joining: left before it had joined, a viewer would stay until its lease ran out.
            await asyncio.wait({joining})
        await self._told(watching.leave(viewer.name, cause.value, viewer.seen, hold))
        if cause is not Left.END:  # the run is over then: nobody's leaving can stop it
            self._store.announce(wakeup.VIEWERS)

    async def _told(self, leaving: Script[None]) -> None:
        try:
            await self._store.write(leaving)
        except errors.Unavailable as failure:
            # Their leases run out by themselves; nothing is lost but promptness.
            self._signals.emit(signals.BackgroundFailed(duty="leaving", error=str(failure)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self) -> None:
        """Extend the presence of live viewers for ever."""
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self.keep_once()
            except Exception as failure:  # without it every viewer of this process would seem to leave
                self._signals.emit(signals.BackgroundFailed(duty="presence", error=repr(failure)))

    async def keep_once(self) -> None:
        """Extend the presence of every live viewer once."""
        if self._viewers:
            seen = {viewer.name: viewer.seen for viewer in self._viewers.values()}
            await self._store.write(watching.keep(seen, self._lease))

    async def close(self) -> None:
        """Leave on behalf of everybody still here, as ended by us, and wait for the records."""
        for viewer in list(self._viewers.values()):
            self.leave(viewer, Left.OURS)
        if not self._closing.done():
            self._closing.set_result(None)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5.0)
