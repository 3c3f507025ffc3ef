"""Waiting for something to change, without ever depending on the hint that it did.

A ``Hub`` belongs to one event loop.  Waiters name topics; ``wake`` sets them; every wait has a bound, after
which the waiter re-reads the record anyway.  Topics: ``queue`` (a run can be claimed), ``stop`` (a stop was
requested), ``run:<id>``, ``thread:<id>``, ``viewers`` (somebody left), ``outbox`` (somebody is to be told),
``schedules`` (one was made or changed).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from outlive.model import Event

QUEUE = "queue"
STOP = "stop"
VIEWERS = "viewers"
OUTBOX = "outbox"
SCHEDULES = "schedules"
_DUTIES = frozenset({QUEUE, STOP, VIEWERS, OUTBOX, SCHEDULES})


def run_topic(run_id: str) -> str:
    """The topic of one run's events."""
    return f"run:{run_id}"


def thread_topic(thread_id: str) -> str:
    """The topic of one thread's events."""
    return f"thread:{thread_id}"


class Waiter:
    """One party that waits for its topics.  ``clear`` before reading, ``wait`` after: no hint is lost."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._event = asyncio.Event()

    def clear(self) -> None:
        """Forget hints that came so far; call it before reading the record."""
        self._event.clear()

    def set(self) -> None:
        """Wake this waiter."""
        self._event.set()

    async def wait(self, bound: float | None = None) -> bool:
        """Return at the next hint, or after ``bound`` seconds (default: the hub's poll interval).

        Says whether there was a hint.
        """
        try:
            async with asyncio.timeout(self._hub.poll if bound is None else bound):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


@dataclass(eq=False, slots=True)
class Topic:
    """Who watches a topic, and what they share until the next hint.

    What was read since the last hint is as good as what is read now: a change that it does not show has yet
    to be hinted at.  ``handed`` are events that were committed just now: whoever stands right before them
    need not read them.
    """

    waiters: dict[Waiter, None] = field(default_factory=dict)  # in order: a simulation has to be repeatable
    shared: dict[Any, Any] = field(default_factory=dict)
    handed: Sequence[Event] = ()

    def wake(self) -> None:
        """Tell everybody."""
        self.handed = ()
        self.shared.clear()
        for waiter in self.waiters:
            waiter.set()


class Hub:
    """The waiters of one process.  ``poll`` is the longest that any of them trusts silence, in seconds."""

    def __init__(self, poll: float = 1.0) -> None:
        self.poll = poll
        self._waiters: dict[str, Topic] = {}
        self._followers = 0

    @contextmanager
    def watch(self, *topics: str) -> Iterator[Waiter]:
        """Wait for any of ``topics`` within the block."""
        waiter = Waiter(self)
        follows = not _DUTIES.issuperset(topics)
        self._followers += follows
        for topic in topics:
            self._waiters.setdefault(topic, Topic()).waiters[waiter] = None
        try:
            yield waiter
        finally:
            self._followers -= follows
            for topic in topics:
                self._forget(topic, waiter)

    @property
    def followed(self) -> bool:
        """Whether somebody waits for a run or a thread, and not only this process's own duties.

        Any thread may ask.
        """
        return self._followers > 0

    def topic(self, name: str) -> Topic:
        """Return a topic that is being watched."""
        return self._waiters[name]

    def wake(self, topics: Iterable[str]) -> None:
        """Wake whoever watches one of ``topics``; call it on the loop's thread."""
        for name in topics:
            if (topic := self._waiters.get(name)) is not None:
                topic.wake()

    def hand(self, name: str, events: Callable[[], Sequence[Event]]) -> None:
        """After the hint at them, give the events that one commit added to whoever watches the topic.

        They must be committed, follow one another without a gap, and be what a reader finds.
        """
        if (topic := self._waiters.get(name)) is not None:
            topic.handed = events()

    def wake_all(self) -> None:
        """Wake everybody: something changed and nobody knows what."""
        self.wake(list(self._waiters))

    def _forget(self, name: str, waiter: Waiter) -> None:
        topic = self._waiters[name]
        topic.waiters.pop(waiter, None)
        if not topic.waiters:
            del self._waiters[name]
