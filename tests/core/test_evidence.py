"""What the record says about who watched a run, and how far: finished unseen is not delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import outlive
from core import record, support


@support.job("agent")
async def gated(context: outlive.Context) -> AsyncGenerator[Any, None]:
    yield "one"
    await GATES[context.run.run_id].wait()
    yield "two"


class Gates(dict[str, asyncio.Event]):
    def __missing__(self, run_id: str) -> asyncio.Event:
        return self.setdefault(run_id, asyncio.Event())


GATES = Gates()


async def evidence(served: outlive.Outlive, run_id: str) -> dict[str, Any]:
    await support.until(lambda: not served.presence._tasks)
    return (await served.evidence(run_id)).public(await served.run(run_id, tenant=None))


async def test_a_run_that_nobody_watched_is_told_from_one_whose_end_was_sent(database: str) -> None:
    async with support.serving(database, gated) as served:
        run_id = (await served.submit("agent")).run.run_id
        assert (await evidence(served, run_id))["delivery"] is None
        GATES[run_id].set()
        await support.story(served, run_id)  # who follows does not count as watching
        unseen = await evidence(served, run_id)
        assert (await served.result(run_id)).state is outlive.State.SUCCEEDED
        delivered = await evidence(served, run_id)
    assert (unseen["delivery"], unseen["viewers"], unseen["seen"]) == ("unseen", 0, 0)
    assert (unseen["left_at"], unseen["left_because"]) == (None, None)
    assert (delivered["delivery"], delivered["viewers"], delivered["watching"]) == ("delivered", 1, 0)
    assert delivered["left_because"] == "end"


async def test_who_left_before_the_end_saw_a_part_and_the_record_says_when_and_why(database: str) -> None:
    async with support.serving(database, gated) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with asyncio.timeout(support.WITHIN), aclosing(served.watch(run_id)) as events:
            await anext(events)
            await anext(events)
            assert (await evidence(served, run_id))["watching"] == 1
        left = await evidence(served, run_id)
        GATES[run_id].set()
        ended = (await support.story(served, run_id))[-1]
        after = await evidence(served, run_id)
    assert (left["watching"], left["seen"], left["left_because"]) == (0, 1, "disconnect")
    assert after["delivery"] == "partly_seen"
    assert after["left_at"] == left["left_at"]
    assert after["left_at"] <= ended.created_at


async def test_a_viewer_of_whom_nothing_is_heard_any_more_counts_as_lost(database: str) -> None:
    async with support.serving(database, gated) as served:
        run_id = (await served.submit("agent", viewer="silent")).run.run_id
        record.execute(database, "UPDATE presence SET lease_until = joined_at + 1")
        lost = await evidence(served, run_id)
        GATES[run_id].set()
        await support.story(served, run_id)
    assert (lost["viewers"], lost["watching"], lost["left_because"]) == (1, 0, "lost")


async def test_an_end_that_we_caused_is_told_as_ours_and_dated_when_it_was(database: str) -> None:
    async with support.serving(database, gated) as first, support.serving(database, gated) as second:
        run_id = (await second.submit("agent")).run.run_id
        async with asyncio.timeout(support.WITHIN), aclosing(first.watch(run_id)) as events:
            await anext(events)
            await first.close()
            ours = await evidence(second, run_id)
        GATES[run_id].set()
        ended = (await support.story(second, run_id))[-1]
    assert ours["left_because"] == "ours"
    assert ours["left_at"] <= ended.created_at
