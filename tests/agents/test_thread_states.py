"""Threads of graphs are read, copied and changed at any of their checkpoints, and drawn as trees."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import outlive
from agents import bench
from agents.test_deleting import nested
from agents.test_threads import ANSWER, BOOKING, Threads, asking, serving
from core import record
from outlive import errors, tree
from outlive.agents import langgraph
from outlive.agents.positions import Place
from outlive.states import Position, State

pytestmark = pytest.mark.anyio


def shape(found: tree.Tree, namespace: str = "") -> list[tuple[Any, ...]]:
    """Step, source, number of children and whether it is the newest, oldest first."""
    nodes = [node.public() for node in reversed(list(found.graphs[namespace].values()))]
    return [(one["step"], one["source"], len(one["children"]), one["head"]) for one in nodes]


# ---------------------------------------------------------------- reading


async def test_the_history_of_a_thread_is_read_newest_first_a_page_at_a_time(database: str) -> None:
    async with serving(database, bench.booking(bench.Trace())) as service:
        run = await Threads(service).sent()
        whole = await service.history("t", limit=100)
        first = await service.history("t", limit=4)
        rest = await service.history("t", limit=100, before=first[-1].place)
    assert [one.next for one in whole] == [(), *((node,) for node in reversed(BOOKING)), ("__start__",)]
    assert first + rest == whole
    assert [one.position for one in whole] == [Position.CLEAN, *[Position.TORN] * 5]
    assert [len(one.values["steps"]) if one.values else 0 for one in whole] == [4, 3, 2, 1, 0, 0]
    assert {one.metadata["run_id"] for one in whole} == {run.run_id}
    assert [one.parent for one in whole[:-1]] == [one.place for one in whole[1:]]
    assert run.thread_id not in repr([one.public() for one in whole])


async def test_the_state_at_a_checkpoint_is_read_with_its_subgraphs(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, nested(trace)) as service:
        await Threads(service).cut(trace, "notify")
        newest = await service.state("t")
        [task] = newest.tasks
        assert (newest.position, newest.next, task["name"]) == (Position.TORN, ("inner",), "inner")
        assert task["state"]["next"] == ["notify"]
        assert task["state"]["values"] == {"steps": ["plan", "charge"]}
        namespace = task["state"]["checkpoint"]["namespace"]
        inner = await service.history("t", before=Place(namespace=namespace))
        assert [one.next for one in inner] == [("notify",), ("charge",), ("__start__",)]
        older = await service.state("t", place=newest.parent)
        assert (older.place, older.next) == (newest.parent, ("plan",))
        with pytest.raises(errors.NotFound):
            await service.state("t", place=Place(checkpoint_id="nothing"))
        with pytest.raises(errors.NotFound):
            await service.state("t", tenant="other")


async def test_lost_approvals_a_question_is_in_the_threads_state_until_it_is_answered(database: str) -> None:
    """Also for whoever comes back after a restart and only reads."""
    async with serving(database, asking(bench.Trace())) as service:
        assert (await Threads(service).sent()).state is State.WAITING
    async with serving(database, asking(bench.Trace())) as service:
        state = await service.state("t")
        [question] = state.interrupts
        assert (state.position, question["value"]) == (Position.WAITING, "sure?")
        assert question["id"]
        [task] = state.tasks
        assert task["interrupts"] == state.interrupts
        assert (await Threads(service).sent(ANSWER)).state is State.SUCCEEDED
        assert (await service.state("t")).interrupts == []


def asking_twice() -> Any:
    """Two nodes of one step, each of which asks before it does anything."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    for name in ("first", "second"):

        async def ask(state: bench.Steps, name: str = name) -> dict[str, list[str]]:
            return {"steps": [f"{name}: {interrupt(name)}"]}

        builder.add_node(name, ask)
        builder.add_edge(START, name)
    return builder.compile()


async def test_lost_approvals_a_bare_answer_to_two_questions_approves_nothing_and_loses_neither(
    database: str,
) -> None:
    async with serving(database, asking_twice()) as service:
        threads = Threads(service)
        assert (await threads.sent()).state is State.WAITING
        asked = (await service.state("t")).interrupts
        assert sorted(one["value"] for one in asked) == ["first", "second"]
        with pytest.raises(errors.InvalidInput, match="several questions"):
            await threads.sent(ANSWER)
        assert (await service.state("t")).interrupts == asked
        answers = {one["id"]: f"yes to {one['value']}" for one in asked}
        run = await threads.sent({"command": {"resume": answers}})
    assert run.state is State.SUCCEEDED
    assert run.public()["output"]["steps"] == ["first: yes to first", "second: yes to second"]


async def test_who_reads_a_thread_that_no_graph_wrote_is_told(database: str) -> None:
    async with serving(database, bench.booking(bench.Trace())) as service:
        await Threads(service).sent()
        with pytest.raises(errors.NotFound):
            await service.state("t", agent="other")
        with pytest.raises(errors.InvalidInput):
            await service.history("t", limit=0)


# ---------------------------------------------------------------- changing


async def test_a_state_is_changed_by_a_run_of_its_own_that_is_on_record(database: str) -> None:
    async with serving(database, bench.booking(bench.Trace())) as service:
        await Threads(service).sent()
        updated = await service.update_state("t", {"steps": ["by hand"]}, as_node="finish")
        run = await service.run(updated.run_id)
        state, thread = await service.state("t"), await service.thread("t")
    assert state.values == {"steps": [*BOOKING, "by hand"]}
    assert state.place == updated.place
    assert (state.metadata["source"], state.metadata["run_id"]) == ("update", run.run_id)
    assert (run.agent, run.state, run.position) == ("outlive.update", State.SUCCEEDED, Position.CLEAN)
    assert run.public()["output"] == updated.place.public()
    assert (thread.position, thread.left_by) == (Position.CLEAN, run.run_id)
    assert record.faults(database) == []


async def test_a_state_changed_as_of_an_older_checkpoint_is_a_fork_from_there(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace)) as service:
        await Threads(service).sent()
        target = next(one for one in await service.history("t") if one.next == ("charge",))
        updated = await service.update_state("t", {"steps": ["other"]}, as_node="plan", place=target.place)
        state = await service.state("t")
        assert (updated.position, state.next) == (Position.TORN, ("charge",))
        assert state.values == {"steps": ["plan", "other"]}
        assert (await service.thread("t")).position is Position.TORN
        trace.ended.clear()
        await Threads(service).sent({"steps": ["asked"]})
        assert trace.ended == ["charge", "notify", "finish", *BOOKING], (
            "what the fork began is finished first"
        )
        drawn = await service.tree("t")
    forks = [node for node in drawn.graphs[""].values() if len(node.children) == 2]
    assert [node.mark.checkpoint_id for node in forks] == [target.place and target.place.checkpoint_id]


async def test_no_state_is_changed_while_a_run_is_live(database: str) -> None:
    trace = bench.Trace()
    gate = trace.hold("charge")
    async with serving(database, bench.booking(trace)) as service:
        submitted = await service.submit("graph", {"steps": []}, thread="t")
        await trace.until("charge")
        before = len(bench.Bench(database).rows())
        with pytest.raises(errors.ThreadBusy) as refused:
            await service.update_state("t", {"steps": ["late"]}, as_node="finish")
        assert refused.value.run_id == submitted.run.run_id
        assert len(bench.Bench(database).rows()) == before
        gate.set()
        run, _ = await Threads(service).ended(submitted.run)
    assert run.public()["output"] == {"steps": BOOKING}


@pytest.mark.parametrize(
    "wrong", [{"as_node": "nowhere"}, {"place": Place(checkpoint_id="nothing"), "as_node": "plan"}]
)
async def test_a_change_that_the_graph_does_not_take_changes_nothing_and_frees_the_thread(
    database: str, wrong: dict[str, Any]
) -> None:
    async with serving(database, bench.booking(bench.Trace())) as service:
        await Threads(service).sent()
        before = await service.state("t")
        with pytest.raises(errors.NotFound if "place" in wrong else errors.InvalidInput):
            await service.update_state("t", {"steps": ["x"]}, **wrong)
        assert await service.state("t") == before
        assert (await service.runs(agent="outlive.update"))[0].state is State.FAILED
        assert (await Threads(service).sent()).state is State.SUCCEEDED


@pytest.mark.invariant("I13")
async def test_who_is_cut_off_while_a_state_is_changed_leaves_no_busy_thread(database: str) -> None:
    async with serving(database, bench.booking(bench.Trace())) as service:
        await Threads(service).sent()
        changing = asyncio.create_task(service.update_state("t", {"steps": ["x"]}, as_node="finish"))
        async with asyncio.timeout(bench.WITHIN):
            while not await service.runs(agent="outlive.update"):
                pass
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        [run] = await service.runs(agent="outlive.update")
        await Threads(service).ended(run)
        assert (await Threads(service).sent()).state is State.SUCCEEDED


# ---------------------------------------------------------------- copying


async def test_a_copy_has_every_checkpoint_and_goes_its_own_way(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, nested(trace)) as service:
        await Threads(service).cut(trace, "notify")
        copied = await service.copy_thread("t", "copy")
        assert (copied.copied_from, copied.position, copied.last_seq) == ("t", Position.TORN, 0)
        original = await service.tree("t")
        assert shape(await service.tree("copy")) == shape(original)
        assert set((await service.tree("copy")).graphs) == set(original.graphs)
        assert (await service.state("copy")).values == (await service.state("t")).values
        trace.ended.clear()
        sent = await service.submit("graph", {"steps": ["asked"]}, thread="copy")
        run, _ = await Threads(service).ended(sent.run)
        assert trace.ended == ["notify", "finish", "plan", "charge", "notify", "finish"]
        assert run.state is State.SUCCEEDED
        assert (await service.tree("t")).public() == original.public()
        with pytest.raises(errors.Conflict):
            await service.copy_thread("t", "copy")
        await service.delete_thread("t")
        assert (await service.state("copy")).position is Position.CLEAN


async def test_nobody_copies_what_is_another_tenants(database: str) -> None:
    async with serving(database, bench.booking(bench.Trace())) as service:
        await Threads(service).sent()
        with pytest.raises(errors.NotFound):
            await service.copy_thread("t", "mine", tenant="other")


async def test_a_thread_whose_checkpoints_are_elsewhere_is_not_copied_as_an_empty_one(database: str) -> None:
    graph = bench.chain(bench.Trace(), "plan").compile(checkpointer=InMemorySaver())
    agent = langgraph.LangGraphAgent("graph", graph, policy=bench.JOB, checkpointer="own")
    async with outlive.Outlive(database, [agent]) as service:
        await Threads(service).sent()
        with pytest.raises(errors.InvalidInput):
            await service.copy_thread("t", "copy")
        assert [one.thread for one in await service.threads()] == ["t"]
        assert (await service.state("t")).values == {"steps": ["plan"]}
        updated = await service.update_state("t", {"steps": ["by hand"]}, as_node="plan")
        assert (await service.state("t")).place == updated.place


async def test_every_column_of_the_savers_tables_is_copied(database: str) -> None:
    """A column that a newer LangGraph adds must be added to what is copied."""
    async with bench.opened(database) as on:
        agent = await on.agent(nested(bench.Trace()))
        context = await on.claimed(thread="t")
        await bench.all_of(agent, context)
    service = serving(database, nested(bench.Trace()))
    tables = (
        ("checkpoints", "writes")
        if on.on_sqlite
        else ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    )
    async with service:
        copied = await service.copy_thread("t", "copy")
    for table in tables:
        rows = record.rows(database, f"SELECT * FROM {table}")
        whole = [
            sorted(repr({**row, "thread_id": ""}) for row in rows if row["thread_id"] == one)
            for one in (context.run.thread_id, copied.thread_id)
        ]
        assert whole[0] == whole[1]
        assert whole[0] or table == "checkpoint_blobs"


# ---------------------------------------------------------------- drawing


async def test_a_tree_shows_forks_and_which_run_wrote_what(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, nested(trace), "rollback") as service:
        began = time.time()
        first = await Threads(service).sent()
        cut = await Threads(service).cut(trace, "charge")
        last = await Threads(service).sent({"steps": ["again"]})
        found = await service.tree("t")
    lines = list(found.lines())
    assert lines[0] == f"t: clean, left by {last.run_id}"
    assert sum("├─ " in line for line in lines) == 1
    assert sum("└─ " in line for line in lines) == 1
    for run, state in ((first, "succeeded"), (cut, "stopped"), (last, "succeeded")):
        assert any(f"run {run.run_id} ({state})" in line for line in lines)
    head = next(node for node in found.graphs[""].values() if node.head)
    drawn = [line for line in lines if head.mark.checkpoint_id in line]
    assert [line.endswith("<- newest") and last.run_id in line for line in drawn] == [True]
    assert any(line.startswith("in inner:") for line in lines)
    times = [node.at for node in found.graphs[""].values()]
    assert all(at is not None and began - 1 < at < time.time() + 1 for at in times)
    assert times == sorted(times, key=lambda at: at or 0, reverse=True)
