"""Time-outs: of an attempt, and of an agent that says nothing.  Hours pass here in no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

import outlive
from core import support
from outlive import policy
from outlive.patience import Patience
from outlive.testing.simulation import world

HOUR = 3600.0


def virtually(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run something in a loop whose time passes only while everybody sleeps."""

    async def main() -> Any:
        return await work()

    with asyncio.Runner(loop_factory=world.VirtualLoop) as runner:
        return runner.run(main())


def ends(patience: Patience) -> asyncio.Task[tuple[float, str]]:
    """When it was over, in seconds, and what."""

    async def wait() -> tuple[float, str]:
        code, _ = await patience.over()
        return round(asyncio.get_running_loop().time(), 3), code

    return asyncio.get_running_loop().create_task(wait())


def test_an_agent_that_says_something_now_and_then_is_not_silent() -> None:
    async def work() -> tuple[float, str]:
        patience = Patience(policy.job(silence_timeout=30.0))
        over = ends(patience)
        for _ in range(400):
            await asyncio.sleep(29.9)
            patience.taking()
            patience.taken()
        return await over

    assert virtually(work) == (400 * 29.9 + 30.0, "silence_timeout")


def test_what_we_take_for_storing_is_not_the_agents_silence() -> None:
    async def work() -> tuple[float, str]:
        patience = Patience(policy.job(silence_timeout=30.0))
        over = ends(patience)
        patience.taking()
        await asyncio.sleep(HOUR)  # the database is away
        patience.taken()
        return await over

    assert virtually(work) == (HOUR + 30.0, "silence_timeout")


def test_a_loop_that_stood_still_is_not_the_agents_silence() -> None:
    async def work() -> tuple[float, str]:
        loop, stood = asyncio.get_running_loop(), [0.0]
        patience = Patience(policy.job(silence_timeout=30.0))
        patience._now = lambda: loop.time() + stood[0]
        over = ends(patience)
        await asyncio.sleep(29.0)
        stood[0] = 100.0  # some other agent's node blocks, and nobody is woken for so long
        return await over

    assert virtually(work) == (60.0, "silence_timeout")


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"run_timeout": 50.0}, (50.0, "run_timeout")),
        ({"run_timeout": 50.0, "silence_timeout": 60.0}, (50.0, "run_timeout")),
        ({"run_timeout": 50.0, "silence_timeout": 40.0}, (40.0, "silence_timeout")),
    ],
)
def test_whichever_comes_first_is_told(bounds: dict[str, Any], expected: tuple[float, str]) -> None:
    async def work() -> tuple[float, str]:
        return await ends(Patience(policy.job(**bounds)))

    assert virtually(work) == expected


def test_a_talkative_agent_is_over_in_time_all_the_same() -> None:
    async def work() -> tuple[float, str]:
        patience = Patience(policy.job(silence_timeout=30.0, run_timeout=HOUR))
        over = ends(patience)

        async def talk() -> None:
            while True:
                await asyncio.sleep(1)
                patience.taking()
                patience.taken()

        talking = asyncio.get_running_loop().create_task(talk())
        try:
            return await over
        finally:
            talking.cancel()

    assert virtually(work) == (HOUR, "run_timeout")


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("bound", ["run_timeout", "silence_timeout"])
async def test_a_run_that_was_over_says_in_its_log_and_its_record_why(database: str, bound: str) -> None:
    closed = asyncio.Event()

    changes: dict[str, Any] = {bound: 0.2}

    @support.job(**changes)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
    assert support.data(events) == [1]
    assert support.notes(events) == [bound]
    assert (support.end(events)["state"], support.end(events)["reason"]) == ("stopped", "timeout")
    assert closed.is_set()


async def test_a_run_that_ends_in_time_says_nothing_of_time(database: str) -> None:
    @support.job(run_timeout=HOUR, silence_timeout=HOUR)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
    assert (support.notes(events), support.end(events)["state"]) == ([], "succeeded")
