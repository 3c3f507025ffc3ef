"""What LangGraph can do, lost half-way and taken up by another, comes to what it would have come to."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, Send

from agents import bench
from outlive import agents
from outlive.agents import langgraph

pytestmark = pytest.mark.anyio
Make = Callable[[bench.Trace], Any]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A graph of one feature; ``hold`` is the node in whose middle the first executor is lost, ``beside`` how
    many others have returned in the same step by then.
    """

    make: Make
    hold: str = "second"
    given: Any = None
    metadata: dict[str, Any] | None = None
    beside: int = 0


def _straight(trace: bench.Trace) -> Any:
    return bench.chain(trace, "first", "second", "third").compile()


def _nested(trace: bench.Trace) -> Any:
    inner = bench.chain(trace, "first", "second").compile()
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("inner", inner)
    builder.add_node("third", trace.node("third"))
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "third")
    return builder.compile()


def _parallel(trace: bench.Trace) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    for name in ("first", "second"):
        builder.add_node(name, trace.node(name))
        builder.add_edge(START, name)
        builder.add_edge(name, "third")
    builder.add_node("third", trace.node("third"))
    return builder.compile()


def _functional(trace: bench.Trace) -> Any:
    @task
    async def work(name: str) -> str:
        await trace.visit(name)
        return name

    @entrypoint()
    async def flow(given: Any) -> dict[str, list[str]]:
        return {"steps": [await work(name) for name in ("first", "second", "third")]}

    return flow


def _commands(trace: bench.Trace) -> Any:
    async def first(state: bench.Steps) -> Any:
        await trace.visit("first")
        return Command(update={"steps": ["first"]}, goto="second")

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("first", first, destinations=("second",))
    builder.add_node("second", trace.node("second"))
    builder.add_edge(START, "first")
    return builder.compile()


class Sent(TypedDict):
    """What is sent to a node."""

    name: str


def _sends(trace: bench.Trace) -> Any:
    async def work(state: Sent) -> dict[str, list[str]]:
        await trace.visit(state["name"])
        return {"steps": [state["name"]]}

    def fan_out(state: Any) -> list[Send]:
        return [Send("work", {"name": name}) for name in ("first", "second", "third")]

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, fan_out, ["work"])
    builder.add_edge("work", END)
    return builder.compile()


def _retries(trace: bench.Trace) -> Any:
    failed: list[str] = []

    async def second(state: bench.Steps) -> dict[str, list[str]]:
        await trace.visit("second")
        if not failed:
            failed.append("once")
            raise ConnectionError
        return {"steps": ["second"]}

    builder = bench.chain(trace, "first")
    policy = RetryPolicy(initial_interval=0.0, jitter=False, max_attempts=3)
    builder.add_node("second", second, retry_policy=policy)
    builder.add_edge("first", "second")
    return builder.compile()


def _caches(trace: bench.Trace) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("first", trace.node("first"), cache_policy=CachePolicy())
    builder.add_node("second", trace.node("second"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(cache=InMemoryCache())


def _stores(trace: bench.Trace) -> Any:
    async def first(state: bench.Steps, runtime: Runtime[Any]) -> dict[str, list[str]]:
        await trace.visit("first")
        assert runtime.store is not None
        await runtime.store.aput(("notes",), "first", {"written": "first"})
        return {"steps": ["first"]}

    async def second(state: bench.Steps, runtime: Runtime[Any]) -> dict[str, list[str]]:
        await trace.visit("second")
        assert runtime.store is not None
        found = await runtime.store.aget(("notes",), "first")
        return {"steps": [found.value["written"] if found else "lost"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(store=InMemoryStore())


class Whose(TypedDict):
    """The runtime context."""

    name: str


def _contexts(trace: bench.Trace) -> Any:
    async def second(state: bench.Steps, runtime: Runtime[Whose]) -> dict[str, list[str]]:
        await trace.visit("second")
        return {"steps": [runtime.context["name"]]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps, context_schema=Whose)
    builder.add_node("first", trace.node("first"))
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile()


def _writes(trace: bench.Trace) -> Any:
    async def first(state: bench.Steps) -> dict[str, list[str]]:
        await trace.visit("first")
        get_stream_writer()({"progress": 1})
        return {"steps": ["first"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("first", first)
    builder.add_node("second", trace.node("second"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile()


class Talk(MessagesState):
    """Messages, and which nodes wrote."""

    steps: Annotated[list[str], operator.add]


def _talks(trace: bench.Trace) -> Any:
    async def say(state: Talk) -> Any:
        await trace.visit("first")
        model = GenericFakeChatModel(messages=iter([AIMessage("one two", id="m")]))
        return {"messages": [await model.ainvoke(state["messages"])], "steps": ["first"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
    builder.add_node("first", say)
    builder.add_node("second", trace.node("second"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile()


CHAT = {"messages": [{"role": "user", "content": "hello", "id": "u"}], "steps": []}
FEATURES = {
    "straight": Feature(make=_straight),
    "subgraph": Feature(make=_nested),
    "parallel": Feature(make=_parallel, beside=1),
    "functional": Feature(make=_functional, given={"any": 1}, beside=1),
    "command": Feature(make=_commands),
    "send": Feature(make=_sends, beside=2),
    "retry policy": Feature(make=_retries),
    "cache policy": Feature(make=_caches),
    "store": Feature(make=_stores),
    "context": Feature(make=_contexts, metadata={"context": {"name": "ann"}}),
    "messages": Feature(make=_talks, given=CHAT),
}
MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug")


def output(items: list[agents.Yielded]) -> Any:
    """What a run came to."""
    last = items[-1]
    assert isinstance(last, agents.Outcome)
    return last.output


def modes_of(items: list[agents.Yielded]) -> set[str]:
    """The stream modes of which something was recorded."""
    return {str(item.mode).partition("|")[0] for item in items if isinstance(item, agents.Chunk)}


async def lost_and_taken_up(
    on: bench.Bench, feature: Feature, modes: tuple[str, ...]
) -> tuple[bench.Trace, list[agents.Yielded], list[agents.Yielded]]:
    """Run a feature with its first executor lost in the middle, and return what both executors yielded."""
    trace = bench.Trace()
    agent = await on.agent(feature.make(trace), modes=modes)
    context = await on.claimed(feature.given, thread="lost", metadata=feature.metadata)
    trace.hold(feature.hold)
    seen: list[agents.Yielded] = []

    async def drive() -> None:
        async for item in agent.stream(context):
            seen.append(item)  # noqa: PERF401 - what is seen before the cut is wanted as well

    first = asyncio.create_task(drive())
    await trace.until(feature.hold)
    await _kept(agent, context, feature)
    again = await on.again(context)
    await bench.cut(first)
    return trace, seen, await bench.all_of(agent, again)


async def _kept(agent: langgraph.LangGraphAgent, context: agents.Context, feature: Feature) -> None:
    """What nodes beside the one that is held have returned is stored: else it is nobody's to keep."""
    where: Any = {"configurable": {"thread_id": context.run.thread_id}}
    saver: Any = agent.reading.checkpointer
    kept: set[str] = set()
    async with asyncio.timeout(bench.WITHIN):
        while len(kept) < feature.beside:
            found = await saver.aget_tuple(where)
            kept = {task for task, *_ in (found.pending_writes if found else ()) or ()}


@pytest.mark.parametrize("name", FEATURES)
async def test_a_run_that_is_lost_half_way_comes_to_what_it_would_have_come_to(
    on: bench.Bench, name: str
) -> None:
    feature = FEATURES[name]
    whole = await on.agent(feature.make(bench.Trace()))
    expected = output(await bench.all_of(whole, await on.claimed(feature.given, metadata=feature.metadata)))
    trace, _, rest = await lost_and_taken_up(on, feature, langgraph.MODES)
    assert output(rest) == expected
    finished = [node for node in trace.ended if node != feature.hold]
    assert len(finished) == len(set(finished)), trace.ended


@pytest.mark.parametrize("make", [_straight, _nested, _parallel], ids=["straight", "subgraph", "parallel"])
@pytest.mark.parametrize("modes", [*((mode,) for mode in MODES), MODES], ids="-".join)
async def test_every_mode_goes_on_where_it_was_and_tells_no_finished_node_again(
    on: bench.Bench, make: Make, modes: tuple[str, ...]
) -> None:
    feature = Feature(make=make, beside=int(make is _parallel))
    trace, before, rest = await lost_and_taken_up(on, feature, modes)
    assert sorted(output(rest)["steps"]) == ["first", "second", "third"]
    assert trace.began.count("first") == 1
    told = modes_of(before) | modes_of(rest)
    assert told <= set(modes)
    expected = set(modes) - {"messages", "custom"}  # nobody says anything here
    assert told == expected
    if "updates" in modes:
        nodes = [node for item in (*before, *rest) for node in _nodes_of(item)]
        assert sorted({node for node in nodes if node[0] != "_"} - {"inner"}) == ["first", "second", "third"]


def _nodes_of(item: agents.Yielded) -> list[str]:
    is_update = isinstance(item, agents.Chunk) and str(item.mode).partition("|")[0] == "updates"
    return list(item.data) if is_update and isinstance(item, agents.Chunk) else []


@pytest.mark.parametrize(
    ("make", "given", "mode"),
    [(_writes, None, "custom"), (_talks, CHAT, "messages")],
    ids=["custom", "messages"],
)
async def test_what_was_said_before_the_loss_is_said_once(
    on: bench.Bench, make: Make, given: Any, mode: str
) -> None:
    _, before, rest = await lost_and_taken_up(on, Feature(make=make, given=given), (mode,))
    assert modes_of(before) == {mode}
    assert modes_of(rest) == set()
