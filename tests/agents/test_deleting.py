"""A deleted thread's checkpoints are gone, its subgraphs' too, and a late write of one brings none back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from agents import bench
from core import record, support
from outlive import errors, policy, signals
from outlive.agents import langgraph
from outlive.store import deleting
from outlive.testing import hearing

pytestmark = pytest.mark.anyio


def nested(trace: bench.Trace) -> Any:
    """plan, then a subgraph whose checkpoints are kept too, then finish."""
    inner = bench.chain(trace, "charge", "notify").compile()
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("plan", trace.node("plan"))
    builder.add_node("inner", inner)
    builder.add_node("finish", trace.node("finish"))
    for before, after in ((START, "plan"), ("plan", "inner"), ("inner", "finish")):
        builder.add_edge(before, after)
    return builder.compile()


def serving(database: str, graph: Any, **options: Any) -> Any:
    """A service with one agent of a graph."""
    agent = langgraph.LangGraphAgent("graph", graph, policy=policy.job(on_busy="enqueue"), **options)
    return support.serving(database, agent)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("node", ["plan", "charge", "finish"])
async def test_resurrected_threads_no_checkpoint_of_a_deleted_thread_appears_again(
    database: str, node: str
) -> None:
    """Deleted in the middle of a node, of the graph or its subgraph; then the node is let end."""
    trace = bench.Trace()
    gate = trace.hold(node)
    async with serving(database, nested(trace)) as served:
        listening = support.heard(served)
        kept = (await served.submit("graph", {"steps": []}, thread="other", not_before=1e10)).run
        run = (await served.submit("graph", {"steps": []}, thread="t")).run
        await trace.until(node)
        assert bench.Bench(database).rows()
        await served.delete_thread("t")
        gate.set()
        await listening.of(signals.LeaseLost, run_id=run.run_id)
        await support.until(lambda: served._worker.free == served.slots)
        assert bench.Bench(database).rows() == []
        assert (await served.run(kept.run_id)).thread == "other"
        with pytest.raises(errors.NotFound):
            await served.thread("t")


async def test_a_checkpoint_that_is_written_when_its_thread_is_deleted_is_refused_and_counted(
    database: str,
) -> None:
    async with bench.opened(database) as on:
        agent = await on.agent(nested(bench.Trace()))
        context = await on.claimed(thread="t")
        listening = hearing.Hearing(on.signals)
        slow = on.slowly(agent, "put", 2)
        task = bench.driven(agent, context)
        async with asyncio.timeout(bench.WITHIN):
            await slow.begun.wait()
        await on.store.write(deleting.bury(context.run.thread_id, force=False))
        await on.store.write(deleting.clear_events(context.run.thread_id, 1000))
        await on.store.write(deleting.clear(context.run.thread_id))
        slow.let_go.set()
        with pytest.raises(errors.Fenced):
            await task
        late = listening.all(signals.StaleWriteRefused, write=signals.Write.CHECKPOINT)
        assert {one.run_id for one in late} == {context.run.run_id}
        assert late
        assert on.rows() == []


async def test_a_new_message_to_the_same_name_begins_with_nothing(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, nested(trace)) as served:
        for _ in range(2):
            run_id = (await served.submit("graph", {"steps": ["asked"]}, thread="t")).run.run_id
            await support.story(served, run_id)
            output = (await served.run(run_id)).public()["output"]
            assert output == {"steps": ["asked", "plan", "asked", "plan", "charge", "notify", "finish"]}
            await served.delete_thread("t")


async def test_a_graphs_own_saver_is_asked_to_forget_as_well(database: str) -> None:
    saver = InMemorySaver()
    graph = bench.chain(bench.Trace(), "plan").compile(checkpointer=saver)
    async with serving(database, graph, checkpointer="own") as served:
        run = (await served.submit("graph", {"steps": []}, thread="t")).run
        await support.story(served, run.run_id)
        config: Any = {"configurable": {"thread_id": run.thread_id}}
        assert list(saver.list(config))
        assert (await served.delete_thread("t")).cleared
        assert list(saver.list(config)) == []


async def test_a_saver_that_cannot_forget_now_is_asked_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = InMemorySaver()
    graph = bench.chain(bench.Trace(), "plan").compile(checkpointer=saver)
    async with serving(database, graph, checkpointer="own") as served:
        listening = support.heard(served)
        run = (await served.submit("graph", {"steps": []}, thread="t")).run
        await support.story(served, run.run_id)

        async def fail(thread_id: str) -> None:
            raise ConnectionError(thread_id)

        with monkeypatch.context() as patch:
            patch.setattr(saver, "adelete_thread", fail)
            assert not (await served.delete_thread("t")).cleared
        assert [one.duty for one in listening.all(signals.BackgroundFailed)] == ["deletion"]
        with pytest.raises(errors.NotFound):
            await served.thread("t")
        assert await served.deletion().clear_once() == 1
        assert list(saver.list({"configurable": {"thread_id": run.thread_id}})) == []


async def test_the_tables_of_checkpoints_are_those_that_are_deleted_from(database: str) -> None:
    """A table that a newer LangGraph adds must be added to what is deleted and copied."""
    async with bench.opened(database) as on:
        await on.agent(nested(bench.Trace()))
    expected = {"checkpoints", "writes"} if on.on_sqlite else {
        "checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations"
    }  # fmt: skip
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if on.on_sqlite
        else "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'"
    )
    names = {row["name"] for row in record.rows(database, query)}
    assert {name for name in names if name.startswith("checkpoint") or name == "writes"} == expected
