"""Effects in a graph: in nodes, in sync nodes, in tools that run in threads, and before a question."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

import outlive
from core import support as core
from effects import support
from outlive import State, effects
from outlive.testing.paying import Paying


class Booking(TypedDict):
    """The state of the graphs here."""

    booking: str
    steps: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], operator.add]


@pytest.fixture
async def http(paying: Paying) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the provider."""
    async with support.client(paying) as client:
        yield client


def graph(*nodes: Any, name: str = "graph") -> outlive.LangGraphAgent:
    """The nodes one after another."""
    steps: Any = StateGraph(Booking)
    names = [getattr(node, "__name__", "tools") for node in nodes]
    for node_name, node in zip(names, nodes, strict=True):
        steps.add_node(node_name, node)
    for before, after in zip((START, *names), (*names, END), strict=True):
        steps.add_edge(before, after)
    return outlive.LangGraphAgent(name, steps.compile(), policy=outlive.job(), modes=["updates"])


def given(booking: str) -> dict[str, Any]:
    """The input of a graph."""
    return {"booking": booking, "steps": [], "messages": []}


@pytest.mark.invariant("I9")
async def test_an_effect_before_a_question_is_not_repeated_when_the_answer_comes(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    async def charge(state: Booking) -> Any:
        booking = state["booking"]
        await effects.once("charge", key=booking, call=lambda: support.pay(http, booking), key_ttl=60)
        return {"steps": [f"charge, {interrupt('which seat?')}"]}

    async with core.serving(database, graph(charge)) as served:
        first = await support.ran(served, given("b1"), "graph", thread="t")
        answer = await support.ran(served, {"command": {"resume": "12A"}}, "graph", thread="t")
        summary = await served.effects.summary(first)
    assert (first.state, answer.state) == (State.WAITING, State.SUCCEEDED)
    assert "12A" in str(answer.output)
    assert summary == {"counts": {"done": 1}, "executed": ["charge"], "unknown": []}
    assert len(paying.lines("request")) == 1


@pytest.mark.invariant("I9")
async def test_a_sync_node_has_effects_from_the_thread_that_the_graph_runs_it_in(
    database: str, paying: Paying
) -> None:
    def charge(state: Booking) -> Any:
        def call() -> Any:
            with httpx.Client(base_url=paying.url, transport=effects.SyncTransport()) as http:
                return http.post("/charge", json={"reference": state["booking"]}).json()["reference"]

        return {"steps": [effects.once_in_thread("charge", key=state["booking"], call=call, key_ttl=60)]}

    async with core.serving(database, graph(charge)) as served:
        runs = [await support.ran(served, given("b1"), "graph") for _ in range(2)]
    assert [run.state for run in runs] == [State.SUCCEEDED] * 2
    assert len(paying.lines("request")) == 1


@pytest.mark.invariant("I9")
async def test_S23_a_tool_called_again_under_another_id_executes_once(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    """One tool of each kind: a coroutine, and a plain function that its node runs in a thread."""

    @tool
    async def charge(order: str) -> str:
        """Charge an order."""
        paid = await effects.once("charge", key=order, call=lambda: support.pay(http, order), key_ttl=60)
        return str(paid["reference"])

    @tool
    def notify(order: str) -> str:
        """Notify the guest of an order."""

        def call() -> Any:
            with httpx.Client(base_url=paying.url, transport=effects.SyncTransport()) as blocking:
                return blocking.post("/notify", json={"reference": order}).json()["reference"]

        return str(effects.once_in_thread("notify", key=order, call=call, key_ttl=60))

    turn = 0

    async def model(state: Booking) -> Any:
        nonlocal turn
        turn += 1
        calls = [
            {"name": name, "args": {"order": state["booking"]}, "id": f"call_{turn}_{name}"}
            for name in ("charge", "notify")
        ]
        return {"messages": [AIMessage(content="", tool_calls=calls)]}

    async def model_again(state: Booking) -> Any:
        return await model(state)

    tools, tools_again = ToolNode([charge, notify]), ToolNode([charge, notify], name="again")
    steps: Any = StateGraph(Booking)
    names = {"model": model, "tools": tools, "model_again": model_again, "tools_again": tools_again}
    for name, node in names.items():
        steps.add_node(name, node)
    for before, after in zip((START, *names), (*names, END), strict=True):
        steps.add_edge(before, after)
    agent = outlive.LangGraphAgent("graph", steps.compile(), policy=outlive.job(), modes=["updates"])
    async with core.serving(database, agent) as served:
        run = await support.ran(served, given("o1"), "graph")
    assert run.state is State.SUCCEEDED, run.error_detail
    assert sorted(line["step"] for line in paying.lines()) == ["charge", "notify"]


@pytest.mark.invariant("I9")
async def test_a_run_that_goes_on_after_its_graph_failed_behind_an_effect_gets_the_stored_result(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    """The node had its effect and raised before its checkpoint: the next message runs it again."""
    fails = True

    async def charge(state: Booking) -> Any:
        booking = state["booking"]
        paid = await effects.once("charge", key=booking, call=lambda: support.pay(http, booking), key_ttl=60)
        if fails:
            raise ValueError("after the effect")
        return {"steps": [paid["reference"]]}

    async with core.serving(database, graph(charge)) as served:
        first = await support.ran(served, given("b1"), "graph", thread="t")
        fails = False
        second = await support.ran(served, given("b1"), "graph", thread="t")
    assert (first.state, second.state) == (State.FAILED, State.SUCCEEDED)
    assert len(paying.lines("request")) == 1
