"""Path 3: follow a run or a thread from any cursor to its end.

Replay and live are the same code: read what is committed, hand it over, wait for a hint, read again.  A lost
hint costs one poll interval, never an event.  Whoever stands right before the events of a commit that this
process has just made is given them as a reader would find them, and only so far spared the reading.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outlive import errors
from outlive.model import Event, EventKind, Run, Thread
from outlive.store import Store, pruning, reads, wakeup
from outlive.store.script import Script

T = TypeVar("T")

PAGE = 500
"""Events that one read returns at most."""
PAGE_BYTES = 2 * 1024 * 1024
"""About how much one read returns: each viewer holds as much for as long as its client does not read on."""
_FIRST, _FASTER = 8, 8
_FIRST_OF_PAGE = 64


class Pages:
    """How many events to read at once: the more, the smaller those before were."""

    def __init__(self) -> None:
        self.size = _FIRST

    def full(self, events: Sequence[Event]) -> bool:
        """Say whether there may be more than these, and learn from their size."""
        if len(events) < self.size:
            return False
        each = sum(len(event.payload) for event in events) / len(events)
        self.size = max(1, min(PAGE, self.size * _FASTER, int(PAGE_BYTES / max(each, 1.0))))
        return True


def _check_whole(events: Sequence[Event], after: int) -> None:
    """Raise ``Pruned`` if what followed ``after`` is gone; who has seen nothing begins with what there is."""
    if after and events[0].seq != after + 1:
        run_id = events[0].run_id
        raise errors.Pruned(oldest=events[0].seq, latest=None, snapshot=f"/runs/{run_id}", run_id=run_id)


async def _start_of_thread(store: Store, thread_id: str, after: int) -> int:
    """Return where a thread that was pruned begins; raises ``Pruned`` for who had seen a part of it."""
    if not await store.read(reads.thread_is_there(thread_id)):
        raise errors.Deleted
    oldest = await store.read(pruning.oldest_of_thread(thread_id))
    if after or oldest <= 1:
        raise errors.Pruned(oldest=oldest, latest=None, snapshot="/threads")
    return oldest - 1


async def page(store: Store, run_id: str, after: int, limit: int) -> list[Event]:
    """Return up to ``limit`` events of a run after ``after``: fewer if they have more than ``PAGE_BYTES``."""
    found = await _page(functools.partial(reads.events, run_id), after, limit, store)
    if found:
        _check_whole(found, after)
    return found


async def thread_page(store: Store, thread_id: str, after: int, limit: int) -> list[Event]:
    """The same of a thread, in its own sequence."""
    read = functools.partial(reads.thread_events, thread_id)
    found = await _page(read, after, limit, store, of_thread=True)
    if found and found[-1].thread_seq - after != len(found):
        after = await _start_of_thread(store, thread_id, after)
        found = await _page(read, after, limit, store, of_thread=True)
    return found


async def _page(
    read: Callable[[int, int], Script[list[Event]]],
    after: int,
    limit: int,
    store: Store,
    *,
    of_thread: bool = False,
) -> list[Event]:
    found: list[Event] = []
    pages, size = Pages(), min(limit, _FIRST_OF_PAGE)
    pages.size = size
    while True:
        events = await store.read(read(after, min(pages.size, limit - len(found))))
        found += events
        taken = sum(len(event.payload) for event in found)
        if not pages.full(events) or len(found) >= limit or taken >= PAGE_BYTES:
            return found
        after = found[-1].thread_seq if of_thread else found[-1].seq


def parse_cursor(text: str, run_id: str) -> int:
    """Read a cursor of ``run_id``: ``<run>:<seq>`` or a bare seq; raises ``InvalidCursor``."""
    named, colon, digits = text.strip().rpartition(":")
    if colon and named != run_id:
        raise errors.InvalidCursor("The cursor belongs to another run.", run_id=run_id)
    return _seq(digits, run_id)


def thread_cursor(thread_id: str, thread_seq: int) -> str:
    """The id of an event on its thread's stream; no run's cursor looks like it."""
    return f"thread-{thread_id}:{thread_seq}"


def parse_thread_cursor(text: str, thread: Thread) -> int:
    """Read a cursor of ``thread``, or a bare number of its sequence; raises ``InvalidCursor``."""
    named, colon, digits = text.strip().rpartition(":")
    if colon and named != f"thread-{thread.thread_id}":
        raise errors.InvalidCursor("The cursor is not one of this thread's stream.")
    after = _seq(digits, None)
    if after > thread.last_seq:
        raise errors.InvalidCursor(
            f"The cursor {after} is beyond the thread's last event, {thread.last_seq}."
        )
    return after


def _seq(digits: str, run_id: str | None) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise errors.InvalidCursor("The cursor is not a sequence number.", run_id=run_id)
    return int(digits)


def check_cursor(run: Run, after: int) -> None:
    """Raise ``InvalidCursor`` if ``after`` lies outside of what the run has ever written."""
    if not 0 <= after <= run.last_seq:
        raise errors.InvalidCursor(
            f"The cursor {after} is beyond the run's last event, {run.last_seq}.", run_id=run.run_id
        )


async def follow(store: Store, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
    """Yield every committed event of a run after ``after``, in order, up to and including its end.

    The generator ends only after the ``end`` event.  Close it (``aclosing``) to stop watching; stopping has
    no effect on the run.  Raises ``StoreUnavailable`` when the database stays away, ``Deleted`` if its thread
    was deleted meanwhile.
    """
    async with aclosing(looks(store, run_id, after=after)) as read:
        async for look in read:
            for event in look.events:
                yield event


async def looks(store: Store, run_id: str, *, after: int = 0) -> AsyncGenerator[Look, None]:
    """Like ``follow``, yielding together what one look at the record found: never nothing."""
    pages, topic = Pages(), wakeup.run_topic(run_id)
    with store.hub.watch(topic) as waiter:
        while True:
            waiter.clear()
            look = await _look(
                store, topic, after, functools.partial(_read, store, run_id, after, pages.size)
            )
            pages.full(look.events)
            if look.events:
                _check_whole(look.events, after)
                yield look
                after = look.events[-1].seq
            if look.over:
                return
            if not look.full and not await waiter.wait():
                store.hub.wake((topic,))  # nobody's silence is to be trusted for longer than this one's was


@dataclass(eq=False, slots=True)
class Look:
    """What one look at the record found.  Viewers of one run share it.

    ``full`` if there may be more already, ``over`` if nothing will ever follow.
    """

    events: Sequence[Event]
    full: bool = False
    over: bool = False
    _made: dict[Any, Any] = field(default_factory=dict)

    def once(self, make: Callable[[Sequence[Event]], T]) -> T:
        """Return what ``make`` makes of the events, made by the first viewer who asks."""
        if make not in self._made:
            self._made[make] = make(self.events)
        made: T = self._made[make]
        return made


_looking: set[asyncio.Task[Look]] = set()


async def _look(store: Store, topic: str, after: int, read: Callable[[], Coroutine[Any, Any, Look]]) -> Look:
    """Read on, once for all who are at the same place and have had the same hints."""
    watched = store.hub.topic(topic)
    found: Look | asyncio.Task[Look] | None = watched.shared.get(after)
    if found is None and watched.handed and watched.handed[0].seq == after + 1:
        found = watched.shared[after] = _seen(watched.handed)
    if isinstance(found, Look):
        return found
    if found is None and len(watched.waiters) == 1:
        return await read()
    if found is None:
        found = asyncio.get_running_loop().create_task(read())
        watched.shared[after] = found
        _looking.add(found)
        found.add_done_callback(functools.partial(_looked, watched, after))
    return await asyncio.shield(found)


def _looked(watched: wakeup.Topic, after: int, looking: asyncio.Task[Look]) -> None:
    _looking.discard(looking)
    failed = looking.cancelled() or looking.exception() is not None
    if failed and watched.shared.get(after) is looking:
        del watched.shared[after]  # the next one tries for himself


async def _read(store: Store, run_id: str, after: int, size: int) -> Look:
    events = await store.read(reads.events(run_id, after, size))
    if not events or (after and events[0].seq != after + 1):
        over = await _over(store, run_id, after)  # what is missing may be gone because all is
        if not events:
            return Look(events, over=over)
    return _seen(events, full=len(events) >= size)


def _seen(events: Sequence[Event], *, full: bool = False) -> Look:
    return Look(events, full=full, over=events[-1].kind is EventKind.END)


async def _over(store: Store, run_id: str, after: int) -> bool:
    """True if the cursor already stands at the end of an ended run: nothing will ever follow it."""
    try:
        run = await store.read(reads.run(run_id, None))
    except errors.NotFound:
        raise errors.Deleted(run_id=run_id) from None
    return run.state.terminal and after >= run.last_seq


async def follow_thread(store: Store, thread_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
    """Yield every committed event of a thread after ``after`` in the thread's own sequence, for ever.

    Raises ``Deleted`` once the thread is deleted.
    """
    async with aclosing(thread_looks(store, thread_id, after=after)) as read:
        async for look in read:
            for event in look.events:
                yield event


async def thread_looks(store: Store, thread_id: str, *, after: int = 0) -> AsyncGenerator[Look, None]:
    """Like ``follow_thread``, yielding together what one look at the record found: never nothing."""
    pages, topic = Pages(), wakeup.thread_topic(thread_id)
    with store.hub.watch(topic) as waiter:
        while True:
            waiter.clear()
            read = functools.partial(_read_thread, store, thread_id, after, pages.size)
            look = await _look(store, topic, after, read)
            pages.full(look.events)
            if look.events and look.events[-1].thread_seq - after != len(look.events):
                after = await _start_of_thread(store, thread_id, after)
                continue
            if look.events:
                yield look
                after = look.events[-1].thread_seq
            if not look.full and not await waiter.wait():
                store.hub.wake((topic,))


async def _read_thread(store: Store, thread_id: str, after: int, size: int) -> Look:
    events = await store.read(reads.thread_events(thread_id, after, size))
    if not events and not await store.read(reads.thread_is_there(thread_id)):
        raise errors.Deleted
    return Look(events, full=len(events) >= size)
