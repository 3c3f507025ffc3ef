"""One cancellation stops a graph, whatever it does, and tears no checkpoint; a drain stops it in between."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from agents import bench
from outlive import agents, policy
from outlive.agents.langgraph import LangGraphAgent, Position

pytestmark = pytest.mark.anyio
BOOKING = ["plan", "charge", "notify", "finish"]
ASYNC = policy.job(on_busy="enqueue", durability="async")


async def values(agent: LangGraphAgent, context: agents.Context) -> Any:
    """The values that a thread's latest checkpoint holds, without what only its pending writes say."""
    state = await agent.reading.aget_state({"configurable": {"thread_id": context.run.thread_id}})
    stored = await agent.reading.aget_state(state.config)
    return stored.values


async def next_of(agent: LangGraphAgent, context: agents.Context) -> tuple[str, ...]:
    """The nodes that a thread's state says come next."""
    return (await agent.reading.aget_state({"configurable": {"thread_id": context.run.thread_id}})).next


async def test_a_run_cut_in_the_middle_of_a_node_keeps_all_that_came_before(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed()
    task = bench.driven(agent, context)
    await trace.until("notify")
    await bench.cut(task)
    assert await values(agent, context) == {"steps": ["plan", "charge"]}
    assert await next_of(agent, context) == ("notify",)
    assert await agent.position(context.run.thread_id) is Position.TORN
    assert trace.ended == ["plan", "charge"]


@pytest.mark.parametrize("rules", [bench.JOB, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("count", [1, 2, 3, 4], ids=["input", "start", "plan", "charge"])
async def test_a_checkpoint_write_that_has_begun_is_complete_when_the_run_has_stopped(
    on: bench.Bench, count: int, rules: policy.RunPolicy
) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace), policy=rules)
    slow = on.slowly(agent, "put", count)
    context = await on.claimed(rules=rules)
    task = bench.driven(agent, context)
    await asyncio.wait_for(slow.begun.wait(), bench.WITHIN)
    task.cancel()
    for _ in range(20):  # as often as it takes anything that did not wait for the write to be over
        await asyncio.sleep(0)
    assert not task.done()
    slow.let_go.set()
    await asyncio.wait({task}, timeout=bench.WITHIN)
    assert task.cancelled()
    assert slow.write_done.count("put") >= count
    again = await on.again(context)
    assert await bench.last_of(agent, again) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended.count("charge") == 1


async def test_a_run_cut_while_it_waits_for_its_checkpoints_at_the_end_has_written_them_all(
    on: bench.Bench,
) -> None:
    """Asynchronous checkpoints queue behind a slow one; cancelled here, LangGraph leaves them alone."""
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace), policy=ASYNC)
    slow = on.slowly(agent, "put", 2)
    context = await on.claimed(rules=ASYNC)
    task = bench.driven(agent, context)
    await asyncio.wait_for(slow.begun.wait(), bench.WITHIN)
    await trace.until_ended("finish")
    for _ in range(50):  # from the last node's end to the wait at the graph's
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    slow.let_go.set()
    await asyncio.wait({task}, timeout=bench.WITHIN)
    assert task.cancelled()
    assert slow.write_done.count("put") == 6
    assert await bench.last_of(agent, await on.again(context)) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING


async def test_a_stop_between_a_nodes_end_and_its_checkpoint_write_does_not_repeat_the_node(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed()
    task = bench.driven(agent, context)
    loop = asyncio.get_running_loop()
    next_version = agent._savers.checkpoints.next_version  # type: ignore[union-attr]

    def stopping(current: Any) -> Any:
        # Called while the step after ``charge`` is put together: the cancellation comes before the put's
        # task has had its first turn, so that the put never begins.
        if trace.ended == ["plan", "charge"]:
            loop.call_soon(task.cancel)
        return next_version(current)

    on.slowly(agent, "never").next_version = stopping
    await asyncio.wait({task}, timeout=bench.WITHIN)
    assert task.cancelled()
    again = await on.again(context)
    assert await bench.last_of(agent, again) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING


async def test_cancelling_again_and_again_does_not_tear_the_write_either(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    slow = on.slowly(agent, "put", 4)
    context = await on.claimed()
    task = bench.driven(agent, context)
    await asyncio.wait_for(slow.begun.wait(), bench.WITHIN)
    for _ in range(5):  # an anyio scope cancels at every await
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    slow.let_go.set()
    await asyncio.wait({task}, timeout=bench.WITHIN)
    assert task.cancelled()
    assert await values(agent, context) == {"steps": ["plan", "charge"]}


# ---------------------------------------------------------------- everything at once


def crowd(trace: bench.Trace) -> Any:
    """Three nodes at a time: one streams a model, one writes custom data, one is a subgraph; then another."""

    async def talk(state: bench.Steps) -> dict[str, list[str]]:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
        async for _ in model.astream("go"):
            pass
        await trace.visit("talk")
        return {"steps": ["talk"]}

    async def write(state: bench.Steps) -> dict[str, list[str]]:
        get_stream_writer()({"progress": 1})
        await trace.visit("write")
        get_stream_writer()({"progress": 2})
        return {"steps": ["write"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("talk", talk)
    builder.add_node("write", write)
    builder.add_node("sub", bench.chain(trace, "inner", "innermost").compile())
    builder.add_node("charge", trace.node("charge"))
    for node in ("talk", "write", "sub"):
        builder.add_edge(START, node)
    builder.add_edge(["talk", "write", "sub"], "charge")
    return builder.compile()


async def test_S01_one_cancellation_stops_parallel_nodes_models_and_subgraphs(on: bench.Bench) -> None:
    trace = bench.Trace()
    for node in ("talk", "write", "inner"):
        trace.hold(node)
    agent = await on.agent(crowd(trace), modes=("updates", "values", "messages", "custom", "tasks"))
    context = await on.claimed()
    before = asyncio.all_tasks()
    task = bench.driven(agent, context)
    await trace.until("talk", "write", "inner")
    await bench.cut(task)
    assert asyncio.all_tasks() - before <= {task}
    assert trace.ended == []
    assert await bench.last_of(agent, await on.again(context)) == agents.Outcome(
        output={"steps": ["inner", "innermost", "talk", "write", "charge"]}
    )


async def test_S01_what_a_sibling_had_finished_is_kept_and_not_run_again(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("inner")
    agent = await on.agent(crowd(trace))
    context = await on.claimed()
    async with aclosing(agent.stream(context)) as items:
        finished: set[str] = set()
        async for item in items:
            if isinstance(item, agents.Chunk) and item.mode == "updates":
                finished |= set(item.data)
            if {"talk", "write"} <= finished:
                break
        await trace.until("inner")
    assert await agent.position(context.run.thread_id) is Position.TORN
    await bench.last_of(agent, await on.again(context))
    assert sorted(trace.ended) == ["charge", "inner", "innermost", "talk", "write"]


async def test_S01_a_graph_that_a_node_calls_by_itself_stops_with_it(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("second")
    child = bench.chain(trace, "first", "second", "third").compile()

    async def call(state: bench.Steps) -> Any:
        return await child.ainvoke(state)

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("call", call)
    builder.add_edge(START, "call")
    agent = await on.agent(builder.compile())
    task = bench.driven(agent, await on.claimed())
    await trace.until("second")
    await bench.cut(task)
    assert trace.began == ["first", "second"]


async def test_a_reader_that_goes_away_behind_a_nodes_update_stops_the_graph_and_keeps_the_update(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed()
    async with aclosing(agent.stream(context)) as items:
        async for item in items:
            if isinstance(item, agents.Chunk) and item.mode == "updates" and "charge" in item.data:
                break
    assert trace.began == ["plan", "charge"]
    assert await values(agent, context) == {"steps": ["plan"]}  # the step had not been put together yet
    assert await next_of(agent, context) == ()
    assert await agent.position(context.run.thread_id) is Position.TORN
    assert await bench.last_of(agent, await on.again(context)) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING


async def test_a_synchronous_node_cannot_be_stopped_but_nothing_follows_it(on: bench.Bench) -> None:
    trace = bench.Trace()
    began, let_go, over = threading.Event(), threading.Event(), threading.Event()

    def block(state: bench.Steps) -> dict[str, list[str]]:
        began.set()
        let_go.wait(bench.WITHIN)
        over.set()
        return {"steps": ["block"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("block", block)
    builder.add_node("charge", trace.node("charge"))
    builder.add_edge(START, "block")
    builder.add_edge("block", "charge")
    agent = await on.agent(builder.compile())
    context = await on.claimed()
    task = bench.driven(agent, context)
    assert await asyncio.to_thread(began.wait, bench.WITHIN)
    await bench.cut(task)
    let_go.set()
    assert await asyncio.to_thread(over.wait, bench.WITHIN)
    assert trace.began == []
    assert await next_of(agent, context) == ("block",)


# ---------------------------------------------------------------- drains


async def test_a_draining_run_stops_after_the_running_step_with_its_checkpoint_written(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    let_go = trace.hold("charge")
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed()
    task = bench.driven(agent, context)
    await trace.until("charge")
    context.draining.set()
    let_go.set()
    items = await asyncio.wait_for(task, bench.WITHIN)
    assert items[-1] == agents.Drained()
    assert trace.began == ["plan", "charge"]
    assert await values(agent, context) == {"steps": ["plan", "charge"]}
    assert await bench.last_of(agent, await on.again(context)) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING


async def test_a_draining_run_stops_between_the_steps_of_its_subgraph(on: bench.Bench) -> None:
    trace = bench.Trace()
    let_go = trace.hold("inner")
    agent = await on.agent(crowd(trace))
    context = await on.claimed()
    task = bench.driven(agent, context)
    await trace.until("inner")
    context.draining.set()
    let_go.set()
    assert (await asyncio.wait_for(task, bench.WITHIN))[-1] == agents.Drained()
    assert "innermost" not in trace.began
    await bench.last_of(agent, await on.again(context))
    assert sorted(trace.ended) == ["charge", "inner", "innermost", "talk", "write"]


async def test_a_run_that_drains_in_its_last_step_has_simply_ended(on: bench.Bench) -> None:
    trace = bench.Trace()
    let_go = trace.hold("finish")
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed()
    task = bench.driven(agent, context)
    await trace.until("finish")
    context.draining.set()
    let_go.set()
    assert (await asyncio.wait_for(task, bench.WITHIN))[-1] == agents.Outcome(output={"steps": BOOKING})


async def test_a_drain_before_the_first_step_runs_nothing(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed({"steps": ["asked"]})
    context.draining.set()
    assert await bench.last_of(agent, context) == agents.Drained()
    assert trace.began == []
    outcome = await bench.last_of(agent, await on.again(context))
    assert outcome == agents.Outcome(output={"steps": ["asked", *BOOKING]})


async def test_a_draining_map_finishes_its_tasks_and_goes_no_further(on: bench.Bench) -> None:
    trace = bench.Trace()
    let_go = trace.hold("item")

    async def spread(state: bench.Steps) -> list[Send]:
        return [Send("item", state), Send("item", state)]

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("item", trace.node("item"))
    builder.add_node("charge", trace.node("charge"))
    builder.add_conditional_edges(START, spread, ["item"])
    builder.add_edge("item", "charge")
    agent = await on.agent(builder.compile())
    context = await on.claimed()
    task = bench.driven(agent, context)
    await trace.until("item")
    context.draining.set()
    let_go.set()
    assert (await asyncio.wait_for(task, bench.WITHIN))[-1] == agents.Drained()
    assert trace.ended == ["item", "item"]
    assert await bench.last_of(agent, await on.again(context)) == agents.Outcome(
        output={"steps": ["item", "item", "charge"]}
    )
    assert trace.ended == ["item", "item", "charge"]
