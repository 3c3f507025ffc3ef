"""What policies cost is read from the record: work that nobody watched, and work that was thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import outlive
from core import record, support
from outlive import Reason, State, presence, signals
from outlive.model import EventKind
from outlive.store import standing_reads

HOUR = 3600.0


def counting(first: int, gate: asyncio.Event, second: int, policy: outlive.RunPolicy) -> Any:
    """Some chunks, then a gate, then more of them."""

    @outlive.agent("agent", policy=policy)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(first):
            yield number
        await gate.wait()
        for number in range(second):
            yield number

    return agent


async def watched_and_left(served: outlive.Outlive, run_id: str, chunks: int) -> None:
    stream = served.watch(run_id)
    async with aclosing(stream), asyncio.timeout(support.WITHIN):
        seen = 0
        while seen < chunks:
            seen += (await anext(stream)).kind is EventKind.CHUNK
    await support.until(lambda: not served.presence._tasks)


def later(database: str) -> None:
    """The next second of the record: what was before it was a second before it."""
    record.execute(database, "UPDATE events SET created_at = created_at - 1000")
    record.execute(database, "UPDATE presence SET joined_at = joined_at - 1000, left_at = left_at - 1000")
    record.execute(database, "UPDATE runs SET created_at = created_at - 1000, started_at = started_at - 1000")


async def test_what_is_done_after_the_last_viewer_left_is_told_in_seconds_and_chunks(database: str) -> None:
    gate = asyncio.Event()
    async with support.serving(database, counting(2, gate, 3, outlive.job())) as served:
        run = (await served.submit("agent")).run
        await watched_and_left(served, run.run_id, 2)
        later(database)
        gate.set()
        await support.story(served, run.run_id)
        (cost,) = await served.store.read(standing_reads.costs(HOUR))
    assert (cost.agent, cost.state, cost.runs, cost.unwatched_runs) == ("agent", "succeeded", 1, 1)
    assert (cost.unwatched_chunks, cost.spent_chunks) == (3, 5)
    assert 1.0 <= cost.unwatched_seconds <= cost.spent_seconds


async def test_what_a_cancel_throws_away_is_told_under_its_reason(database: str) -> None:
    gate = asyncio.Event()
    async with support.serving(database, counting(4, gate, 0, outlive.chat(grace=0.0))) as served:
        hearing = support.heard(served)
        run = (await served.submit("agent", viewer="viewer")).run
        viewer = presence.Viewer(name="viewer", run_id=run.run_id, seen=0)
        await served.presence.join(viewer, recorded=True)
        await support.seen(served, run.run_id, 4)
        served.presence.leave(viewer, presence.Left.DISCONNECT)
        await hearing.of(signals.RunEnded, state=State.STOPPED)
        (cost,) = await served.store.read(standing_reads.costs(HOUR))
    assert (cost.state, cost.reason) == (State.STOPPED, Reason.DISCONNECT)
    assert cost.spent_chunks == 4


async def test_runs_that_nobody_ever_watched_are_not_counted_as_left(database: str) -> None:
    gate = asyncio.Event()
    gate.set()
    async with support.serving(database, counting(1, gate, 1, outlive.job())) as served:
        await support.story(served, (await served.submit("agent")).run.run_id)
        (cost,) = await served.store.read(standing_reads.costs(HOUR))
    assert (cost.runs, cost.unwatched_runs, cost.unwatched_chunks, cost.spent_chunks) == (1, 0, 0, 2)


async def test_a_viewer_who_stays_to_the_end_makes_nothing_unwatched(database: str) -> None:
    gate = asyncio.Event()
    gate.set()
    async with support.serving(database, counting(1, gate, 1, outlive.job())) as served:
        run = (await served.submit("agent")).run
        async with aclosing(served.watch(run.run_id)) as stream, asyncio.timeout(support.WITHIN):
            async for _ in stream:
                pass
        await support.until(lambda: not served.presence._tasks)
        (cost,) = await served.store.read(standing_reads.costs(HOUR))
    assert (cost.runs, cost.unwatched_runs, cost.unwatched_seconds) == (1, 0, 0.0)


async def test_runs_that_ended_before_the_window_are_left_out(database: str) -> None:
    gate = asyncio.Event()
    gate.set()
    async with support.serving(database, counting(1, gate, 1, outlive.job())) as served:
        await support.story(served, (await served.submit("agent")).run.run_id)
        record.execute(database, "UPDATE runs SET ended_at = ended_at - 7200000")
        assert await served.store.read(standing_reads.costs(HOUR)) == []
        record.execute(database, "UPDATE runs SET ended_at = ended_at + 7200000")
