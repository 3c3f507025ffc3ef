"""Path 3: follow a run or a thread from any cursor to its end.

Replay and live are the same code: read what is committed, hand it over, wait for a hint, read again.  A lost
hint costs one poll interval, never an event.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from outlive import errors
from outlive.model import Event, EventKind, Run
from outlive.store import Store, reads, wakeup

PAGE = 500
"""Events that one read returns at most."""
PAGE_BYTES = 2 * 1024 * 1024
"""About how much one read returns: each viewer holds as much for as long as its client does not read on."""
_FIRST, _FASTER = 8, 8


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


def parse_cursor(text: str, run_id: str) -> int:
    """Read a cursor of ``run_id``: ``<run>:<seq>`` or a bare seq; raises ``InvalidCursor``."""
    named, colon, digits = text.strip().rpartition(":")
    if colon and named != run_id:
        raise errors.InvalidCursor("The cursor belongs to another run.", run_id=run_id)
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
    no effect on the run.  Raises ``StoreUnavailable`` when the database stays away.
    """
    async with aclosing(batches(store, run_id, after=after)) as read:
        async for events in read:
            for event in events:
                yield event


async def batches(store: Store, run_id: str, *, after: int = 0) -> AsyncGenerator[list[Event], None]:
    """Like ``follow``, yielding together what one look at the record found: never nothing."""
    pages = Pages()
    with store.hub.watch(wakeup.run_topic(run_id)) as waiter:
        while True:
            waiter.clear()
            events = await store.read(reads.events(run_id, after, pages.size))
            more = pages.full(events)
            if events:
                yield events
                after = events[-1].seq
                if events[-1].kind is EventKind.END:  # nothing follows it, so it is the last of a look
                    return
            elif await _over(store, run_id, after):
                return
            if not more:
                await waiter.wait()


async def _over(store: Store, run_id: str, after: int) -> bool:
    """True if the cursor already stands at the end of an ended run: nothing will ever follow it."""
    run = await store.read(reads.run(run_id, None))
    return run.state.terminal and after >= run.last_seq


async def follow_thread(store: Store, thread_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
    """Yield every committed event of a thread after ``after`` in the thread's own sequence, for ever."""
    pages = Pages()
    with store.hub.watch(wakeup.thread_topic(thread_id)) as waiter:
        while True:
            waiter.clear()
            events = await store.read(reads.thread_events(thread_id, after, pages.size))
            more = pages.full(events)
            for event in events:
                yield event
                after = event.thread_seq
            if not more:
                await waiter.wait()
