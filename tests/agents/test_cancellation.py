"""A cut reaches a node's own code and nothing else: what a node has returned is on record."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from agents import bench
from core import support as core
from outlive import cancellation, executor, policy
from outlive.agents.cuttable import cuttable
from outlive.agents.langgraph import LangGraphAgent
from outlive.lab.experiments import leaves
from outlive.lab.services.leaving_graphs import recorded
from outlive.policy import Durability
from outlive.states import Position, Reason

pytestmark = pytest.mark.anyio


def driven(agent: LangGraphAgent, context: Any, parts: cancellation.Parts) -> asyncio.Task[list[Any]]:
    """An attempt in a task of its own, whose nodes are known to ``parts``."""

    async def drive() -> list[Any]:
        parts.begin()
        return await bench.all_of(agent, context)

    return asyncio.get_running_loop().create_task(drive())


async def cut(task: asyncio.Task[Any], context: Any, parts: cancellation.Parts) -> None:
    """End an attempt as execution does."""
    context.draining.set()
    await parts.cut(task, asyncio.get_running_loop().time() + bench.WITHIN)
    task.cancel()
    await asyncio.wait({task}, timeout=bench.WITHIN)
    assert task.done()


def turns_later(turns: int, then: Callable[[], None]) -> None:
    """Call a function so many turns of the event loop from now."""
    loop = asyncio.get_running_loop()
    loop.call_soon(then if turns == 0 else lambda: turns_later(turns - 1, then))


def side_by_side(trace: bench.Trace, **nodes: Any) -> Any:
    """A graph whose nodes stand side by side; then ``last``."""
    builder: Any = StateGraph(bench.Steps)
    builder.add_node("last", trace.node("last"))
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    builder.add_edge(list(nodes), "last")
    builder.add_edge("last", END)
    return builder.compile()


async def state_of(agent: LangGraphAgent, context: Any) -> Any:
    """Where a thread stands, with its subgraphs."""
    config: Any = {"configurable": {"thread_id": context.run.thread_id}}
    return await agent.reading.aget_state(config, subgraphs=True)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("nested", [False, True], ids=["node", "subgraph"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 24])
async def test_a_node_that_has_returned_is_on_record_whenever_the_cut_comes(
    on: bench.Bench, turns: int, nested: bool, mode: str
) -> None:
    trace, parts = bench.Trace(), cancellation.Parts()
    cutting: list[asyncio.Task[None]] = []

    async def charge(state: bench.Steps) -> dict[str, list[str]]:
        await trace.visit("charge")
        turns_later(turns, lambda: cutting.append(loop.create_task(cut(task, context, parts))))
        return {"steps": ["charge"]}

    if nested:
        inner: Any = StateGraph(bench.Steps)
        inner.add_node("charge", charge)
        inner.add_edge(START, "charge")
        charge = inner.compile()
    trace.hold("beside")
    rules = policy.job(on_busy="enqueue", durability=mode)
    agent = await on.agent(side_by_side(trace, charge=charge, beside=trace.node("beside")), policy=rules)
    context = await on.claimed(rules=rules)
    loop = asyncio.get_running_loop()
    task = driven(agent, context, parts)
    await asyncio.wait({task}, timeout=bench.WITHIN)
    await asyncio.wait(cutting, timeout=bench.WITHIN)
    assert "charge" in recorded(await state_of(agent, context))
    assert await agent.position(context.run.thread_id) is Position.TORN
    last: Any = await bench.last_of(agent, await on.again(context))
    assert sorted(trace.ended) == ["beside", "charge", "last"]
    assert sorted(last.output["steps"]) == ["beside", "charge", "last"]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("nested", [False, True], ids=["node", "subgraph"])
@pytest.mark.parametrize("turns", range(8))
async def test_a_node_that_returns_while_its_run_is_being_cut_is_on_record_or_has_not_executed(
    on: bench.Bench, turns: int, nested: bool, mode: str
) -> None:
    """A cancellation takes turns to come down to a node, and the node may wake in each of them."""
    trace, parts = bench.Trace(), cancellation.Parts()
    let_go = trace.hold("charge")
    trace.hold("beside")
    charge = bench.chain(trace, "charge").compile() if nested else trace.node("charge")
    rules = policy.job(on_busy="enqueue", durability=mode)
    agent = await on.agent(side_by_side(trace, charge=charge, beside=trace.node("beside")), policy=rules)
    context = await on.claimed(rules=rules)
    task = driven(agent, context, parts)
    await trace.until("charge", "beside")
    turns_later(turns, let_go.set)
    await cut(task, context, parts)
    assert set(trace.ended) == recorded(await state_of(agent, context))
    await bench.last_of(agent, await on.again(context))
    assert sorted(trace.ended) == ["beside", "charge", "last"]


async def test_a_step_is_not_complete_because_the_rest_of_it_was_cut(on: bench.Bench) -> None:
    trace, parts = bench.Trace(), cancellation.Parts()
    trace.hold("one")
    trace.hold("two")
    graph = side_by_side(trace, one=trace.node("one"), two=trace.node("two"), done=trace.node("done"))
    agent = await on.agent(graph)
    context = await on.claimed()
    task = driven(agent, context, parts)
    await trace.until("one", "two")
    await trace.until_ended("done")
    await cut(task, context, parts)
    assert task.cancelled()
    state = await state_of(agent, context)
    assert state.next == ("one", "two")
    assert {each.name for each in state.tasks if not each.result} == {"one", "two"}
    await bench.last_of(agent, await on.again(context))
    assert sorted(trace.ended) == ["done", "last", "one", "two"]


async def test_a_node_in_a_thread_that_returns_in_time_is_on_record(on: bench.Bench) -> None:
    trace, began, let_go = bench.Trace(), threading.Event(), threading.Event()

    def block(state: bench.Steps) -> dict[str, list[str]]:
        began.set()
        assert let_go.wait(bench.WITHIN)
        trace.ended.append("block")
        return {"steps": ["block"]}

    agent = LangGraphAgent("graph", side_by_side(trace, block=block), policy=policy.job(on_busy="enqueue"))
    async with core.serving(on.database, agent, slots=2) as served:
        run = (await served.submit("graph", {"steps": []}, thread="t")).run
        assert await asyncio.to_thread(began.wait, bench.WITHIN)
        await served.stop(run.run_id)
        let_go.set()
        await core.story(served, run.run_id)
        again = (await served.submit("graph", {"steps": ["again"]}, thread="t")).run
        events = await core.story(served, again.run_id)
    assert core.end(events)["state"] == "succeeded"
    assert trace.ended == [
        "block",
        "last",
        "block",
        "last",
    ]  # the stopped turn's once, then the new message's


async def test_a_pause_before_another_try_of_a_node_does_not_hold_up_a_stop(on: bench.Bench) -> None:
    trace, failed = bench.Trace(), asyncio.Event()

    async def fail(state: bench.Steps) -> dict[str, list[str]]:
        failed.set()
        raise ConnectionError("not now")

    builder: Any = StateGraph(bench.Steps)
    builder.add_node("fail", fail, retry_policy=RetryPolicy(initial_interval=3600.0, jitter=False))
    builder.add_edge(START, "fail")
    agent = LangGraphAgent("graph", builder.compile(), policy=policy.job(stop_deadline=bench.WITHIN))
    async with core.serving(on.database, agent, slots=2) as served:
        run = (await served.submit("graph", {"steps": []})).run
        await asyncio.wait_for(failed.wait(), bench.WITHIN)
        await served.stop(run.run_id)
        events = await core.story(served, run.run_id)
    assert core.end(events)["state"] == "stopped"
    assert trace.began == []


async def test_a_node_that_is_another_runnable_is_cut_in_its_own_code(on: bench.Bench) -> None:
    trace, parts = bench.Trace(), cancellation.Parts()
    trace.hold("first")
    first = RunnableLambda(trace.node("first")) | RunnableLambda(lambda given: given)
    agent = await on.agent(side_by_side(trace, first=first))
    context = await on.claimed()
    task = driven(agent, context, parts)
    await trace.until("first")
    await cut(task, context, parts)
    assert task.cancelled()
    assert trace.ended == []
    await bench.last_of(agent, await on.again(context))
    assert trace.ended == ["first", "last"]


async def test_clean_up_in_a_node_that_is_cut_takes_its_time(on: bench.Bench) -> None:
    trace, parts, let_go, cleaned = bench.Trace(), cancellation.Parts(), asyncio.Event(), asyncio.Event()

    async def careful(state: bench.Steps) -> dict[str, list[str]]:
        try:
            await trace.visit("careful")
        finally:
            cleaned.set()
            await let_go.wait()
            trace.ended.append("cleaned")
        return {"steps": ["careful"]}

    trace.hold("careful")
    agent = await on.agent(side_by_side(trace, careful=careful))
    context = await on.claimed()
    task = driven(agent, context, parts)
    await trace.until("careful")
    cutting = asyncio.get_running_loop().create_task(cut(task, context, parts))
    await asyncio.wait_for(cleaned.wait(), bench.WITHIN)
    for _ in range(3 * cancellation.TURNS):
        await asyncio.sleep(0)
    assert not task.done()
    let_go.set()
    await asyncio.wait_for(cutting, bench.WITHIN)
    assert trace.ended == ["cleaned"]


async def test_a_synchronous_tool_of_an_asynchronous_node_is_called_once(on: bench.Bench) -> None:
    began, let_go, paid = threading.Event(), threading.Event(), list[str]()

    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        began.set()
        assert let_go.wait(bench.WITHIN)
        paid.append(to)
        return f"paid {to}"

    def ask(state: MessagesState) -> Any:
        calls: list[Any] = [
            {"name": "pay", "args": {"to": to}, "id": to, "type": "tool_call"} for to in ("ann", "bob")
        ]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    builder: Any = StateGraph(MessagesState)
    for name, node in (("ask", ask), ("tools", ToolNode([pay])), ("thank", lambda state: {"messages": []})):
        builder.add_node(name, node)
    for before, after in ((START, "ask"), ("ask", "tools"), ("tools", "thank"), ("thank", END)):
        builder.add_edge(before, after)
    rules = policy.job(on_busy="enqueue", stop_deadline=bench.WITHIN)
    agent = LangGraphAgent("graph", builder.compile(), policy=rules)
    async with core.serving(on.database, agent, slots=2) as served:
        run = (await served.submit("graph", {"messages": []}, thread="t", key="k")).run
        assert await asyncio.to_thread(began.wait, bench.WITHIN)
        await served.stop(run.run_id, reason=Reason.DISCONNECT)
        let_go.set()
        await core.story(served, run.run_id)
        again = (await served.submit("graph", {"messages": []}, thread="t", key="k")).run
        events = await core.story(served, again.run_id)
    assert again.continues == run.run_id
    assert core.end(events)["state"] == "succeeded"
    assert sorted(paid) == ["ann", "bob"]


async def test_a_node_whose_threads_have_returned_is_cut_at_what_it_awaits_then(on: bench.Bench) -> None:
    trace, parts, began, let_go = bench.Trace(), cancellation.Parts(), asyncio.Event(), threading.Event()

    async def node(state: bench.Steps) -> dict[str, list[str]]:
        began.set()
        await asyncio.to_thread(let_go.wait, bench.WITHIN)
        trace.ended.append("thread")
        await asyncio.Event().wait()
        return {"steps": ["node"]}

    executor.watch()
    agent = await on.agent(side_by_side(trace, node=node))
    context = await on.claimed()
    threads = executor.Threads()

    async def drive() -> list[Any]:
        threads.begin()
        parts.begin()
        return await bench.all_of(agent, context)

    task = asyncio.get_running_loop().create_task(drive())
    await asyncio.wait_for(began.wait(), bench.WITHIN)
    cutting = asyncio.get_running_loop().create_task(cut(task, context, parts))
    for _ in range(3 * cancellation.TURNS):
        await asyncio.sleep(0)
    assert not task.done()
    let_go.set()
    await asyncio.wait_for(cutting, bench.WITHIN)
    assert task.cancelled()
    assert trace.ended == ["thread"]


def test_the_graph_that_an_agent_is_made_of_is_not_changed() -> None:
    graph = side_by_side(bench.Trace(), one=bench.Trace().node("one"))
    before = dict(graph.nodes)
    made = cuttable(graph)
    assert graph.nodes == before
    assert all(graph.nodes[name] is node for name, node in before.items())
    assert made.get_graph().to_json() == graph.get_graph().to_json()


@pytest.mark.timeout(180)
async def test_what_executed_is_on_record_over_slow_checkpoints_whatever_cuts_a_run(database: str) -> None:
    """Ten runs each, cut by the clock at moments of their own: with parallel nodes, tokens and a subgraph."""
    series = [(cause, mode) for cause in leaves.Cause for mode in (Durability.SYNC, Durability.ASYNC)]
    found = await asyncio.gather(
        *(leaves.measured(database, cause, mode, random.Random(7), 10) for cause, mode in series)
    )
    for (cause, mode), seen in zip(series, found, strict=True):
        assert (seen.trials, seen.disagreed, seen.repeated) == (10, 0, 0), (cause, mode, seen)
    assert sum(seen.partway for seen in found) > 20
