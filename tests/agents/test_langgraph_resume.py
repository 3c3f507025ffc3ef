"""A run that is taken up again goes on from its last checkpoint and repeats nothing that it had done."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from agents import bench
from outlive import agents, errors, signals
from outlive.agents.langgraph import Position
from outlive.states import Reason, State

pytestmark = pytest.mark.anyio
BOOKING = ["plan", "charge", "notify", "finish"]


@pytest.mark.parametrize("lost_in", ["charge", "notify", "finish"])
async def test_S07_a_run_lost_between_two_nodes_runs_every_node_once(on: bench.Bench, lost_in: str) -> None:
    trace = bench.Trace()
    trace.hold(lost_in)
    agent = await on.agent(bench.booking(trace))
    first = await on.claimed()
    lost = bench.driven(agent, first)
    await trace.until(lost_in)
    second = await on.again(first)
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING
    await bench.cut(lost)


async def test_S08_an_executor_that_thaws_after_its_run_was_finished_by_another_writes_nothing(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    thaw = trace.hold("charge")
    agent = await on.agent(bench.booking(trace))
    first = await on.claimed()
    frozen = bench.driven(agent, first)
    await trace.until("charge")
    second = await on.again(first)
    await bench.last_of(agent, second)
    written = on.rows()
    with on.signals.recording() as happened:
        thaw.set()
        with pytest.raises(errors.Fenced):
            await frozen
    assert on.rows() == written
    assert trace.began.count("notify") == 1  # no further step began on the strength of the refused one
    refused = [one for one in happened if isinstance(one, signals.StaleWriteRefused)]
    assert refused
    assert {(one.run_id, one.epoch, one.write) for one in refused} == {
        (first.run.run_id, 1, signals.Write.CHECKPOINT)
    }


async def test_S08_with_asynchronous_checkpoints_the_step_behind_the_refused_one_is_the_last(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    gates = [trace.hold("charge"), trace.hold("notify")]
    agent = await on.agent(bench.booking(trace))
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(happening: signals.Happening) -> None:
        if isinstance(happening, signals.StaleWriteRefused):
            loop.call_soon_threadsafe(refused.set)

    on.signals.listen(hear)
    context = await on.claimed(rules=bench.JOB.but(durability="async"))
    frozen = bench.driven(agent, context)
    await trace.until("charge")
    await on.lose(context.claim)
    gates[0].set()
    await asyncio.wait_for(refused.wait(), bench.WITHIN)
    gates[1].set()  # the step that may have begun before the refusal was known
    with pytest.raises(errors.Fenced):
        await frozen
    assert "finish" not in trace.began


async def test_a_run_lost_before_its_first_checkpoint_starts_with_its_input(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    first = await on.claimed({"steps": ["asked"]})
    second = await on.again(first)
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": ["asked", *BOOKING]})


async def test_a_run_lost_before_its_first_checkpoint_on_a_thread_with_a_past_starts_with_its_input(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    before = await on.claimed(thread="t")
    await bench.last_of(agent, before)
    await on.settle(before, State.SUCCEEDED)
    second = await on.again(await on.claimed({"steps": ["asked"]}, thread="t"))
    outcome = await bench.last_of(agent, second)
    assert outcome == agents.Outcome(output={"steps": [*BOOKING, "asked", *BOOKING]})


async def test_a_run_that_had_finished_but_was_not_settled_runs_nothing_again(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    first = await on.claimed()
    await bench.last_of(agent, first)
    second = await on.again(first)
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING


async def test_the_same_intent_sent_again_goes_on_where_the_cut_run_stood(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    agent = await on.agent(bench.booking(trace))
    first = await on.claimed(thread="t", key="k")
    task = bench.driven(agent, first)
    await trace.until("notify")
    await bench.cut(task)
    await on.settle(first, State.STOPPED, Reason.DISCONNECT)
    second = await on.claimed(thread="t", key="k")
    assert second.run.origin == first.run.run_id
    assert second.run.run_id != first.run.run_id
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": BOOKING})
    assert trace.ended == BOOKING


async def test_another_intent_on_a_torn_thread_starts_over(on: bench.Bench) -> None:
    """What the run id decides: with another one LangGraph takes the input and begins at START."""
    trace = bench.Trace()
    trace.hold("notify")
    agent = await on.agent(bench.booking(trace))
    first = await on.claimed(thread="t")
    task = bench.driven(agent, first)
    await trace.until("notify")
    await bench.cut(task)
    await on.settle(first, State.STOPPED, Reason.DISCONNECT)
    outcome = await bench.last_of(agent, await on.claimed(thread="t"))
    assert outcome == agents.Outcome(output={"steps": ["plan", "charge", *BOOKING]})


async def test_a_clients_run_id_neither_resumes_nor_hides_anything(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    before = await on.claimed(thread="t")
    await bench.last_of(agent, before)
    await on.settle(before, State.SUCCEEDED)
    forged = {
        "run_id": before.run.run_id,
        "config": {"metadata": {"run_id": before.run.run_id}, "configurable": {"run_id": before.run.run_id}},
    }
    items = await bench.all_of(agent, await on.claimed({"steps": ["asked"]}, thread="t", metadata=forged))
    assert items[-1] == agents.Outcome(output={"steps": [*BOOKING, "asked", *BOOKING]})
    (note,) = bench.notes(items)
    assert "metadata.run_id" in note


async def test_a_client_cannot_address_another_threads_checkpoints(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    other = await on.claimed(thread="other")
    await bench.last_of(agent, other)
    await on.settle(other, State.SUCCEEDED)
    mine = {"thread_id": other.run.thread_id, "checkpoint_id": "1", "checkpoint_ns": "x", "__pregel_x": 1}
    asked = {"config": {"configurable": {**mine, "colour": "red"}, "callbacks": []}}
    items = await bench.all_of(agent, await on.claimed(thread="t", metadata=asked))
    assert items[-1] == agents.Outcome(output={"steps": BOOKING})
    (note,) = bench.notes(items)
    for key in (*mine, "config.callbacks"):
        assert key in note
    assert "colour" not in note


# ---------------------------------------------------------------- pauses


def asking(trace: bench.Trace, *questions: str) -> StateGraph[bench.Steps, None, bench.Steps, bench.Steps]:
    """plan, then a node that asks each question and writes the answers, then finish."""

    async def ask(state: bench.Steps) -> dict[str, list[str]]:
        await trace.visit("ask")
        return {"steps": [interrupt(question) for question in questions]}

    builder: StateGraph[bench.Steps, None, bench.Steps, bench.Steps] = StateGraph(bench.Steps)
    builder.add_node("plan", trace.node("plan"))
    builder.add_node("ask", ask)
    builder.add_node("finish", trace.node("finish"))
    for before, after in ((START, "plan"), ("plan", "ask"), ("ask", "finish"), ("finish", END)):
        builder.add_edge(before, after)
    return builder


def question(outcome: agents.Yielded) -> list[object]:
    """What a paused run asks."""
    assert isinstance(outcome, agents.Outcome)
    assert outcome.state is State.WAITING
    return [one.value for one in outcome.output["__interrupt__"]]


async def test_an_interrupt_leaves_the_run_waiting_and_the_answer_is_a_new_run(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(asking(trace, "sure?").compile())
    first = await on.claimed(thread="t")
    paused = await bench.last_of(agent, first)
    assert question(paused) == ["sure?"]
    assert isinstance(paused, agents.Outcome)
    assert paused.output["steps"] == ["plan"]
    await on.settle(first, State.WAITING)
    answer = await on.claimed({"command": {"resume": "yes"}}, thread="t")
    assert await bench.last_of(agent, answer) == agents.Outcome(output={"steps": ["plan", "yes", "finish"]})
    assert trace.ended.count("plan") == 1


async def test_a_paused_run_that_was_lost_before_its_verdict_is_found_waiting(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(asking(trace, "sure?").compile())
    first = await on.claimed()
    await bench.last_of(agent, first)
    second = await on.again(first)
    assert question(await bench.last_of(agent, second)) == ["sure?"]
    assert trace.began == ["plan", "ask"]


@pytest.mark.parametrize("breakpoint_", ["before", "after"])
async def test_a_run_lost_at_a_static_breakpoint_does_not_pass_it_by_being_taken_up(
    on: bench.Bench, breakpoint_: str
) -> None:
    trace = bench.Trace()
    where = {"interrupt_before": ["charge"]} if breakpoint_ == "before" else {"interrupt_after": ["plan"]}
    agent = await on.agent(bench.booking(trace, **where))
    first = await on.claimed(thread="t")
    paused = await bench.last_of(agent, first)
    assert question(paused) == []
    second = await on.again(first)
    assert await bench.last_of(agent, second) == paused
    assert trace.began == ["plan"]
    await on.settle(second, State.WAITING)
    items = await bench.all_of(agent, await on.claimed({"command": {"resume": True}}, thread="t"))
    assert items[-1] == agents.Outcome(output={"steps": BOOKING})


async def test_an_answer_is_not_given_again_to_the_question_that_came_after(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(asking(trace, "sure?", "really?").compile())
    first = await on.claimed(thread="t")
    await bench.last_of(agent, first)
    await on.settle(first, State.WAITING)
    answer = await on.claimed({"command": {"resume": "yes"}}, thread="t")
    assert question(await bench.last_of(agent, answer)) == ["really?"]
    lost = await on.again(answer)
    assert question(await bench.last_of(agent, lost)) == ["really?"]
    await on.settle(lost, State.WAITING)
    second = await on.claimed({"command": {"resume": "really"}}, thread="t")
    outcome = await bench.last_of(agent, second)
    assert outcome == agents.Outcome(output={"steps": ["plan", "yes", "really", "finish"]})


async def test_an_answer_whose_executor_was_lost_in_a_later_node_is_not_given_again(on: bench.Bench) -> None:
    trace = bench.Trace()
    trace.hold("finish")
    agent = await on.agent(asking(trace, "sure?").compile())
    first = await on.claimed(thread="t")
    await bench.last_of(agent, first)
    await on.settle(first, State.WAITING)
    answer = await on.claimed({"command": {"resume": "yes"}}, thread="t")
    task = bench.driven(agent, answer)
    await trace.until("finish")
    again = await on.again(answer)
    assert await bench.last_of(agent, again) == agents.Outcome(output={"steps": ["plan", "yes", "finish"]})
    assert trace.ended == ["plan", "ask", "ask", "finish"]  # asked once, answered once
    await bench.cut(task)


async def test_an_answer_whose_executor_was_lost_just_before_the_next_question_does_not_answer_it(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()

    async def second(state: bench.Steps) -> dict[str, list[str]]:
        await trace.visit("second")
        return {"steps": [interrupt("really?")]}

    builder = asking(trace, "sure?")
    builder.add_node("second", second)
    builder.add_edge("finish", "second")
    agent = await on.agent(builder.compile())
    first = await on.claimed(thread="t")
    await bench.last_of(agent, first)
    await on.settle(first, State.WAITING)
    trace.hold("second")
    answer = await on.claimed({"command": {"resume": "yes"}}, thread="t")
    lost = bench.driven(agent, answer)
    await trace.until("second")
    again = await on.again(answer)
    assert question(await bench.last_of(agent, again)) == ["really?"]
    await bench.cut(lost)


async def test_S28_a_question_inside_a_subgraph_is_asked_once_and_its_work_is_not_repeated(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    inner = asking(trace, "sure?").compile()
    outer = StateGraph(bench.Steps)
    outer.add_node("sub", inner)
    outer.add_edge(START, "sub")
    agent = await on.agent(outer.compile())
    first = await on.claimed(thread="t")
    assert question(await bench.last_of(agent, first)) == ["sure?"]
    assert await agent.position(first.run.thread_id) is Position.WAITING
    await on.settle(first, State.WAITING)
    answer = await on.claimed({"command": {"resume": "yes"}}, thread="t")
    assert await bench.last_of(agent, answer) == agents.Outcome(output={"steps": ["plan", "yes", "finish"]})
    assert trace.ended.count("plan") == 1


async def test_a_malformed_command_is_refused_before_the_graph_is_called(on: bench.Bench) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed({"command": {"goto": {"charge": 1}}})
    with pytest.raises(errors.InvalidInput):
        await asyncio.wait_for(bench.all_of(agent, context), bench.WITHIN)
    assert trace.began == []
