"""Where a thread stands is read from its tasks and the breakpoints of its graph, not from what comes next."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from agents import bench
from outlive import agents
from outlive.agents.langgraph import LangGraphAgent, Position
from outlive.states import State

pytestmark = pytest.mark.anyio


async def position(agent: LangGraphAgent, context: agents.Context) -> Position:
    """Where the run's thread stands."""
    return await agent.position(context.run.thread_id)


def graph(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    """A graph whose nodes all start at once."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder


async def ask(state: bench.Steps) -> Any:
    """Ask a person."""
    return {"steps": [interrupt("sure?")]}


async def test_a_thread_on_which_nothing_ran_is_clean(on: bench.Bench) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    assert await position(agent, await on.claimed()) is Position.CLEAN


async def test_a_finished_thread_is_clean(on: bench.Bench) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    context = await on.claimed()
    await bench.last_of(agent, context)
    assert await position(agent, context) is Position.CLEAN


async def test_a_thread_cut_inside_a_node_is_torn(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed()
    running = bench.driven(agent, context)
    await trace.until("notify")
    await bench.cut(running)
    assert await position(agent, context) is Position.TORN


async def test_a_thread_whose_node_is_done_and_whose_step_is_not_is_torn_although_nothing_is_next(
    on: bench.Bench,
) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    context = await on.claimed()
    async with aclosing(agent.stream(context)) as items:
        async for item in items:
            if isinstance(item, agents.Chunk) and item.mode == "updates" and "charge" in item.data:
                break
    state = await agent.reading.aget_state({"configurable": {"thread_id": context.run.thread_id}})
    assert state.next == ()
    assert await position(agent, context) is Position.TORN


async def test_a_thread_that_asks_waits(on: bench.Bench) -> None:
    agent = await on.agent(graph(ask=ask).compile())
    context = await on.claimed()
    await bench.last_of(agent, context)
    assert await position(agent, context) is Position.WAITING


async def test_a_thread_whose_other_task_finished_beside_the_question_waits(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(graph(ask=ask, work=trace.node("work")).compile())
    context = await on.claimed()
    await bench.last_of(agent, context)
    assert await position(agent, context) is Position.WAITING


async def test_a_thread_whose_other_task_was_cut_beside_the_question_is_torn(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("work")
    agent = await on.agent(graph(ask=ask, work=trace.node("work")).compile())
    context = await on.claimed()
    async with aclosing(agent.stream(context)) as items:
        async for item in items:
            if isinstance(item, agents.Chunk) and "__interrupt__" in item.data:
                break
    assert await position(agent, context) is Position.TORN


@pytest.mark.parametrize(
    "where",
    [
        {"interrupt_before": ["charge"]},
        {"interrupt_after": ["plan"]},
        {"interrupt_before": "*"},
        {"interrupt_after": "*"},
    ],
    ids=["before", "after", "before all", "after all"],
)
async def test_a_thread_at_a_static_breakpoint_waits(on: bench.Bench, where: dict[str, Any]) -> None:
    agent = await on.agent(bench.booking(bench.Trace(), **where))
    context = await on.claimed()
    outcome = await bench.last_of(agent, context)
    assert isinstance(outcome, agents.Outcome)
    assert outcome.state is State.WAITING
    assert await position(agent, context) is Position.WAITING


@pytest.mark.parametrize("where", [{"interrupt_before": ["charge"]}, {"interrupt_after": ["plan"]}])
async def test_a_thread_cut_in_the_node_behind_a_breakpoint_that_was_passed_is_torn(
    on: bench.Bench, where: dict[str, Any]
) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace, **where))
    first = await on.claimed(thread="t")
    await bench.last_of(agent, first)
    await on.settle(first, State.WAITING)
    trace.hold("charge")
    second = await on.claimed({"command": {"resume": True}}, thread="t")
    running = bench.driven(agent, second)
    await trace.until("charge")
    await bench.cut(running)
    assert await position(agent, second) is Position.TORN


async def test_a_thread_in_its_first_node_is_at_no_breakpoint_after_another(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("plan")
    agent = await on.agent(bench.booking(trace, interrupt_after="*"))
    context = await on.claimed()
    running = bench.driven(agent, context)
    await trace.until("plan")
    assert await position(agent, context) is Position.TORN  # as a process that was killed here leaves it
    await bench.cut(running)


async def test_a_thread_at_a_breakpoint_of_its_subgraph_waits(on: bench.Bench) -> None:
    inner = bench.booking(bench.Trace(), interrupt_before=["charge"])
    agent = await on.agent(graph(sub=inner).compile())
    context = await on.claimed()
    outcome = await bench.last_of(agent, context)
    assert isinstance(outcome, agents.Outcome)
    assert outcome.state is State.WAITING
    assert await position(agent, context) is Position.WAITING


async def test_a_thread_cut_inside_its_subgraph_is_torn(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("charge")
    agent = await on.agent(graph(sub=bench.booking(trace)).compile())
    context = await on.claimed()
    running = bench.driven(agent, context)
    await trace.until("charge")
    await bench.cut(running)
    assert await position(agent, context) is Position.TORN


async def test_a_thread_whose_node_raised_is_torn(on: bench.Bench) -> None:
    async def fail(state: bench.Steps) -> Any:
        raise LookupError("no such flight")

    agent = await on.agent(graph(fail=fail).compile())
    context = await on.claimed()
    with pytest.raises(LookupError):
        await bench.last_of(agent, context)
    assert await position(agent, context) is Position.TORN


async def test_a_thread_that_ran_out_of_steps_looks_torn(on: bench.Bench) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    context = await on.claimed(metadata={"config": {"recursion_limit": 2}})
    with pytest.raises(GraphRecursionError):
        await bench.last_of(agent, context)
    assert await position(agent, context) is Position.TORN


async def test_the_functional_api_has_the_same_positions(on: bench.Bench) -> None:
    trace = bench.Trace()

    @task
    async def charge(given: Any) -> str:
        await trace.visit("charge")
        return "charged"

    @entrypoint()
    async def workflow(given: Any) -> dict[str, Any]:
        done = await charge(given)
        return {"done": done, "answer": interrupt("sure?")}

    agent = await on.agent(workflow)
    first = await on.claimed({"a": 1}, thread="t")
    outcome = await bench.last_of(agent, first)
    assert isinstance(outcome, agents.Outcome)
    assert outcome.state is State.WAITING
    assert [one.value for one in outcome.output["__interrupt__"]] == ["sure?"]
    assert await position(agent, first) is Position.WAITING
    await on.settle(first, State.WAITING)
    second = await on.claimed({"command": {"resume": "yes"}}, thread="t")
    outcome = await bench.last_of(agent, second)
    assert outcome == agents.Outcome(output={"done": "charged", "answer": "yes"})
    assert await position(agent, second) is Position.CLEAN
    assert trace.ended == ["charge"]
