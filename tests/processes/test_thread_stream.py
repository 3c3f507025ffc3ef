"""A thread's runs are driven here and there; who follows the thread reads one sequence all the same."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

import outlive
from core import support as core
from outlive import subscription
from outlive.model import Event, EventKind
from processes import support, workload
from processes.support import worker


async def until_ends(served: outlive.Outlive, thread_id: str, count: int, after: int = 0) -> list[Event]:
    """The thread's events after ``after``, up to the end of so many runs."""
    got: list[Event] = []
    async with (
        asyncio.timeout(core.WITHIN),
        aclosing(subscription.follow_thread(served.store, thread_id, after=after)) as events,
    ):
        async for event in events:
            got.append(event)
            if [one.kind for one in got].count(EventKind.END) == count:
                return got
    raise AssertionError("the stream of a thread ended by itself")


@pytest.mark.invariant("I4")
async def test_a_threads_sequence_goes_on_over_a_killed_worker_and_into_the_next_run(database: str) -> None:
    async with core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, timing=support.SHORT) as first:
            running = await api.submit("steps", thread="t")
            queued = await api.submit("brief", "next", thread="t")
            thread_id = running.run.thread_id
            following = asyncio.create_task(until_ends(api, thread_id, 2))
            await core.seen(api, running.run.run_id, 1)
            first.kill()
            assert await first.ended() == -9
        async with worker(database, timing=support.SHORT) as second:
            second.open("first")
            second.open("second")
            live = await following
        async with core.serving(database, *workload.agents, slots=0) as another:
            for cut in (1, len(live) // 2, len(live) - 1):
                assert live[:cut] + await until_ends(another, thread_id, *rest(live, cut)) == live
    assert [event.thread_seq for event in live] == list(range(1, len(live) + 1))
    assert [event.run_id for event in live if event.kind is EventKind.END] == [
        running.run.run_id,
        queued.run.run_id,
    ]


def rest(live: list[Event], cut: int) -> tuple[int, int]:
    """How many ends come after the first ``cut`` events, and their cursor."""
    return [event.kind for event in live[cut:]].count(EventKind.END), live[cut - 1].thread_seq
