"""A message that displaces the run of its thread: what becomes of both, and of those who wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlive
from agents import bench
from agents.test_threads import ANSWER, ASKED, BOOKING, Threads, asking, codes, serving
from outlive import agents, errors, policy
from outlive.agents import langgraph
from outlive.agents.generator import GeneratorAgent
from outlive.model import Run
from outlive.states import Position, Reason, State

pytestmark = pytest.mark.anyio
EXECUTED = {
    "resume": ["plan", "charge", "notify", "finish", "asked", *BOOKING],
    "restart": ["plan", "charge", "asked", *BOOKING],
    "reject": None,
    "rollback": ["asked", *BOOKING],
}


async def running(threads: Threads, trace: bench.Trace, node: str = "notify") -> Run:
    """A run of the thread that is in the middle of a node."""
    trace.hold(node)
    submitted = await threads.service.submit("graph", {"steps": []}, thread="t")
    await trace.until(node)
    return submitted.run


async def sent(threads: Threads, on_busy: str, **more: Any) -> Run:
    """A message that meets the busy thread so."""
    rules = threads.service.registry["graph"].policy.but(on_busy=on_busy, **more)
    return (await threads.service.submit("graph", ASKED, thread="t", policy=rules)).run


@pytest.mark.parametrize("on_torn", policy.OnTorn)
@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_the_displaced_run_is_stopped_and_the_message_meets_what_it_left(
    database: str, on_busy: str, on_torn: str
) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), on_torn) as service:
        threads = Threads(service)
        first = await running(threads, trace)
        message = await sent(threads, on_busy)
        displaced, _ = await threads.ended(first)
        run, log = await threads.ended(message)
    assert (displaced.state, displaced.reason) == (State.STOPPED, Reason.DISPLACED)
    assert (run.displaces, run.public()["displaces"]) == (first.run_id, first.run_id)
    expected = EXECUTED["rollback" if on_busy == "rollback" else on_torn]
    if expected is None:
        assert (run.state, run.public()["error"]["code"]) == (State.FAILED, "thread_torn")
        return
    assert run.public()["output"] == {"steps": expected}
    said = {"resume": "finishing_first", "restart": "restarted", "rollback": "rolled_back"}
    assert codes(log) == [said["rollback" if on_busy == "rollback" else on_torn]]


async def test_it_goes_before_all_who_wait_and_they_keep_their_order(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), "restart") as service:
        threads = Threads(service)
        first = await running(threads, trace)
        waiting = [await sent(threads, "enqueue") for _ in range(2)]
        message = await sent(threads, "interrupt")
        ends = [(await threads.ended(run))[0] for run in (first, message, *waiting)]
    assert [run.state for run in ends[1:]] == [State.SUCCEEDED] * 3
    times = [run.ended_at or 0 for run in ends]
    assert times == sorted(times)


def stubborn(trace: bench.Trace, let_go: asyncio.Event) -> Any:
    """plan, and then a node that is told to stop and takes its time."""

    async def hold(state: bench.Steps) -> dict[str, list[str]]:
        if state["steps"][-2:] != ["asked", "plan"]:
            try:
                await trace.visit("hold")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await let_go.wait()
                raise
        return {"steps": ["hold"]}

    builder = bench.chain(trace, "plan")
    builder.add_node("hold", hold)
    builder.add_edge("plan", "hold")
    return builder.compile()


async def test_a_newer_one_replaces_one_that_has_not_begun_and_takes_back_what_that_was_to(
    database: str,
) -> None:
    trace, let_go = bench.Trace(), asyncio.Event()
    async with serving(database, stubborn(trace, let_go)) as service:
        threads = Threads(service)
        first = (await service.submit("graph", {"steps": []}, thread="t")).run
        await trace.until_ended("hold")
        older = await sent(threads, "rollback")
        newer = await sent(threads, "rollback")
        let_go.set()
        replaced, _ = await threads.ended(older)
        run, _ = await threads.ended(newer)
    assert (replaced.state, replaced.reason, replaced.epoch) == (State.STOPPED, Reason.DISPLACED, 0)
    assert (older.displaces, newer.displaces) == (first.run_id, first.run_id)
    assert run.public()["output"] == {"steps": ["asked", "plan", "hold"]}


async def test_a_run_that_was_faster_than_its_displacement_keeps_its_verdict(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace)) as service:
        threads = Threads(service)
        trace.hold("finish")
        first = (await service.submit("graph", {"steps": []}, thread="t")).run
        await trace.until("finish")
        message = await sent(threads, "rollback")
        run, _ = await threads.ended(message)
        displaced, _ = await threads.ended(first)
    assert displaced.state in (State.SUCCEEDED, State.STOPPED)
    before = BOOKING if displaced.state is State.SUCCEEDED else []
    assert run.public()["output"] == {"steps": [*before, "asked", *BOOKING]}


async def test_rollback_takes_back_a_run_that_came_to_a_question_meanwhile(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking(trace)) as service:
        threads = Threads(service)
        trace.hold("plan")
        first = (await service.submit("graph", {"steps": []}, thread="t")).run
        await trace.until("plan")
        await sent(threads, "rollback")
        displaced, _ = await threads.ended(first)
        with pytest.raises(errors.ThreadBusy):
            await service.submit("graph", ANSWER, thread="t")
        runs = await service.runs(thread="t")
        await threads.ended(runs[0])
        answered = await threads.sent(ANSWER)
    assert displaced.reason is Reason.DISPLACED
    assert answered.public()["output"] == {"steps": ["asked", "plan", "yes", "finish"]}


async def test_a_run_in_the_queue_that_has_begun_is_displaced_like_one_that_runs(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed(thread="t", positioned=True)
    trace.hold("notify")
    driven = bench.driven(agent, context)
    await trace.until("notify")
    await bench.cut(driven)
    await on.lose(context.claim)
    rules = policy.job(on_busy="interrupt")
    asking = langgraph.LangGraphAgent("graph", bench.booking(trace), policy=rules)
    async with outlive.Outlive(on.database, [asking], slots=0) as service:
        message = (await service.submit("graph", ASKED, thread="t")).run
        lost = await service.run(context.run.run_id)
    assert (lost.state, lost.reason) == (State.STOPPED, Reason.DISPLACED)
    assert (lost.position, message.displaces) == (Position.UNKNOWN, lost.run_id)
    async with serving(on.database, bench.booking(trace)) as service:
        run, _ = await Threads(service).ended(message)
    assert run.public()["output"] == {"steps": EXECUTED["resume"]}


async def test_rollback_takes_back_a_run_that_was_stopped_behind_its_last_node(on: bench.Bench) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    first = await on.claimed(thread="t", positioned=True)
    assert isinstance(await bench.last_of(agent, first), agents.Outcome)
    rules = policy.job(on_busy="rollback")
    asking = langgraph.LangGraphAgent("graph", bench.booking(bench.Trace()), policy=rules)
    async with outlive.Outlive(on.database, [asking], slots=0) as service:
        message = (await service.submit("graph", ASKED, thread="t")).run
    await on.settle(first, State.STOPPED, Reason.DISPLACED, Position.CLEAN)
    async with outlive.Outlive(on.database, [asking]) as service:
        run, _ = await Threads(service).ended(message)
    assert run.public()["output"] == {"steps": EXECUTED["rollback"]}


async def test_on_an_idle_thread_it_is_a_message_like_any(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace)) as service:
        run = await sent(Threads(service), "interrupt")
        ended, _ = await Threads(service).ended(run)
    assert (ended.displaces, ended.state) == (None, State.SUCCEEDED)


async def test_what_keeps_nothing_can_be_interrupted_and_not_taken_back(database: str) -> None:
    begun = asyncio.Event()

    async def wait(context: outlive.Context) -> Any:
        begun.set()
        if context.input == "first":
            await asyncio.Event().wait()
        yield context.input

    agent = GeneratorAgent("wait", wait, policy=policy.job(on_busy="interrupt"))
    async with outlive.Outlive(database, [agent]) as service:
        first = (await service.submit("wait", "first", thread="t")).run
        await asyncio.wait_for(begun.wait(), bench.WITHIN)
        second = (await service.submit("wait", "second", thread="t")).run
        threads = Threads(service)
        assert (await threads.ended(first))[0].reason is Reason.DISPLACED
        assert (await threads.ended(second))[0].state is State.SUCCEEDED
        with pytest.raises(errors.InvalidInput, match="taken back"):
            await service.submit("wait", 3, thread="t", policy=agent.policy.but(on_busy="rollback"))
        with pytest.raises(errors.InvalidInput, match="later"):
            await service.submit("wait", 3, thread="t", not_before=9e9)
