"""How the beginning of an attempt reaches those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from core import support
from outlive.agents import Context
from outlive.model import EventKind


async def test_a_follower_hears_of_a_new_attempt_although_its_agent_is_silent(database: str) -> None:
    go_on = {"first": asyncio.Event(), "second": asyncio.Event()}

    @support.job()
    async def silent(context: Context) -> AsyncGenerator[str, None]:
        await go_on[context.input].wait()
        yield "said"

    async with support.serving(database, silent) as served:
        served.store.hub.poll = 3600.0  # nobody finds anything by chance
        first = await served.submit("agent", "first", thread="t")
        second = await served.submit("agent", "second", thread="t")
        assert not second.claimed
        async with aclosing(served.follow(second.run.run_id)) as events:
            opening = asyncio.ensure_future(anext(events))
            await support.until(lambda: f"run:{second.run.run_id}" in served.store.hub._waiters)
            go_on["first"].set()
            await support.story(served, first.run.run_id)
            async with asyncio.timeout(support.WITHIN):
                assert (await opening).kind is EventKind.ATTEMPT
        go_on["second"].set()
        await support.story(served, second.run.run_id)
