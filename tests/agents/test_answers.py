"""An answer reaches the question that it is for, once, however it is addressed, and repeats nothing."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from agents import bench
from agents.test_threads import Threads, serving
from outlive import errors
from outlive.agents import langgraph
from outlive.model import Run
from outlive.states import Position, State
from outlive.store import reads

pytestmark = pytest.mark.anyio


def asking(trace: bench.Trace, *, checkpointer: Any = None) -> Any:
    """A subgraph that prepares, asks and acts."""

    async def ask(state: bench.Steps) -> dict[str, list[str]]:
        return {"steps": [interrupt("sure?")]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("prepare", trace.node("prepare"))
    builder.add_node("ask", ask)
    builder.add_node("act", trace.node("act"))
    for before, after in ((START, "prepare"), ("prepare", "ask"), ("ask", "act")):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=checkpointer)


def nested(trace: bench.Trace, *, checkpointer: Any = None) -> Any:
    """A graph whose one node is that subgraph."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("sub", asking(trace, checkpointer=checkpointer))
    builder.add_edge(START, "sub")
    return builder.compile()


def questions(run: Run) -> dict[str, str]:
    """What a waiting run asks, by the ids of its questions."""
    assert run.state is State.WAITING
    return {one["id"]: one["value"] for one in run.public()["output"]["__interrupt__"]}


@pytest.mark.parametrize("own", [None, True], ids=["inherited", "own"])
@pytest.mark.parametrize("by", ["thread", "interrupt", "checkpoint"])
async def test_S28_an_answer_to_a_question_in_a_subgraph_repeats_nothing_however_it_is_addressed(
    database: str, by: str, own: Any
) -> None:
    trace = bench.Trace()
    graph = nested(trace, checkpointer=own)
    async with serving(database, graph) as service:
        asked = await Threads(service).sent()
        assert asked.position is Position.WAITING
        (question,) = questions(asked)
    async with serving(database, graph) as service:  # another process, for all that it knows
        options: dict[str, Any] = {}
        if by == "checkpoint":
            options["metadata"] = {"config": {"configurable": {"checkpoint_id": await head(database, graph)}}}
        answer = {question: "yes"} if by == "interrupt" else "yes"
        run = await Threads(service).sent({"command": {"resume": answer}}, **options)
        with pytest.raises(errors.NothingToAnswer):
            await service.submit("graph", {"command": {"resume": answer}}, thread="t")
    assert run.public()["output"] == {"steps": ["prepare", "yes", "act"]}
    assert trace.ended == ["prepare", "act"]


async def head(database: str, graph: Any) -> str:
    """The id of the thread's newest checkpoint, which servers that are not Outlive send with an answer."""
    async with bench.opened(database) as on:
        agent = await on.agent(graph)
        (run,) = await on.store.read(reads.runs("", limit=1))
        state = await agent.reading.aget_state({"configurable": {"thread_id": run.thread_id}})
        found: str = state.config["configurable"]["checkpoint_id"]
        return found


def asking_twice(trace: bench.Trace) -> Any:
    """Two nodes that ask at once, and one that acts."""

    def ask(name: str) -> Any:
        async def node(state: bench.Steps) -> dict[str, list[str]]:
            return {"steps": [f"{name}: {interrupt(name)}"]}

        return node

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("seat", ask("seat"))
    builder.add_node("meal", ask("meal"))
    builder.add_node("act", trace.node("act"))
    for node in ("seat", "meal"):
        builder.add_edge(START, node)
    builder.add_edge(["seat", "meal"], "act")
    return builder.compile()


async def test_S28_of_two_questions_at_once_each_gets_its_own_answer(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking_twice(trace)) as service:
        threads = Threads(service)
        asked = questions(await threads.sent())
        assert sorted(asked.values()) == ["meal", "seat"]
        seat, meal = sorted(asked, key=lambda each: asked[each] == "meal")
        first = await threads.sent({"command": {"resume": {seat: "12A"}}})
        assert (first.position, list(questions(first))) == (Position.WAITING, [meal])
        run = await threads.sent({"command": {"resume": {meal: "fish"}}})
    assert sorted(run.public()["output"]["steps"]) == ["act", "meal: fish", "seat: 12A"]
    assert trace.ended == ["act"]


@pytest.mark.parametrize(
    "answer", ["12A", {"seat": "12A"}, {"0" * 32: "12A"}], ids=["bare", "dict", "unknown"]
)
async def test_S28_an_answer_that_fits_no_question_is_refused_and_names_those_that_are_open(
    database: str, answer: Any
) -> None:
    trace = bench.Trace()
    async with serving(database, asking_twice(trace)) as service:
        threads = Threads(service)
        asked = questions(await threads.sent())
        with pytest.raises(errors.InvalidInput) as refused:
            await service.submit("graph", {"command": {"resume": answer}}, thread="t")
        assert all(one in str(refused.value.hint) for one in asked)
        (waiting,) = await service.runs(thread="t")
        run = await threads.sent({"command": {"resume": dict.fromkeys(asked, "x")}})
    assert waiting.state is State.WAITING
    assert sorted(run.public()["output"]["steps"]) == ["act", "meal: x", "seat: x"]


async def test_S28_an_answer_that_is_sent_again_with_its_key_is_the_run_that_took_it(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking_twice(trace)) as service:
        threads = Threads(service)
        asked = questions(await threads.sent())
        given = {"command": {"resume": dict.fromkeys(asked, "x")}}
        first = await service.submit("graph", given, thread="t", key="k")
        await threads.ended(first.run)
        again = await service.submit("graph", given, thread="t", key="k")
    assert again.run.run_id == first.run.run_id


def test_what_an_answer_looks_like() -> None:
    agent = langgraph.LangGraphAgent("graph", bench.booking(bench.Trace()), policy=bench.JOB)
    assert agent.answers({"command": {"resume": None}})
    for given in (
        None,
        "x",
        {"command": "resume"},
        {"command": {"goto": "x"}},
        {"command": {"resume": 1}, "x": 1},
    ):
        assert not agent.answers(given)
