"""What the tests of the execution path share: a runtime that must leave nothing behind, and short words."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from outlive import failpoints, lease, signals
from outlive.agents import Agent, generator
from outlive.model import Claim, Event, EventKind
from outlive.store import postgres, sqlite
from outlive.testing import hearing

WITHIN = 20.0
QUICK = lease.Timing(lease=1.2, renew_every=0.1, margin=0.2, stall_after=0.4, stall_limit=30.0)
"""For tests that must see a lease run out."""
CLAIM = Claim(run_id="r", thread_id="t", epoch=1, claim_token="c")


def job(name: str = "agent", **changes: Any) -> Callable[[generator.Function], generator.GeneratorAgent]:
    """An agent whose runs nobody needs to watch."""
    return outlive.agent(name, policy=outlive.job(**{"on_busy": "enqueue", **changes}))


_open: list[outlive.Outlive] = []


@contextlib.asynccontextmanager
async def serving(database: str, *agents: Agent, **options: Any) -> AsyncIterator[outlive.Outlive]:
    """A runtime that must leave no task, waiter, slot or viewer behind when it has closed."""
    before = asyncio.all_tasks()
    served = outlive.Outlive(database, agents, **options)
    _open.append(served)
    try:
        async with served:
            yield served
    finally:
        _open.remove(served)
    assert served.store.hub._waiters == {}
    assert served._worker.driving == {}
    assert served._worker.free == served.slots
    assert served.presence._viewers == {}
    for _ in range(5):  # cancelled helpers need a turn of the loop to end
        await asyncio.sleep(0)
    assert _open or asyncio.all_tasks() - before == set()  # another runtime's tasks come and go


def heard(*served: outlive.Outlive) -> hearing.Hearing:
    """Listen to these runtimes from now on."""
    return hearing.Hearing(*(one.signals for one in served))


async def story(served: outlive.Outlive, run_id: str, after: int = 0) -> list[Event]:
    """Every event of a run up to its end, as a follower gets them."""
    async with asyncio.timeout(WITHIN), aclosing(served.follow(run_id, after=after, tenant=None)) as events:
        return [event async for event in events]


async def seen(served: outlive.Outlive, run_id: str, count: int) -> list[Event]:
    """The first ``count`` chunks of a run, once they are committed."""
    chunks = []
    async with asyncio.timeout(WITHIN), aclosing(served.follow(run_id, tenant=None)) as events:
        async for event in events:
            if event.kind is EventKind.CHUNK:
                chunks.append(event)
            if len(chunks) == count:
                return chunks
    raise AssertionError(f"the run ended after {len(chunks)} chunks: {event}")


def data(events: list[Event]) -> list[Any]:
    """What the agent yielded, in order."""
    return [event.data for event in events if event.kind is EventKind.CHUNK]


def notes(events: list[Event]) -> list[str]:
    """The codes of the warnings, in order."""
    return [event.data["code"] for event in events if event.kind is EventKind.NOTE]


def end(events: list[Event]) -> dict[str, Any]:
    """The verdict as the end event tells it."""
    assert [event.kind for event in events].count(EventKind.END) == 1
    assert events[-1].kind is EventKind.END
    verdict: dict[str, Any] = events[-1].data
    return verdict


def refused(listening: hearing.Hearing) -> list[signals.Write]:
    """The kinds of late write that a fence refused, in order."""
    return [one.write for one in listening.all(signals.StaleWriteRefused)]


@contextlib.contextmanager
def failing_once(name: str) -> Iterator[None]:
    """The first time that a failpoint is reached, fail there."""

    def fail() -> None:
        failpoints.disarm(name)
        failpoints.fail()

    failpoints.arm(name, fail)
    yield
    failpoints.disarm(name)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until a condition of this process holds."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 - a turn of the loop, not a nap
            await asyncio.sleep(0)


class Gate:
    """A place at which a statement or a whole transaction is held until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._opened = asyncio.Event()
        self._opened_in_thread = threading.Event()
        self._used = False

    def open(self) -> None:
        """Let through what is held, and everything after it."""
        self._opened.set()
        self._opened_in_thread.set()

    async def arrival(self) -> None:
        """Wait until something is held."""
        async with asyncio.timeout(WITHIN):
            await self.reached.wait()

    def _first(self) -> bool:
        first, self._used = not self._used, True
        return first

    async def hold(self) -> None:
        """Stand here until it opens."""
        if self._first():
            self.reached.set()
            await self._opened.wait()

    def hold_thread(self) -> None:
        """Stand here in a thread that is not the loop's."""
        if self._first():
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self._opened_in_thread.wait(WITHIN)


@contextlib.contextmanager
def held_before(statement: str) -> Iterator[Gate]:
    """Hold the first transaction that comes to a named statement right before it, locks and all."""
    gate = Gate()
    on_postgres, on_sqlite = postgres.execute, sqlite.execute

    async def execute_later(connection: Any, blocks: Any, step: Any, *seconds: Any) -> Any:
        if step.name == statement:
            await gate.hold()
        return await on_postgres(connection, blocks, step, *seconds)

    def execute_in_thread(connection: Any, blocks: Any, step: Any) -> Any:
        if step.name == statement:
            gate.hold_thread()
        return on_sqlite(connection, blocks, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "execute", execute_later)
        patch.setattr(sqlite, "execute", execute_in_thread)
        yield gate
        gate.open()


@contextlib.contextmanager
def held_script(served: outlive.Outlive, name: str) -> Iterator[Gate]:
    """Hold the first transaction of this name before it is even sent."""
    gate, write = Gate(), served.store.write

    async def gated(script: Any, **options: Any) -> Any:
        if script.name == name:
            await gate.hold()
        return await write(script, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.store, "write", gated)
        yield gate
        gate.open()
