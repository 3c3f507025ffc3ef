"""A stop of a graph that works in threads: none can be cut, so that the run has stopped when they return."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.prebuilt import ToolNode

import outlive
from agents import bench
from core import support as core
from outlive import effects, policy, signals
from outlive.agents import langgraph
from outlive.effects import attempt as effect_attempt
from outlive.model import StopOutcome
from outlive.states import Position, State
from outlive.store import effect_reads
from outlive.testing.hearing import Hearing

pytestmark = pytest.mark.anyio


class Blocked:
    """A place in a thread at which whoever comes waits for the test."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.over: list[str] = []

    def wait(self, name: str = "block") -> str:
        """Stand here until the test lets go."""
        self.began.set()
        assert self.let_go.wait(2 * bench.WITHIN)
        self.over.append(name)
        return name

    async def reached(self) -> None:
        """Wait until somebody has come."""
        assert await asyncio.to_thread(self.began.wait, bench.WITHIN)


def followed(trace: bench.Trace, node: Any, state: Any = bench.Steps) -> Any:
    """A graph of one node and, behind it, ``charge``."""
    builder: Any = StateGraph(state)
    builder.add_node("block", node)
    builder.add_node("charge", trace.node("charge"))
    for before, after in ((START, "block"), ("block", "charge"), ("charge", END)):
        builder.add_edge(before, after)
    return builder.compile()


def in_a_node(blocked: Blocked, trace: bench.Trace) -> Any:
    """A synchronous node."""

    def block(state: bench.Steps) -> Any:
        return {"steps": [blocked.wait()]}

    return followed(trace, block)


def in_a_tool(blocked: Blocked, trace: bench.Trace) -> Any:
    """A synchronous tool of a tool node, beside one that returns at once."""

    @tool
    def slow() -> str:
        """Take long."""
        return blocked.wait()

    @tool
    def quick() -> str:
        """Take no time."""
        return "quick"

    def ask(state: Any) -> Any:
        calls: list[Any] = [
            {"name": name, "args": {}, "id": name, "type": "tool_call"} for name in ("slow", "quick")
        ]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    async def charge(state: Any) -> Any:
        await trace.visit("charge")
        return {"messages": []}

    builder: Any = StateGraph(MessagesState)
    for name, node in (("ask", ask), ("block", ToolNode([slow, quick])), ("charge", charge)):
        builder.add_node(name, node)
    for before, after in ((START, "ask"), ("ask", "block"), ("block", "charge"), ("charge", END)):
        builder.add_edge(before, after)
    return builder.compile()


def in_a_nested_graph(blocked: Blocked, trace: bench.Trace) -> Any:
    """A synchronous node that calls another graph, whose second node must not begin either."""

    def first(state: bench.Steps) -> Any:
        return {"steps": [blocked.wait()]}

    def second(state: bench.Steps) -> Any:
        trace.began.append("second")
        return {"steps": ["second"]}

    inner: Any = StateGraph(bench.Steps)
    inner.add_node("first", first)
    inner.add_node("second", second)
    for before, after in ((START, "first"), ("first", "second"), ("second", END)):
        inner.add_edge(before, after)
    nested = inner.compile()

    def block(state: bench.Steps) -> Any:
        return nested.invoke(state)

    return followed(trace, block)


def in_a_subgraph(blocked: Blocked, trace: bench.Trace) -> Any:
    """A synchronous node of a subgraph."""
    return followed(trace, in_a_node(blocked, trace))


def in_a_pool_of_its_own(blocked: Blocked, trace: bench.Trace) -> Any:
    """A synchronous node that waits for threads of its own."""

    def block(state: bench.Steps) -> Any:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return {"steps": list(pool.map(blocked.wait, ["one", "two"]))}

    return followed(trace, block)


def under_an_async_node(blocked: Blocked, trace: bench.Trace) -> Any:
    """A node that awaits a thread, and swallows its cancellation."""

    async def block(state: bench.Steps) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.to_thread(blocked.wait)
        return {"steps": ["block"]}

    return followed(trace, block)


async def cut_by_now() -> None:
    """Wait for many more turns than lie between a stop, or a failure, and a verdict that waits for nobody."""
    for _ in range(500):
        await asyncio.sleep(0)


GRAPHS = (
    in_a_node,
    in_a_tool,
    in_a_nested_graph,
    in_a_subgraph,
    in_a_pool_of_its_own,
    under_an_async_node,
)


@contextlib.asynccontextmanager
async def blocking(
    database: str, make: Callable[[Blocked, bench.Trace], Any], **rules: Any
) -> AsyncIterator[tuple[outlive.Outlive, Blocked, bench.Trace, str, Hearing]]:
    """A run of a graph that stands in a thread; whatever happens, the thread is let go at the end."""
    blocked, trace = Blocked(), bench.Trace()
    agent = langgraph.LangGraphAgent("graph", make(blocked, trace), policy=policy.job(**rules))
    try:
        async with core.serving(database, agent, slots=2) as served:
            listening = core.heard(served)
            run_id = (await served.submit("graph", {"steps": [], "messages": []})).run.run_id
            await blocked.reached()
            yield served, blocked, trace, run_id, listening
            blocked.let_go.set()
            await core.until(lambda: served._worker.free == 2)
    finally:
        blocked.let_go.set()


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
async def test_S01_S02_a_run_has_stopped_when_its_thread_has_returned_and_no_node_follows(
    database: str, make: Any
) -> None:
    async with blocking(database, make) as (served, blocked, trace, run_id, listening):
        stop = await served.stop(run_id)
        await cut_by_now()
        meanwhile = await served.run(run_id)
        blocked.let_go.set()
        events = await core.story(served, run_id)
        run = await served.run(run_id)
        over = list(blocked.over)
    assert stop.outcome is StopOutcome.REQUESTED
    assert (meanwhile.state, meanwhile.public()["stop_requested"]) == (State.RUNNING, True)
    assert core.end(events)["state"] == "stopped"
    assert over
    assert trace.began == []
    assert run.position is Position.TORN
    assert listening.all(signals.SlotLeaked) == []


async def test_S02_a_thread_that_does_not_return_is_given_up_on_and_its_effect_is_unknown(
    database: str,
) -> None:
    def make(blocked: Blocked, trace: bench.Trace) -> Any:
        def charge(state: bench.Steps) -> Any:
            return {"steps": [effects.once_in_thread("charge", key="b1", call=blocked.wait)]}

        return followed(trace, charge)

    async with blocking(database, make, stop_deadline=0.1) as (served, blocked, trace, run_id, listening):
        epoch = (await served.run(run_id)).epoch
        await served.stop(run_id)
        events = await core.story(served, run_id)
        run = await served.run(run_id)
        assert (await listening.of(signals.SlotLeaked)).run_id == run_id
        await core.until(lambda: not served._worker.driving)
        assert served._worker.free == 1
        effect = await served.store.read(effect_reads.newest("", "charge", "b1"))
        blocked.let_go.set()
        await core.until(lambda: served._worker.free == 2)
        await asyncio.gather(*effect_attempt._LEFT)
    assert core.end(events)["state"] == "stopped"
    assert core.end(events)["effects"]["unknown"] == ["charge"]
    assert effect is not None
    assert effect.known.value == "unknown"
    assert (run.epoch, run.position) == (epoch + 1, Position.UNKNOWN)
    assert trace.began == []


async def test_S01_a_node_that_swallows_every_cancellation_is_given_up_on_and_no_node_follows(
    on: bench.Bench,
) -> None:
    let_go, began, trace = asyncio.Event(), asyncio.Event(), bench.Trace()

    async def stubborn(state: bench.Steps) -> Any:
        began.set()
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        return {"steps": ["stubborn"]}

    agent = langgraph.LangGraphAgent("graph", followed(trace, stubborn), policy=policy.job(stop_deadline=0.1))
    async with core.serving(on.database, agent, slots=2) as served:
        listening = core.heard(served)
        run_id = (await served.submit("graph", {"steps": []})).run.run_id
        await asyncio.wait_for(began.wait(), bench.WITHIN)
        await served.stop(run_id)
        events = await core.story(served, run_id)
        run = await served.run(run_id)
        assert (await listening.of(signals.SlotLeaked)).run_id == run_id
        rows = on.rows()
        let_go.set()
        await core.until(lambda: served._worker.free == 2)
        assert on.rows() == rows
    assert core.end(events)["state"] == "stopped"
    assert run.position is Position.UNKNOWN
    assert trace.began == []


async def test_a_run_has_failed_when_the_thread_beside_the_failed_node_has_returned(database: str) -> None:
    failed = asyncio.Event()

    def make(blocked: Blocked, trace: bench.Trace) -> Any:
        async def fail(state: bench.Steps) -> Any:
            await asyncio.to_thread(blocked.began.wait, bench.WITHIN)
            failed.set()
            raise ValueError("no seat is left")

        def block(state: bench.Steps) -> Any:
            return {"steps": [blocked.wait()]}

        builder: Any = StateGraph(bench.Steps)
        for name, node in (("fail", fail), ("block", block)):
            builder.add_node(name, node)
            builder.add_edge(START, name)
        return builder.compile()

    async with blocking(database, make) as (served, blocked, _, run_id, _listening):
        await asyncio.wait_for(failed.wait(), bench.WITHIN)
        await cut_by_now()
        meanwhile = await served.run(run_id)
        blocked.let_go.set()
        events = await core.story(served, run_id)
    assert meanwhile.state is State.RUNNING
    assert core.end(events)["state"] == "failed"
    assert blocked.over == ["block"]


async def test_a_thread_that_a_run_leaves_behind_on_purpose_does_not_hold_up_its_success(
    database: str,
) -> None:
    def make(blocked: Blocked, trace: bench.Trace) -> Any:
        async def leave(state: bench.Steps) -> Any:
            asyncio.get_running_loop().run_in_executor(None, blocked.wait)
            return {"steps": ["leave"]}

        return followed(trace, leave)

    async with blocking(database, make) as (served, blocked, _, run_id, _listening):
        events = await core.story(served, run_id)
        assert blocked.over == []
    assert core.end(events)["state"] == "succeeded"
