"""What of a graph's stream becomes a chunk, what becomes a note, and what the graph is called with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from agents import bench
from outlive import agents, encoding, errors
from outlive.agents import langgraph
from outlive.states import State

pytestmark = pytest.mark.anyio


def alone(node: Any, name: str = "node", **schemas: Any) -> Any:
    """A graph of one node."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps, **schemas)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    return builder.compile()


def around(inner: Any) -> Any:
    """A graph around a subgraph."""
    return alone(inner, "sub")


async def test_a_subgraphs_items_carry_its_namespace_in_their_mode(on: bench.Bench) -> None:
    agent = await on.agent(around(bench.chain(bench.Trace(), "inner").compile()))
    items = await bench.all_of(agent, await on.claimed())
    modes = [item.mode for item in items if isinstance(item, agents.Chunk)]
    nested = {mode for mode in modes if mode and "|" in mode}
    assert {mode.split(":")[0] for mode in nested} == {"updates|sub", "values|sub"}
    assert bench.chunks(items, "updates") == [{"sub": {"steps": ["inner"]}}]
    (namespace,) = {mode.split("|")[1] for mode in nested}
    assert bench.chunks(items, f"updates|{namespace}") == [{"inner": {"steps": ["inner"]}}]


async def test_a_subgraphs_items_can_be_left_out(on: bench.Bench) -> None:
    agent = await on.agent(around(bench.chain(bench.Trace(), "inner").compile()), subgraphs=False)
    items = await bench.all_of(agent, await on.claimed())
    assert {item.mode for item in items if isinstance(item, agents.Chunk)} == {"updates", "values"}
    assert items[-1] == agents.Outcome(output={"steps": ["inner"]})


async def test_only_the_declared_modes_are_recorded_and_the_outcome_is_known_all_the_same(
    on: bench.Bench,
) -> None:
    agent = await on.agent(bench.booking(bench.Trace()), modes=("custom",))
    items = await bench.all_of(agent, await on.claimed())
    assert items == [agents.Outcome(output={"steps": ["plan", "charge", "notify", "finish"]})]


async def test_tokens_and_custom_data_are_chunks_that_can_be_encoded(on: bench.Bench) -> None:
    async def talk(state: bench.Steps) -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two")]))
        get_stream_writer()({"progress": 1})
        return {"steps": [(await model.ainvoke("go")).text]}

    agent = await on.agent(alone(talk))
    before = await on.claimed(thread="mine")  # a thread is named after its first run
    await on.settle(before, State.SUCCEEDED)
    context = await on.claimed(thread="mine")
    items = await bench.all_of(agent, context)
    assert bench.chunks(items, "custom") == [{"progress": 1}]
    tokens = bench.chunks(items, "messages")
    assert "".join(token.text for token, _ in tokens) == "one two"
    about = tokens[0][1]
    assert about["langgraph_node"] == "node"
    assert about["thread_id"] == "mine"  # what its caller calls it, never our internal name
    assert about["run_id"] == context.run.run_id
    for item in items:
        if isinstance(item, agents.Chunk):
            encoded = encoding.encode(item.data)
            assert encoded.placeholders == ()
            assert context.run.thread_id not in encoded.text


async def test_the_graph_that_was_given_is_left_as_it_was(on: bench.Bench) -> None:
    graph = bench.booking(bench.Trace())
    before = dict(vars(graph))
    await bench.last_of(await on.agent(graph), await on.claimed())
    assert vars(graph) == before
    assert graph.checkpointer is None


async def test_the_output_is_what_the_graph_declares_as_its_output(on: bench.Bench) -> None:
    class Output(TypedDict):
        answer: int

    class Everything(Output):
        secret: str

    async def think(state: Everything) -> Any:
        return {"answer": 42, "secret": "why"}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Everything, output_schema=Output)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    agent = await on.agent(builder.compile())
    assert await bench.last_of(agent, await on.claimed({})) == agents.Outcome(output={"answer": 42})


async def test_a_workflow_of_the_functional_api_returns_its_value(on: bench.Bench) -> None:
    @entrypoint()
    async def double(given: Any) -> Any:
        return given["number"] * 2

    agent = await on.agent(double)
    assert await bench.last_of(agent, await on.claimed({"number": 21})) == agents.Outcome(output=42)


async def test_a_nodes_error_is_the_attempts_error(on: bench.Bench) -> None:
    async def fail(state: bench.Steps) -> Any:
        raise LookupError("no such flight")

    with pytest.raises(LookupError):
        await bench.last_of(await on.agent(alone(fail)), await on.claimed())


# ---------------------------------------------------------------- notes


async def test_keys_that_the_state_does_not_declare_are_noted_once(on: bench.Bench) -> None:
    async def charge(state: bench.Steps) -> Any:
        return {"steps": ["charge"], "charge_id": "ch_1"}

    def again(state: bench.Steps) -> Any:
        go_on = len(state["steps"]) < 3
        return Command(
            update={"steps": ["again"], "refund_id": "re_1"}, goto="charge" if go_on else "__end__"
        )

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("charge", charge)
    builder.add_node("again", again, destinations=("charge", "__end__"))
    builder.add_edge(START, "charge")
    builder.add_edge("charge", "again")
    items = await bench.all_of(await on.agent(builder.compile()), await on.claimed())
    assert items[-1] == agents.Outcome(output={"steps": ["charge", "again", "charge", "again"]})
    first, second = bench.notes(items)
    assert "'charge'" in first
    assert "'charge_id'" in first
    assert "'again'" in second
    assert "'refund_id'" in second


async def test_what_a_subgraph_hands_up_is_not_noted(on: bench.Bench) -> None:
    class Wider(bench.Steps):
        more: str

    async def wide(state: Wider) -> Any:
        return {"steps": ["inner"], "more": "than the parent has"}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(Wider)
    inner.add_node("same", wide)
    inner.add_edge(START, "same")
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    outer.add_node("same", bench.Trace().node("outer"))
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "same")
    outer.add_edge("same", "sub")
    items = await bench.all_of(await on.agent(outer.compile()), await on.claimed())
    assert bench.notes(items) == []


# ---------------------------------------------------------------- what a graph is called with


@dataclass
class Person:
    """A runtime context."""

    name: str


async def test_config_and_context_come_from_the_runs_metadata(on: bench.Bench) -> None:
    seen: dict[str, Any] = {}

    async def look(state: bench.Steps, config: RunnableConfig, runtime: Runtime[Person]) -> Any:
        seen.update(config["configurable"], context=runtime.context, tags=config["tags"])
        seen["metadata"] = config["metadata"]
        return {"steps": []}

    agent = await on.agent(alone(look, context_schema=Person))
    asked = {"config": {"configurable": {"colour": "red"}, "tags": ["a"]}, "context": {"name": "Ada"}}
    items = await bench.all_of(agent, await on.claimed(metadata={**asked, "customer": "c1"}))
    assert bench.notes(items) == []
    assert seen["colour"] == "red"
    assert seen["context"] == Person("Ada")
    assert "a" in seen["tags"]
    assert seen["metadata"]["customer"] == "c1"


async def test_an_application_makes_input_config_and_context_itself(on: bench.Bench) -> None:
    seen: list[Any] = []

    async def look(state: bench.Steps, config: RunnableConfig, runtime: Runtime[Person]) -> Any:
        seen.extend([config["configurable"]["colour"], runtime.context])
        return {"steps": []}

    agent = await on.agent(
        alone(look, context_schema=Person),
        input=lambda context: {"steps": [context.input["message"]]},
        config=lambda context: {"configurable": {"colour": context.run.thread}},
        context=lambda context: Person(context.run.agent),
    )
    outcome = await bench.last_of(agent, await on.claimed({"message": "hello"}, thread="t"))
    assert outcome == agents.Outcome(output={"steps": ["hello"]})
    assert seen == ["t", Person("graph")]


async def test_what_langgraph_keeps_in_a_checkpoint_cannot_be_forged(on: bench.Bench) -> None:
    forged = {"counters_since_delta_snapshot": 5, "source": "fork", "step": 99, "parents": {"": "x"}}
    agent = await on.agent(bench.booking(bench.Trace()))
    context = await on.claimed(thread="t", metadata=forged)
    items = await bench.all_of(agent, context)
    assert len(bench.notes(items)) == 1
    state = await agent.reading.aget_state({"configurable": {"thread_id": context.run.thread_id}})
    assert state.metadata is not None
    assert state.metadata["source"] == "loop"
    assert state.metadata["step"] == 4
    assert "counters_since_delta_snapshot" not in state.metadata


@pytest.mark.parametrize("config", [[], "x", 1])
async def test_a_config_that_is_no_object_is_refused(on: bench.Bench, config: Any) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    context = await on.claimed(metadata={"config": config or ["x"]})
    with pytest.raises(errors.InvalidInput):
        await bench.last_of(agent, context)


async def test_an_agent_that_is_bound_to_no_store_says_so(on: bench.Bench) -> None:
    agent = langgraph.LangGraphAgent("graph", bench.booking(bench.Trace()), policy=bench.JOB)
    with pytest.raises(errors.NotReady):
        await bench.last_of(agent, await on.claimed())


# ---------------------------------------------------------------- synchronous code


async def test_a_synchronous_node_may_call_a_synchronous_subgraph(on: bench.Bench) -> None:
    def inner(state: bench.Steps) -> Any:
        return {"steps": ["inner"]}

    child = alone(inner)

    def call(state: bench.Steps, config: RunnableConfig) -> Any:
        return child.invoke({"steps": []}, config)

    agent = await on.agent(alone(call))
    context = await on.claimed()
    assert await bench.last_of(agent, context) == agents.Outcome(output={"steps": ["inner"]})
    config: RunnableConfig = {"configurable": {"thread_id": context.run.thread_id}}
    namespaces = {
        one.config["configurable"]["checkpoint_ns"]
        async for one in agent._saver(None).alist(config)  # every namespace: the config names none
    }
    assert len(namespaces) == 2  # the child's checkpoints went through the same saver


async def test_two_runs_of_one_agent_do_not_share_a_saver(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("charge")
    agent = await on.agent(bench.booking(trace))
    slow, quick = await on.claimed(), await on.claimed()
    running = bench.driven(agent, slow)
    await trace.until("charge")
    outcome = await asyncio.wait_for(bench.last_of(agent, quick), bench.WITHIN)
    assert outcome == agents.Outcome(output={"steps": ["plan", "charge", "notify", "finish"]})
    await bench.cut(running)
