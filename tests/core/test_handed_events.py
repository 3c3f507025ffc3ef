"""A viewer beside the run's executor is handed what was committed: the same events, in order, and no read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import support
from outlive import subscription
from outlive.model import Event, EventKind
from outlive.store import wakeup


class Script:
    """An agent that yields when the test says so, and what a follower was given meanwhile."""

    def __init__(self) -> None:
        self.go_on = asyncio.Semaphore(0)
        self.read: list[int] = []

    def agent(self, count: int) -> Any:
        @support.job()
        async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
            for number in range(count):
                await self.go_on.acquire()
                yield {"number": number}

        return agent

    def watch_reads(self, served: outlive.Outlive, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note the cursor of each read of events."""
        read = subscription._read

        async def noted(store: Any, run_id: str, after: int, size: int) -> subscription.Look:
            self.read.append(after)
            return await read(store, run_id, after, size)

        monkeypatch.setattr(subscription, "_read", noted)


@pytest.mark.invariant("I4")
async def test_what_a_viewer_is_handed_is_what_any_reader_finds(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    async with support.serving(database, script.agent(12)) as served:
        script.watch_reads(served, monkeypatch)
        served.store.hub.poll = 1e6
        run_id = (await served.submit("agent", thread="of several runs")).run.run_id
        given: list[Event] = []
        async with asyncio.timeout(support.WITHIN), aclosing(served.follow(run_id)) as events:
            async for event in events:
                given.append(event)
                script.go_on.release()
        assert given == await served.events(run_id)
        assert [event.seq for event in given] == list(range(1, 15))
        assert set(script.read) <= {0, 1}  # the beginning, and nothing from there on


@pytest.mark.invariant("I5")
async def test_a_viewer_who_stands_elsewhere_reads_and_misses_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    async with support.serving(database, script.agent(6)) as served:
        script.watch_reads(served, monkeypatch)
        run_id = (await served.submit("agent")).run.run_id
        async with asyncio.timeout(support.WITHIN), aclosing(served.follow(run_id)) as slow:
            assert (await anext(slow)).kind is EventKind.ATTEMPT
            async with aclosing(served.follow(run_id)) as quick:
                async for event in quick:
                    script.go_on.release()
                    if event.kind is EventKind.CHUNK and event.data["number"] == 3:
                        break
            script.go_on.release()
            script.go_on.release()
            rest = [event async for event in slow]
        assert rest == (await served.events(run_id))[1:]


async def test_what_was_handed_is_forgotten_at_the_next_hint() -> None:
    hub = wakeup.Hub()
    made: list[Sequence[Event]] = []

    def make() -> Sequence[Event]:
        made.append(())
        return made[-1]

    hub.hand("run:x", make)
    assert made == []  # nobody watches, so nothing is made
    with hub.watch("run:x"):
        hub.hand("run:x", make)
        hub.topic("run:x").handed = ["old"]  # type: ignore[list-item]
        hub.wake(("run:x",))
        assert list(hub.topic("run:x").handed) == []
    assert len(made) == 1


@pytest.mark.invariant("I6")
async def test_nobody_is_handed_what_is_not_committed(database: str) -> None:
    script = Script()
    async with support.serving(database, script.agent(1)) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with asyncio.timeout(support.WITHIN), aclosing(served.follow(run_id)) as events:
            await anext(events)
            with support.held_script(served, "append") as appending:
                script.go_on.release()
                await appending.arrival()
                assert not served.store.hub.topic(wakeup.run_topic(run_id)).handed
            assert (await anext(events)).data == {"number": 0}


async def test_a_viewer_is_handed_small_groups_and_reads_large_ones(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[int] = []
    hand = wakeup.Hub.hand
    go_on = asyncio.Semaphore(0)

    def noted(hub: wakeup.Hub, name: str, events: Any) -> None:
        handed.append(sum(len(event.payload) for event in events()))
        hand(hub, name, events)

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for size in (10, 3_000_000, 20):
            yield "x" * size
            await go_on.acquire()

    monkeypatch.setattr(wakeup.Hub, "hand", noted)
    monkeypatch.setattr("outlive.large.INLINE_BYTES", 4_000_000)
    async with support.serving(sqlite_url, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        sizes = []
        async with asyncio.timeout(support.WITHIN), aclosing(served.follow(run_id)) as events:
            async for event in events:
                if event.kind is EventKind.CHUNK:
                    sizes.append(len(event.data))
                    go_on.release()
    assert sizes == [10, 3_000_000, 20]
    assert handed[:2] == [12, 22]  # and the end
