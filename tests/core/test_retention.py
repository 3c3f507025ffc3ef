"""What retention takes away, what it leaves, and what whoever comes for the rest is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import errors, large, retention, subscription
from outlive.model import Event
from outlive.store import pruning


@support.job("agent")
async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
    for mode in context.input:
        yield outlive.Chunk(mode=mode, data=mode)
    yield outlive.Outcome(output="all")


def keeping(served: outlive.Outlive, seconds: float = 0.0) -> retention.Retention:
    return retention.Retention(served.store, seconds, happenings=served.signals)


async def ended(served: outlive.Outlive, *modes: str, thread: str | None = None) -> str:
    run_id = (await served.submit("agent", list(modes), thread=thread)).run.run_id
    await support.story(served, run_id)
    return run_id


@pytest.mark.invariant("I4")
async def test_the_record_the_end_and_the_last_state_stay(database: str) -> None:
    async with support.serving(database, agent) as served:
        run_id = await ended(served, "updates", "values", "updates", "values", "updates")
        before = await support.story(served, run_id)
        assert await keeping(served).prune_once() == (1, 4)
        assert await keeping(served).prune_once() == (0, 0)
        events = await support.story(served, run_id)
        assert events == before[4:]
        assert [event.mode for event in events] == ["values", "updates", None]
        assert (await served.run(run_id)).output == '"all"'
        assert await served.events(run_id) == events
        assert await served.events(run_id, after=4) == events
        assert await served.events(run_id, after=6) == events[2:]


async def test_without_a_near_state_the_end_alone_stays(database: str) -> None:
    async with support.serving(database, agent) as served:
        run_id = await ended(served, "values", *["updates"] * (pruning.NEAR + 1))
        await keeping(served).prune_once()
        assert [event.kind.value for event in await support.story(served, run_id)] == ["end"]


async def test_what_ended_lately_or_lives_is_left_alone(database: str) -> None:
    gate = asyncio.Event()

    @support.job("living")
    async def living(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "one"
        await gate.wait()

    async with support.serving(database, agent, living) as served:
        old, new = await ended(served, "updates"), await ended(served, "updates")
        live = (await served.submit("living")).run.run_id
        await support.seen(served, live, 1)
        record.execute(database, f"UPDATE runs SET ended_at = ended_at - 100000 WHERE run_id = '{old}'")
        assert await keeping(served, 50).prune_once() == (1, 2)
        gate.set()
        assert len(await support.story(served, live)) == 3
        assert len(await support.story(served, new)) == 3
        assert len(await support.story(served, old)) == 1


@pytest.mark.invariant("I5")
async def test_who_had_seen_a_part_is_told_what_is_left(database: str) -> None:
    async with support.serving(database, agent) as served:
        run_id = await ended(served, *["updates"] * 9)
        await keeping(served).prune_once()
        for ask in (
            support.story(served, run_id, after=3),
            served.events(run_id, after=3),
            served.event(run_id, 3),
        ):
            with pytest.raises(errors.Pruned) as told:
                await ask
            assert told.value.oldest == 11
        run = await served.run(run_id)
        with pytest.raises(errors.Pruned) as told:
            await served.check_kept(run, 9)
        assert (told.value.oldest, told.value.latest, told.value.snapshot) == (11, 11, f"/runs/{run_id}")
        await served.check_kept(run, 10)
        assert [event.seq for event in await support.story(served, run_id, after=10)] == [11]


@pytest.mark.invariant("I4")
async def test_a_reader_under_way_is_never_led_over_a_hole(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_FASTER", 1)
    async with support.serving(database, agent) as served:
        run_id = await ended(served, *["updates"] * 50)
        got: list[Event] = []

        async def read() -> None:
            async with aclosing(served.follow(run_id)) as events:
                async for event in events:
                    got.append(event)
                    if event.seq == 8:
                        await keeping(served).prune_once()

        with pytest.raises(errors.Pruned):
            await read()
    assert [event.seq for event in got] == list(range(1, 9))


async def test_it_is_done_in_small_pieces_and_each_leaves_a_sound_record(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with support.serving(database, agent) as served:
        run_id = await ended(served, *["updates"] * 25)
        for left in (17, 7, 1):
            step = await served.store.write(pruning.prune(run_id, 10))
            assert record.faults(database) == []
            assert len(await support.story(served, run_id)) == left
            assert step.over is (left == 1)
        assert (await served.store.write(pruning.prune(run_id, 10))).over
        assert await keeping(served).prune_once() == (0, 0)


async def test_a_thread_begins_after_what_was_taken_and_goes_on_without_a_hole(database: str) -> None:
    async with support.serving(database, agent) as served:
        first = await ended(served, "updates", "values", thread="t")
        await ended(served, "updates", thread="t")
        record.execute(database, f"UPDATE runs SET ended_at = ended_at + 100000 WHERE run_id <> '{first}'")
        assert await keeping(served).prune_once() == (1, 2)
        thread = await served.thread("t")
        page = await served.thread_events(thread)
        assert [event.thread_seq for event in page] == [3, 4, 5, 6, 7]
        for ask in (served.thread_events(thread, after=1), served.check_thread_kept(thread, 1)):
            with pytest.raises(errors.Pruned):
                await ask
        assert await served.thread_events(thread, after=2) == page
        followed = []
        async with (
            asyncio.timeout(support.WITHIN),
            aclosing(subscription.follow_thread(served.store, thread.thread_id)) as events,
        ):
            async for event in events:
                followed.append(event)
                if len(followed) == len(page):
                    break
        assert followed == page


async def test_an_older_run_that_is_pruned_later_leaves_no_hole_in_its_thread(database: str) -> None:
    async with support.serving(database, agent) as served:
        first = await ended(served, "updates", thread="t")
        second = await ended(served, "updates", thread="t")
        record.execute(database, f"UPDATE runs SET ended_at = ended_at + 100000 WHERE run_id = '{first}'")
        assert await keeping(served).prune_once() == (1, 2)
        thread = await served.thread("t")
        assert [event.run_id for event in await served.thread_events(thread)] == [second]
        assert len(await support.story(served, first)) == 3


async def test_bodies_go_with_their_events_and_stay_with_the_last_state(database: str) -> None:
    @support.job("large")
    async def sizes(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield outlive.Chunk(mode="updates", data="u" * large.INLINE_BYTES)
        yield outlive.Chunk(mode="values", data="v" * large.INLINE_BYTES)

    async with support.serving(database, sizes) as served:
        run_id = (await served.submit("large")).run.run_id
        await support.story(served, run_id)
        await keeping(served).prune_once()
        assert (await served.event(run_id, 3)).data == "v" * large.INLINE_BYTES
    assert len(record.rows(database, "SELECT digest FROM event_bodies")) == 1


async def test_a_runtime_that_was_told_to_prunes_by_itself(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EVERY", 0.02)
    async with support.serving(database, agent, retention=0.0) as served:
        run_id = (await served.submit("agent", ["updates"] * 5)).run.run_id
        await served.result(run_id)
        async with asyncio.timeout(support.WITHIN):
            while await served.store.read(pruning.oldest(run_id)) == 1:  # noqa: ASYNC110 - turns of the loop
                await asyncio.sleep(0)
        assert len(await support.story(served, run_id)) == 1


def test_a_time_below_zero_is_refused() -> None:
    with pytest.raises(errors.Misconfigured, match="below zero"):
        retention.Retention(None, -1, happenings=None)  # type: ignore[arg-type]
