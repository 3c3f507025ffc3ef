"""How a run ends when its agent ends by itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from core import support
from outlive import State, signals

SECRET = "postgresql://admin:hunter2@10.0.0.7/db"


@pytest.mark.invariant("I1")
async def test_an_agent_that_ends_succeeds_with_its_output_and_one_end_event(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield {"heard": context.input}
        yield outlive.Outcome(output={"answer": 42})

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent", {"question": "?"})).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert [event.kind.value for event in events] == ["attempt", "chunk", "end"]
    assert support.data(events) == [{"heard": {"question": "?"}}]
    assert support.end(events) == {"state": "succeeded", "reason": None, "error": None, "closed": True}
    assert (run.state, run.public()["output"], run.epoch) == (State.SUCCEEDED, {"answer": 42}, 1)


async def test_an_agent_that_waits_for_a_human_ends_as_waiting(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield outlive.Outcome(output="approve?", state=State.WAITING)

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        assert support.end(await support.story(served, run_id))["state"] == "waiting"


@pytest.mark.parametrize("state", [state for state in State if state not in (State.SUCCEEDED, State.WAITING)])
def test_an_outcome_claims_no_state_that_is_not_its_to_claim(state: State) -> None:
    with pytest.raises(outlive.OutliveError, match="succeeded or waiting"):
        outlive.Outcome(state=state)


def raised(kind: str) -> BaseException:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError(SECRET)

        __repr__ = __str__

    kinds: dict[str, BaseException] = {
        "plain": ValueError(f"cannot reach {SECRET} at /srv/app/main.py"),
        "unprintable": Unprintable(),
        "surrogate": ValueError("\ud800\x00"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "group": ExceptionGroup("several", [ValueError(SECRET)]),
        "odd": GeneratorExit(),
        "base": type("OwnBase", (BaseException,), {})(SECRET),
        "timeout": TimeoutError(),
    }
    return kinds[kind]


@pytest.mark.parametrize(
    "kind",
    ["plain", "unprintable", "surrogate", "exit", "interrupt", "group", "odd", "base", "timeout"],
)
@pytest.mark.parametrize("before", [0, 1, 40])
async def test_S17_an_error_fails_the_run_with_an_end_event_that_tells_nothing_internal(
    kind: str, before: int, sqlite_url: str
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(before):
            yield number
        raise raised(kind)

    async with support.serving(sqlite_url, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert support.data(events) == list(range(before))
    verdict = support.end(events)
    assert verdict["state"] == "failed"
    assert verdict["error"]["code"] == "agent_error"
    public = "".join(event.payload for event in events) + str(run.public())
    for internal in (SECRET, "hunter2", "/srv", __file__, "Traceback"):
        assert internal not in public
    assert run.error_detail is not None
    if kind == "plain":
        assert SECRET in run.error_detail
        assert "test_outcomes.py" in run.error_detail


async def test_S17_a_follower_that_lost_the_error_event_gets_it_by_its_cursor(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        raise ValueError("no")

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        again = await support.story(served, run_id, after=events[-2].seq)
    assert again == events[-1:]


async def test_an_agent_that_cancels_itself_fails_and_is_not_taken_for_stopped(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        yield 2

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        verdict = support.end(await support.story(served, run_id))
    assert (verdict["state"], verdict["error"]["code"]) == ("failed", "agent_cut_itself_short")


async def test_an_agent_that_exits_the_process_only_fails_its_run(database: str) -> None:
    @support.job("leaving")
    async def leaving(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        sys.exit(0)

    @support.job("staying")
    async def staying(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    async with support.serving(database, leaving, staying) as served:
        first = (await served.submit("leaving")).run.run_id
        assert support.end(await support.story(served, first))["state"] == "failed"
        second = (await served.submit("staying")).run.run_id
        assert support.end(await support.story(served, second))["state"] == "succeeded"


async def test_an_agent_that_cannot_even_begin_fails(database: str) -> None:
    class Broken:
        name = "agent"
        policy = outlive.job()
        drains = False

        def stream(self, context: outlive.Context) -> AsyncGenerator[Any, None]:
            raise TypeError("no stream")

    async with support.serving(database, Broken()) as served:
        run_id = (await served.submit("agent")).run.run_id
        assert support.end(await support.story(served, run_id))["error"]["type"] == "TypeError"


@pytest.mark.invariant("I15")
async def test_a_verdict_that_cannot_be_stored_is_loud_and_the_run_is_recovered(database: str) -> None:
    attempts: list[int] = []

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        attempts.append(context.attempt)
        yield context.attempt

    async with support.serving(database, agent, timing=support.QUICK) as served:
        listening = support.heard(served)
        with support.failing_once("execution.finalise"):
            run_id = (await served.submit("agent")).run.run_id
            failed = await listening.of(signals.FinalisationFailed)
        assert failed.run_id == run_id
        events = await support.story(served, run_id)
    assert support.end(events)["state"] == "succeeded"
    assert attempts == [1, 2]
    assert support.data(events) == [1, 2]
