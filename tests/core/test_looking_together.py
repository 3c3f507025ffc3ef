"""Viewers of one run look at the record together, and none of them sees less than it would alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import support
from outlive import errors, subscription
from outlive.model import EventKind
from outlive.store import Store, wakeup

CHUNKS = 30


@pytest.fixture(autouse=True)
def _driven_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Viewers beside a run's executor are handed what it committed; these are to look, as others must."""
    monkeypatch.setattr(wakeup.Hub, "hand", lambda *_: None)


class Gate:
    """Lets an agent yield its next chunk when the test says so."""

    def __init__(self) -> None:
        self.next = asyncio.Semaphore(0)

    def agent(self) -> Any:
        @support.job()
        async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
            for number in range(CHUNKS):
                await self.next.acquire()
                yield number

        return agent


@contextlib.contextmanager
def counting(store: Store, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Count the reads of events."""
    reads: list[str] = []
    read = store.read

    async def counted(script: Any, **options: Any) -> Any:
        if script.name == "events":
            reads.append(script.name)
        return await read(script, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store, "read", counted)
        yield reads


class Viewer:
    """A follower in a task of its own."""

    def __init__(self, served: outlive.Outlive, run_id: str) -> None:
        self.seen: list[Any] = []
        self.moved = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._follow(served.store, run_id))

    async def _follow(self, store: Store, run_id: str) -> None:
        async with aclosing(subscription.follow(store, run_id)) as events:
            async for event in events:
                if event.kind is EventKind.CHUNK:
                    self.seen.append(event.data)
                    self.moved.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(support.WITHIN):
            while len(self.seen) < count:
                self.moved.clear()
                await self.moved.wait()


@contextlib.asynccontextmanager
async def watched(database: str, viewers: int) -> AsyncIterator[tuple[Any, Gate, list[Viewer]]]:
    """A run of which the first chunk is out, and viewers who have it; only hints tell them of more."""
    gate = Gate()
    async with support.serving(database, gate.agent()) as served:
        served.store.hub.poll = 1e6
        run_id = (await served.submit("agent")).run.run_id
        watching = [Viewer(served, run_id) for _ in range(viewers)]
        gate.next.release()
        for viewer in watching:
            await viewer.has(1)
        yield served, gate, watching


async def finish(gate: Gate, watching: list[Viewer]) -> None:
    """Let the run go on to its end; everybody must get all of it."""
    for _ in range(CHUNKS):
        gate.next.release()
    async with asyncio.timeout(support.WITHIN):
        await asyncio.gather(*(viewer.task for viewer in watching))
    assert all(viewer.seen == list(range(CHUNKS)) for viewer in watching)


@pytest.mark.invariant("I5")
async def test_many_viewers_cost_as_many_reads_as_one(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(database, 20) as (served, gate, watching):
        with counting(served.store, monkeypatch) as reads:
            for count in range(2, 7):
                gate.next.release()
                for viewer in watching:
                    await viewer.has(count)
            assert 5 <= len(reads) <= 3 * 5
            await finish(gate, watching)


async def test_a_viewer_who_leaves_while_it_looks_for_all_disturbs_nobody(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(sqlite_url, 3) as (served, gate, watching):
        held, begun = asyncio.Event(), asyncio.Event()
        read = served.store.read

        async def slow(script: Any, **options: Any) -> Any:
            found = await read(script, **options)
            if script.name == "events":
                begun.set()
                await held.wait()
            return found

        monkeypatch.setattr(served.store, "read", slow)
        gate.next.release()
        await asyncio.wait_for(begun.wait(), support.WITHIN)
        leaving, *staying = watching
        leaving.task.cancel()
        await asyncio.wait({leaving.task})
        held.set()
        for viewer in staying:
            await viewer.has(2)
        await finish(gate, staying)


async def test_a_look_that_fails_fails_for_all_who_shared_it_and_the_next_one_looks_anew(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(sqlite_url, 3) as (served, gate, watching):
        down = True
        read = served.store.read

        async def broken(script: Any, **options: Any) -> Any:
            if script.name == "events" and down:
                raise errors.StoreUnavailable
            return await read(script, **options)

        monkeypatch.setattr(served.store, "read", broken)
        gate.next.release()
        await asyncio.wait({viewer.task for viewer in watching}, timeout=support.WITHIN)
        assert [type(viewer.task.exception()) for viewer in watching] == [errors.StoreUnavailable] * 3
        down = False
        run_id = (await served.runs())[0].run_id
        again = [Viewer(served, run_id) for _ in range(3)]
        for viewer in again:
            await viewer.has(2)
        await finish(gate, again)


async def test_what_was_read_before_a_hint_is_not_shared_after_it(sqlite_url: str) -> None:
    async with watched(sqlite_url, 2) as (served, gate, watching):
        run_id = (await served.runs())[0].run_id
        topic = served.store.hub.topic(wakeup.run_topic(run_id))
        read = functools.partial(subscription._read, served.store, run_id, 2, 8)
        await subscription._look(served.store, wakeup.run_topic(run_id), 2, read)
        assert 2 in topic.shared
        served.store.announce(wakeup.run_topic(run_id))
        assert topic.shared == {}
        await finish(gate, watching)


async def test_without_any_hint_the_poll_of_one_viewer_serves_all(database: str) -> None:
    async with watched(database, 3) as (served, gate, watching):
        served.store.hub.poll = 0.05
        served.store.hub.wake_all()  # so that everybody waits by the new bound
        hub = served.store.hub
        announce, served.store.announce = served.store.announce, lambda *_: None
        try:
            gate.next.release()
            for viewer in watching:
                await viewer.has(2)
        finally:
            served.store.announce = announce
        assert hub.topic(wakeup.run_topic((await served.runs())[0].run_id)).waiters
        await finish(gate, watching)
