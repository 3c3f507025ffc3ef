"""Whoever follows a run gets all of it and reaches its end, whenever and from wherever they come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import support
from outlive import errors, subscription
from outlive.model import Event, EventKind
from outlive.store import postgres, wakeup

RUNS = 300
AT_ONCE = 8


@support.job()
async def brief(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Over in milliseconds."""
    for number in range(3):
        yield number


async def a_while(turns: int) -> None:
    """Let others run, for some turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


def whole(events: list[Event]) -> bool:
    return (
        [event.seq for event in events] == list(range(1, len(events) + 1))
        and support.data(events) == [0, 1, 2]
        and events[-1].kind is EventKind.END
    )


async def attach_and_follow(
    served: outlive.Outlive, follower: outlive.Outlive, chance: random.Random
) -> list[Event]:
    run_id = (await served.submit("agent")).run.run_id
    await a_while(chance.randrange(120))
    events = await support.story(follower, run_id)
    assert (await follower.run(run_id)).state.terminal  # as soon as the end is shown
    return events


async def many(served: outlive.Outlive, follower: outlive.Outlive) -> list[list[Event]]:
    chance, left, found = random.Random(11), RUNS, []

    async def one_after_another() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            found.append(await attach_and_follow(served, follower, chance))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another())
    return found


@pytest.mark.invariant("I5")
async def test_S11_a_follower_that_attaches_while_a_run_ends_misses_no_hint(database: str) -> None:
    """Without polling: whoever misses the hint of the end would wait for ever."""
    async with support.serving(database, brief) as served:
        served.store.hub.poll = 1e6
        stories = await many(served, served)
    assert len(stories) == RUNS
    assert all(map(whole, stories))


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same_process", "other_process"])
async def test_S11_a_follower_reaches_the_end_although_every_second_hint_is_lost(
    elsewhere: bool, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = 0
    wake = wakeup.Hub.wake

    def unreliable(hub: wakeup.Hub, topics: Any) -> None:
        nonlocal dropped
        dropped += 1
        if dropped % 2:
            wake(hub, topics)

    monkeypatch.setattr(wakeup.Hub, "wake", unreliable)
    async with support.serving(database, brief) as served, support.serving(database, brief, slots=0) as api:
        for hub in (served.store.hub, api.store.hub):
            hub.poll = 0.05
        stories = await many(served, api if elsewhere else served)
    assert all(map(whole, stories))
    assert dropped > RUNS


@pytest.mark.invariant("I5")
async def test_a_late_follower_gets_everything_from_any_cursor_on(database: str) -> None:
    async with support.serving(database, brief) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        for after in range(len(events) + 1):
            assert await support.story(served, run_id, after=after) == events[after:]


async def test_a_cursor_at_the_end_of_a_live_run_waits_for_what_comes(database: str) -> None:
    go_on = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await go_on.wait()
        yield 2

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        last = (await support.seen(served, run_id, 1))[-1]
        rest = asyncio.create_task(support.story(served, run_id, after=last.seq))
        await a_while(20)
        go_on.set()
        assert support.data(await rest) == [2]


async def test_a_cursor_that_is_not_of_this_run_is_refused(database: str) -> None:
    async with support.serving(database, brief) as served:
        run_id = (await served.submit("agent")).run.run_id
        last = (await support.story(served, run_id))[-1].seq
        for after in (-1, last + 1, 10**30):
            with pytest.raises(errors.InvalidCursor):
                await support.story(served, run_id, after=after)
            with pytest.raises(errors.InvalidCursor):
                await served.events(run_id, after=after)
            with pytest.raises(errors.InvalidCursor):
                async with aclosing(served.watch(run_id, after=after)) as events:
                    await anext(events)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "\u0661", "other:3", ":3", "a:b:3", "9" * 19, "run: 3"]
)
def test_a_cursor_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidCursor):
        subscription.parse_cursor(text, "run")


@pytest.mark.parametrize(("text", "seq"), [("0", 0), ("7", 7), ("run:7", 7), (" run:7\n", 7)])
def test_a_cursor_is_a_seq_or_names_its_run(text: str, seq: int) -> None:
    assert subscription.parse_cursor(text, "run") == seq


async def test_a_follower_of_an_unknown_or_foreign_run_is_told_that_there_is_none(database: str) -> None:
    async with support.serving(database, brief) as served:
        run_id = (await served.submit("agent", tenant="one")).run.run_id
        await support.story(served, run_id)
        said = []
        for tenant, wanted in (("two", run_id), ("one", "0" * 32)):
            with pytest.raises(errors.NotFound) as refused:
                async with aclosing(served.follow(wanted, tenant=tenant)) as events:
                    await anext(events)
            said.append(str(refused.value).replace(wanted, "RUN"))
        assert said[0] == said[1]


async def test_a_follower_that_does_not_read_holds_up_nobody(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(2_000):
            yield number
            await asyncio.sleep(0)

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with aclosing(served.follow(run_id)) as slow:
            first = await anext(slow)
            assert support.end(await support.story(served, run_id))["state"] == "succeeded"
            rest = [event async for event in slow]
    assert support.data([first, *rest]) == list(range(2_000))


@pytest.mark.invariant("I13")
async def test_a_follower_that_is_cancelled_anywhere_leaves_nothing_behind(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await asyncio.Event().wait()

    chance = random.Random(13)
    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        for _ in range(10):
            for call in (served.result, lambda run_id: support.story(served, run_id)):
                followers = [asyncio.create_task(call(run_id)) for _ in range(20)]
                for follower in followers:
                    await a_while(chance.randrange(4))
                    follower.cancel()
                ends = await asyncio.gather(*followers, return_exceptions=True)
                assert {type(end) for end in ends} == {asyncio.CancelledError}
        assert served.store.hub._waiters.keys().isdisjoint({wakeup.run_topic(run_id)})
        assert served.presence._viewers == {}
        await served.stop(run_id)
        await support.story(served, run_id)
        if isinstance(served.store, postgres.PostgresStore):
            assert served.store._pool is not None
            pool = served.store._pool
            await support.until(lambda: pool.whole)


@pytest.mark.invariant("I4")
async def test_a_thread_stream_holds_the_events_of_all_its_runs_in_the_order_of_their_commits(
    database: str,
) -> None:
    async with support.serving(database, brief) as served:
        first = (await served.submit("agent", thread="t")).run
        followed: list[Event] = []

        async def follow() -> None:
            stream = subscription.follow_thread(served.store, first.thread_id)
            async with aclosing(stream) as events:
                async for event in events:
                    followed.append(event)
                    if [one.kind for one in followed].count(EventKind.END) == 5:
                        return

        following = asyncio.create_task(follow())
        runs = [first.run_id]
        runs += [(await served.submit("agent", thread="t")).run.run_id for _ in range(4)]
        async with asyncio.timeout(support.WITHIN):
            await following
    assert [event.thread_seq for event in followed] == list(range(1, len(followed) + 1))
    assert [event.run_id for event in followed if event.kind is EventKind.END] == runs
    for run_id in runs:
        assert whole([event for event in followed if event.run_id == run_id])
