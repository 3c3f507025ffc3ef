"""Whatever a node answers to being cut: it has run once, or runs again, and what follows is not skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy

from agents import bench
from core import support as core
from outlive import cancellation, policy, signals
from outlive.agents.cuttable import cuttable
from outlive.agents.langgraph import LangGraphAgent
from outlive.testing import hearing

pytestmark = pytest.mark.anyio


class Edge:
    """A conditional edge that stands still the first time it is asked; ``answers``: until well into a cut."""

    def __init__(self, *, answers: bool = False) -> None:
        self.asked = asyncio.Event()
        self._answers = answers
        self._first = True

    async def __call__(self, state: bench.Steps) -> str:
        """Choose ``last``."""
        self.asked.set()
        if self._first:
            self._first = False
            await (_well_into_a_cut() if self._answers else asyncio.Event().wait())
        return "last"


async def _well_into_a_cut() -> None:
    parts = cancellation.CURRENT.get()
    assert parts is not None
    await core.until(lambda: parts._is_cut)
    for _ in range(3 * cancellation.TURNS):
        await asyncio.sleep(0)


def routed(trace: bench.Trace, edge: Callable[..., Any], *, start: bool = False) -> Any:
    """A node ``charge``, or only the start, whose edge leads to ``last``."""
    builder: Any = StateGraph(bench.Steps)
    builder.add_node("last", trace.node("last"))
    if not start:
        builder.add_node("charge", trace.node("charge"))
        builder.add_edge(START, "charge")
    builder.add_conditional_edges(START if start else "charge", edge, ["last"])
    builder.add_edge("last", END)
    return builder.compile()


def agent_of(graph: Any, **rules: Any) -> LangGraphAgent:
    """An agent whose threads are finished before a new message."""
    return LangGraphAgent("graph", graph, policy=policy.job(on_busy="enqueue", **rules))


async def stopped_and_gone_on(database: str, agent: LangGraphAgent, began: Awaitable[Any]) -> hearing.Hearing:
    """Stop a run once something has begun, and go on with its thread."""
    async with core.serving(database, agent, slots=2) as served:
        listening = core.heard(served)
        run = (await served.submit("graph", {"steps": []}, thread="t")).run
        await asyncio.wait_for(began, bench.WITHIN)
        await served.stop(run.run_id)
        assert core.end(await core.story(served, run.run_id))["state"] == "stopped"
        again = (await served.submit("graph", None, thread="t")).run
        assert core.end(await core.story(served, again.run_id))["state"] == "succeeded"
    return listening


async def test_a_stop_while_a_conditional_edge_is_asked_neither_repeats_its_node_nor_skips_what_follows(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "QUIET", 0.0)
    trace, edge = bench.Trace(), Edge(answers=True)
    agent = agent_of(routed(trace, edge), stop_deadline=bench.WITHIN)
    await stopped_and_gone_on(database, agent, edge.asked.wait())
    assert trace.ended == ["charge", "last"]


async def test_a_conditional_edge_that_does_not_answer_is_cut_within_the_deadline_and_its_node_runs_again(
    database: str,
) -> None:
    trace, edge = bench.Trace(), Edge()
    listening = await stopped_and_gone_on(
        database, agent_of(routed(trace, edge), stop_deadline=1.0), edge.asked.wait()
    )
    assert trace.ended == ["charge", "charge", "last"]
    assert listening.all(signals.SlotLeaked) == []


async def test_a_stop_while_the_edge_at_the_start_is_asked_does_not_wait_for_it(database: str) -> None:
    trace, edge = bench.Trace(), Edge()
    agent = agent_of(routed(trace, edge, start=True), stop_deadline=600.0)
    await stopped_and_gone_on(database, agent, edge.asked.wait())
    assert trace.ended == ["last"]


async def test_a_conditional_edge_that_fails_does_not_make_the_next_message_skip_what_follows(
    on: bench.Bench,
) -> None:
    trace, asked = bench.Trace(), 0

    def edge(state: bench.Steps) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("the router is down")
        return "last"

    agent = await on.agent(routed(trace, edge))
    context = await on.claimed()
    with pytest.raises(ConnectionError):
        await bench.last_of(agent, context)
    last: Any = await bench.last_of(agent, await on.again(context))
    assert last.output["steps"] == ["charge", "last"]
    assert trace.ended == ["charge", "charge", "last"]


@pytest.mark.parametrize("how", ["plain", "retried", "handled", "grouped"])
async def test_a_node_that_answers_a_cut_with_an_error_has_been_cut_and_not_failed(
    database: str, how: str
) -> None:
    """Else a retry held up the stop, a handler took its place, and the nodes beside it were torn."""
    trace, side, let_go = bench.Trace(), asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    async def failing() -> None:
        try:
            await trace.visit("charge")
        except asyncio.CancelledError:
            raise ConnectionError("the connection is gone") from None

    async def charge(state: bench.Steps) -> dict[str, list[str]]:
        if how == "grouped":
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())
        else:
            await failing()
        return {"steps": ["charge"]}

    async def handle(state: bench.Steps) -> dict[str, list[str]]:
        handled.append("charge")
        return {"steps": ["handled"]}

    async def beside(state: bench.Steps) -> dict[str, list[str]]:
        side.set()
        shielded = asyncio.ensure_future(let_go.wait())
        while not shielded.done():
            try:
                await asyncio.shield(shielded)
            except asyncio.CancelledError:
                asyncio.get_running_loop().call_soon(let_go.set)
        trace.ended.append("beside")
        return {"steps": ["beside"]}

    ways: dict[str, dict[str, Any]] = {
        "retried": {"retry_policy": RetryPolicy(initial_interval=3600.0)},
        "handled": {"error_handler": handle},
    }
    builder: Any = StateGraph(bench.Steps)
    builder.add_node("charge", charge, **ways.get(how, {}))
    builder.add_node("beside", beside)
    builder.add_node("last", trace.node("last"))
    builder.add_edge(START, "charge")
    builder.add_edge(START, "beside")
    builder.add_edge(["charge", "beside"], "last")
    trace.hold("charge")
    listening = await stopped_and_gone_on(
        database, agent_of(builder.compile(), stop_deadline=bench.WITHIN), trace.until("charge")
    )
    assert side.is_set()
    assert trace.ended == ["beside", "charge", "last"]
    assert handled == []
    assert len(listening.all(signals.CleanupFailed)) == 1


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
async def test_a_subgraph_that_keeps_no_checkpoints_is_cut_and_begins_anew(database: str, mode: str) -> None:
    trace = bench.Trace()
    inner = bench.chain(trace, "plan", "charge").compile(checkpointer=False)
    builder: Any = StateGraph(bench.Steps)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    trace.hold("charge")
    agent = agent_of(builder.compile(), durability=mode)
    await stopped_and_gone_on(database, agent, trace.until("charge"))
    assert trace.ended == ["plan", "plan", "charge"]


async def test_a_synchronous_function_that_waits_for_its_tasks_ends_within_the_deadline(
    database: str,
) -> None:
    from langgraph.func import entrypoint, task  # noqa: PLC0415

    trace = bench.Trace()
    trace.hold("charge")

    @task
    async def charge() -> str:
        await trace.visit("charge")
        return "charge"

    @entrypoint()
    def book(given: Any) -> dict[str, list[str]]:
        return {"steps": [charge().result()]}

    listening = await stopped_and_gone_on(database, agent_of(book, stop_deadline=1.0), trace.until("charge"))
    assert trace.ended == ["charge"]
    assert listening.all(signals.SlotLeaked) == []


def test_a_graph_that_can_be_cut_shows_itself_as_the_original_does() -> None:
    trace = bench.Trace()
    inner = routed(trace, Edge())
    builder: Any = StateGraph(bench.Steps)
    builder.add_node("inner", inner)
    builder.add_node("again", inner)
    builder.add_edge(START, "inner")
    builder.add_conditional_edges("inner", Edge(), {"last": "again"})
    graph = builder.compile()
    made = cuttable(graph)
    assert made.get_graph(xray=True).to_json() == graph.get_graph(xray=True).to_json()
    assert [name for name, _ in made.get_subgraphs()] == [name for name, _ in graph.get_subgraphs()]
