"""A message on a thread that an earlier run left part-way does what was declared, and says so."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import outlive
from agents import bench
from outlive import agents, errors, policy
from outlive.agents import langgraph
from outlive.model import Admitted, Event, EventKind, Run
from outlive.states import Position, Reason, State
from outlive.store import moves, reads

pytestmark = pytest.mark.anyio
BOOKING = ["plan", "charge", "notify", "finish"]
ASKED = {"steps": ["asked"]}
ANSWER = {"command": {"resume": "yes"}}


class Threads:
    """A service with one agent of a graph, and short words for what its users do."""

    def __init__(self, service: outlive.Outlive) -> None:
        self.service = service

    async def ended(self, run: Run) -> tuple[Run, list[Event]]:
        """A run at its end, and its log."""
        async with asyncio.timeout(bench.WITHIN), aclosing(self.service.follow(run.run_id)) as events:
            log = [event async for event in events]
        return await self.service.run(run.run_id), log

    async def sent(self, given: Any = None, **options: Any) -> Run:
        """A message on the thread, at its end."""
        asked = {"steps": []} if given is None else given
        submitted = await self.service.submit("graph", asked, thread="t", **options)
        return (await self.ended(submitted.run))[0]

    async def cut(self, trace: bench.Trace, node: str, **options: Any) -> Run:
        """A message whose run is stopped in the middle of a node."""
        trace.began.clear()
        trace.hold(node)
        submitted = await self.service.submit("graph", {"steps": []}, thread="t", **options)
        await trace.until(node)
        await self.service.stop(submitted.run.run_id, reason=Reason.DISCONNECT)
        run, _ = await self.ended(submitted.run)
        assert (run.state, run.position) == (State.STOPPED, Position.TORN)
        trace.began.clear()
        trace.ended.clear()
        return run


def serving(database: str, graph: Any, on_torn: str = "resume", on_busy: str = "enqueue") -> outlive.Outlive:
    """A service that drives this graph under that policy."""
    rules = policy.job(on_busy=on_busy, on_torn=on_torn)
    return outlive.Outlive(database, [langgraph.LangGraphAgent("graph", graph, policy=rules)])


def codes(log: list[Event]) -> list[str]:
    """The codes of a run's notes."""
    return [event.data["code"] for event in log if event.kind is EventKind.NOTE]


def asking(trace: bench.Trace, **compile_with: Any) -> Any:
    """plan, then a question, then finish."""

    async def ask(state: bench.Steps) -> dict[str, list[str]]:
        trace.began.append("ask")
        answer = interrupt("sure?")
        await trace.visit("answered")
        return {"steps": [answer]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("plan", trace.node("plan"))
    builder.add_node("ask", ask)
    builder.add_node("finish", trace.node("finish"))
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "ask")
    builder.add_edge("ask", "finish")
    return builder.compile(**compile_with)


# ---------------------------------------------------------------- where a run leaves its thread


async def test_where_a_run_left_its_thread_is_in_its_record_and_in_the_threads(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace)) as service:
        threads = Threads(service)
        run = await threads.sent()
        assert run.public()["position"] == "clean"
        cut = await threads.cut(trace, "notify")
        thread = await service.thread("t")
        assert (thread.position, thread.left_by) == (Position.TORN, cut.run_id)


async def test_a_failed_run_leaves_its_thread_torn(database: str) -> None:
    async def fail(state: bench.Steps) -> Any:
        raise ValueError("no")

    trace = bench.Trace()
    builder = bench.chain(trace, "plan")
    builder.add_node("fail", fail)
    builder.add_edge("plan", "fail")
    async with serving(database, builder.compile()) as service:
        run = await Threads(service).sent()
    assert (run.state, run.position) == (State.FAILED, Position.TORN)


@pytest.mark.parametrize("where", [{"interrupt_before": ["charge"]}, {"interrupt_after": ["plan"]}])
async def test_a_run_at_a_static_breakpoint_leaves_its_thread_waiting(
    database: str, where: dict[str, Any]
) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace, **where)) as service:
        threads = Threads(service)
        run = await threads.sent()
        assert (run.state, run.position) == (State.WAITING, Position.WAITING)
        answered = await threads.sent(ANSWER)
    assert (answered.state, answered.position) == (State.SUCCEEDED, Position.CLEAN)
    assert trace.ended == BOOKING


async def test_a_run_stopped_in_the_queue_leaves_its_thread_as_it_was(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace)) as service:
        threads = Threads(service)
        cut = await threads.cut(trace, "notify")
        gate = trace.hold("notify")
        going_on = await service.submit("graph", ASKED, thread="t")
        await trace.until("notify")
        queued = await service.submit("graph", ASKED, thread="t")
        await service.stop(queued.run.run_id)
        thread = await service.thread("t")
        assert (thread.position, thread.left_by) == (Position.TORN, cut.run_id)
        gate.set()
        await threads.ended(going_on.run)


@pytest.mark.parametrize("on_torn", policy.OnTorn)
async def test_a_thread_whose_run_was_swept_is_looked_at_before_a_message_is_let_in(
    on: bench.Bench, on_torn: str
) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed(thread="t", rules=bench.JOB.but(recovery="stop"), positioned=True)
    lost = bench.driven(agent, context)
    await trace.until("notify")
    suspects = await on.store.read(reads.suspects(-10_000, 100))
    await on.store.write(moves.sweep(suspects[0], early=True))
    await bench.cut(lost)
    async with serving(on.database, bench.booking(trace), on_torn) as service:
        threads = Threads(service)
        assert (await service.run(context.run.run_id)).position is Position.UNKNOWN
        assert (await service.thread("t")).position is Position.UNKNOWN
        if on_torn == "reject":
            with pytest.raises(errors.ThreadTorn):
                await threads.sent(ASKED)
            assert (await service.thread("t")).position is Position.TORN
            return
        run = await threads.sent(ASKED)
    expected = {
        "resume": [*BOOKING, "asked", *BOOKING],
        "restart": ["plan", "charge", "asked", *BOOKING],
        "rollback": ["asked", *BOOKING],
    }
    assert run.public()["output"] == {"steps": expected[on_torn]}


# ---------------------------------------------------------------- on_torn


async def test_resume_finishes_what_was_begun_and_then_takes_the_message(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), "resume") as service:
        threads = Threads(service)
        await threads.cut(trace, "notify")
        submitted = await service.submit("graph", ASKED, thread="t")
        run, log = await threads.ended(submitted.run)
    assert run.public()["output"] == {"steps": [*BOOKING, "asked", *BOOKING]}
    assert trace.ended == ["notify", "finish", *BOOKING]
    assert codes(log) == ["finishing_first"]
    assert run.position is Position.CLEAN


async def test_a_message_behind_what_fails_again_says_so_and_another_way_is_open(database: str) -> None:
    healthy = asyncio.Event()

    async def notify(state: bench.Steps) -> dict[str, list[str]]:
        if not healthy.is_set():
            raise ValueError("no")
        return {"steps": ["notify"]}

    trace = bench.Trace()
    builder = bench.chain(trace, "plan")
    builder.add_node("notify", notify)
    builder.add_edge("plan", "notify")
    async with serving(database, builder.compile(), "resume") as service:
        threads = Threads(service)
        first = await threads.sent()
        assert first.public()["error"]["code"] == "agent_error"
        for _ in range(2):
            again = await threads.sent(ASKED)
            failure = again.public()["error"]
            assert (failure["code"], failure["run_id"]) == ("finishing_failed", first.run_id)
            assert "rollback" in failure["hint"]
        healthy.set()
        rules = service.registry["graph"].policy.but(on_torn="rollback")
        taken = await threads.sent(ASKED, policy=rules)
    assert taken.public()["output"] == {"steps": ["asked", "plan", "notify"]}


async def test_resume_behind_a_nodes_update_repeats_nothing_although_nothing_was_next(
    on: bench.Bench,
) -> None:
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    context = await on.claimed(thread="t", positioned=True)
    async with aclosing(agent.stream(context)) as items:
        async for item in items:
            if isinstance(item, agents.Chunk) and item.mode == "updates" and "charge" in item.data:
                break
    await on.settle(context, State.STOPPED, Reason.DISCONNECT, Position.TORN)
    async with serving(on.database, bench.booking(trace), "resume") as service:
        run = await Threads(service).sent(ASKED)
    assert run.public()["output"] == {"steps": [*BOOKING, "asked", *BOOKING]}
    assert trace.ended == [*BOOKING, *BOOKING]


async def test_resume_runs_no_node_of_a_parallel_step_again_that_was_finished(database: str) -> None:
    trace = bench.Trace()
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    for node in ("fast", "slow", "join"):
        builder.add_node(node, trace.node(node))
    builder.add_edge(START, "fast")
    builder.add_edge(START, "slow")
    builder.add_edge(["fast", "slow"], "join")
    async with serving(database, builder.compile()) as service:
        threads = Threads(service)
        trace.hold("slow")
        first = await service.submit("graph", {"steps": []}, thread="t")
        await trace.until_ended("fast")
        await trace.until("slow")
        async with asyncio.timeout(bench.WITHIN), aclosing(service.follow(first.run.run_id)) as events:
            async for event in events:  # its write is stored before its update is shown
                if event.mode == "updates":
                    break
        await service.stop(first.run.run_id)
        await threads.ended(first.run)
        trace.ended.clear()
        run = await threads.sent(ASKED)
    assert trace.ended[:2] == ["slow", "join"]
    assert run.public()["output"]["steps"].count("join") == 2


async def test_what_is_finished_first_is_called_as_it_was_begun(database: str) -> None:
    colours: list[Any] = []

    async def paint(state: bench.Steps, config: RunnableConfig) -> dict[str, list[str]]:
        await trace.visit("paint")
        colours.append(config["configurable"].get("colour"))
        return {"steps": ["paint"]}

    trace = bench.Trace()
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("paint", paint)
    builder.add_edge(START, "paint")
    async with serving(database, builder.compile()) as service:
        threads = Threads(service)
        red, blue = ({"config": {"configurable": {"colour": colour}}} for colour in ("red", "blue"))
        await threads.cut(trace, "paint", metadata=red)
        await threads.sent(ASKED, metadata=blue)
    assert colours == ["red", "blue"]


@pytest.mark.parametrize(
    ("on_torn", "steps"), [("restart", ["plan", "asked", "plan"]), ("rollback", ["asked", "plan"])]
)
async def test_a_message_that_goes_over_a_question_says_so(
    database: str, on_torn: str, steps: list[str]
) -> None:
    async with serving(database, asking(bench.Trace()), on_torn) as service:
        threads = Threads(service)
        await threads.sent()
        submitted = await service.submit("graph", ASKED, thread="t")
        run, log = await threads.ended(submitted.run)
        assert run.state is State.WAITING
        assert run.public()["output"]["steps"] == steps
        assert codes(log) == ["restarted" if on_torn == "restart" else "rolled_back"]
        answered = await threads.sent(ANSWER)
    assert answered.public()["output"]["steps"] == [*steps, "yes", "finish"]


async def test_restart_says_in_the_record_what_it_leaves_behind(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), "restart") as service:
        threads = Threads(service)
        cut = await threads.cut(trace, "notify")
        submitted = await service.submit("graph", ASKED, thread="t")
        run, log = await threads.ended(submitted.run)
    assert run.public()["output"] == {"steps": ["plan", "charge", "asked", *BOOKING]}
    (note,) = [event.data["message"] for event in log if event.kind is EventKind.NOTE]
    assert cut.run_id in note
    assert "Executed: nothing." in note


async def test_reject_names_the_run_and_the_position_and_makes_no_run(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), "reject") as service:
        threads = Threads(service)
        cut = await threads.cut(trace, "notify")
        with pytest.raises(errors.ThreadTorn) as refused:
            await threads.sent(ASKED, key="k")
        assert (refused.value.run_id, refused.value.position) == (cut.run_id, "torn")
        assert len(await service.runs(thread="t")) == 1
        one_that_resumes = await threads.sent(ASKED, key="k", policy=policy.job(on_torn="resume"))
    assert one_that_resumes.state is State.SUCCEEDED


@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
async def test_rollback_leaves_no_trace_in_the_state_and_deletes_nothing(database: str, before: int) -> None:
    trace = bench.Trace()
    agent = langgraph.LangGraphAgent("graph", bench.booking(trace), policy=policy.job(on_torn="rollback"))
    async with outlive.Outlive(database, [agent]) as service:
        threads = Threads(service)
        for _ in range(before):
            await threads.sent()
        cut = await threads.cut(trace, "notify")
        kept = await history(agent, cut)
        submitted = await service.submit("graph", ASKED, thread="t")
        run, log = await threads.ended(submitted.run)
        assert await history(agent, cut) > kept
        assert run.public()["output"] == {"steps": [*(BOOKING * before), "asked", *BOOKING]}
        assert trace.ended == BOOKING
        assert codes(log) == ["rolled_back"]
        after = await threads.sent()
    assert after.public()["output"] == {"steps": [*(BOOKING * before), "asked", *BOOKING, *BOOKING]}


async def history(agent: langgraph.LangGraphAgent, run: Run) -> set[str]:
    """The ids of every checkpoint of a run's thread."""
    config: Any = {"configurable": {"thread_id": run.thread_id}}
    saver: Any = agent.reading.checkpointer
    return {found.checkpoint["id"] async for found in saver.alist(config)}


async def test_a_run_whose_effects_were_undone_is_taken_back_and_not_finished(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), "resume") as service:
        threads = Threads(service)
        await threads.cut(trace, "notify", policy=policy.job(compensate="always"))
        submitted = await service.submit("graph", ASKED, thread="t")
        run, log = await threads.ended(submitted.run)
    assert run.public()["output"] == {"steps": ["asked", *BOOKING]}
    assert codes(log) == ["rolled_back"]


async def test_a_message_queued_behind_a_run_that_is_cut_obeys_when_it_starts(database: str) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    async with serving(database, bench.booking(trace)) as service:
        threads = Threads(service)
        first = await service.submit("graph", {"steps": []}, thread="t")
        await trace.until("notify")
        resuming = await service.submit("graph", ASKED, thread="t")
        await service.stop(first.run.run_id)
        run, _ = await threads.ended(resuming.run)
    assert run.public()["output"] == {"steps": [*BOOKING, "asked", *BOOKING]}
    assert sorted(trace.ended) == sorted([*BOOKING, *BOOKING])


async def test_a_message_queued_behind_a_run_that_is_cut_fails_by_name_under_reject(database: str) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    async with serving(database, bench.booking(trace), "reject") as service:
        threads = Threads(service)
        first = await service.submit("graph", {"steps": []}, thread="t")
        await trace.until("notify")
        second = await service.submit("graph", ASKED, thread="t")
        await service.stop(first.run.run_id)
        run, _ = await threads.ended(second.run)
        thread = await service.thread("t")
    assert run.state is State.FAILED
    told = run.public()["error"]
    assert (told["code"], told["run_id"], told["position"]) == ("thread_torn", first.run.run_id, "torn")
    assert (thread.position, thread.left_by) == (Position.TORN, first.run.run_id)


async def test_a_generator_has_no_positions_and_on_torn_means_nothing_to_it(database: str) -> None:
    @outlive.agent("graph", policy=policy.job(on_torn="reject"))
    async def once(context: outlive.Context) -> Any:
        yield "one"
        if context.input["steps"]:
            raise ValueError("no")

    async with outlive.Outlive(database, [once]) as service:
        threads = Threads(service)
        assert (await threads.sent(ASKED)).state is State.FAILED
        assert (await threads.sent()).state is State.SUCCEEDED
        assert (await service.thread("t")).position is None


# ---------------------------------------------------------------- the same intent


async def test_the_same_intent_goes_on_from_a_torn_thread_and_repeats_nothing(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace), "reject") as service:
        threads = Threads(service)
        cut = await threads.cut(trace, "notify", key="k")
        again = await service.submit("graph", {"steps": []}, thread="t", key="k")
        run, log = await threads.ended(again.run)
    assert (again.admitted, run.continues) == (Admitted.CONTINUED, cut.run_id)
    assert run.public()["output"] == {"steps": BOOKING}
    assert trace.ended == ["notify", "finish"]
    assert codes(log) == []


async def test_the_same_intent_is_not_begun_again_once_another_message_has_finished_it(
    database: str,
) -> None:
    trace = bench.Trace()
    async with serving(database, bench.booking(trace)) as service:
        threads = Threads(service)
        cut = await threads.cut(trace, "notify", key="k")
        await threads.sent(ASKED)
        again = await service.submit("graph", {"steps": []}, thread="t", key="k")
    assert (again.admitted, again.run.run_id) == (Admitted.REPLAYED, cut.run_id)
    assert trace.ended.count("notify") == 2  # the cut one's, and the other message's own


# ---------------------------------------------------------------- questions


async def test_a_message_that_is_no_answer_is_refused_on_a_thread_that_asks(database: str) -> None:
    async with serving(database, asking(bench.Trace())) as service:
        threads = Threads(service)
        asked = await threads.sent()
        with pytest.raises(errors.ThreadWaiting) as refused:
            await threads.sent(ASKED)
        assert (refused.value.run_id, refused.value.position) == (asked.run_id, "waiting")


async def test_one_of_many_answers_is_accepted_and_given_once(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking(trace)) as service:
        threads = Threads(service)
        await threads.sent()
        tries = [service.submit("graph", ANSWER, thread="t") for _ in range(10)]
        made = await asyncio.gather(*tries, return_exceptions=True)
        (accepted,) = [one for one in made if not isinstance(one, BaseException)]
        refusals = [one for one in made if isinstance(one, BaseException)]
        assert all(isinstance(one, errors.ThreadBusy | errors.NothingToAnswer) for one in refusals)
        run, _ = await threads.ended(accepted.run)
        with pytest.raises(errors.NothingToAnswer):
            await service.submit("graph", ANSWER, thread="t")
    assert run.public()["output"] == {"steps": ["plan", "yes", "finish"]}
    assert trace.ended.count("answered") == 1


async def test_an_answer_cut_before_it_was_used_is_used_once_and_not_asked_for_again(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking(trace)) as service:
        threads = Threads(service)
        await threads.sent()
        trace.hold("answered")
        answer = await service.submit("graph", ANSWER, thread="t")
        await trace.until("answered")
        await service.stop(answer.run.run_id)
        cut, _ = await threads.ended(answer.run)
        assert cut.position is Position.TORN
        with pytest.raises(errors.NothingToAnswer):
            await service.submit("graph", {"command": {"resume": "no"}}, thread="t")
        following = await service.submit("graph", ASKED, thread="t")
        run, _ = await threads.ended(following.run)
    # The message itself comes to a question of its own: it was taken, after the answer had been used.
    assert run.state is State.WAITING
    assert run.public()["output"]["steps"] == ["plan", "yes", "finish", "asked", "plan"]


async def test_S28_what_is_finished_first_gives_no_answer_twice(database: str) -> None:
    """The run that was answered is cut; finished, it asks again, and the answer it had is not the answer."""
    trace = bench.Trace()

    async def ask(state: bench.Steps) -> dict[str, list[str]]:
        first = interrupt("sure?")
        await trace.visit("answered")
        return {"steps": [first, interrupt("really?")]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    async with serving(database, builder.compile()) as service:
        threads = Threads(service)
        await threads.sent()
        trace.hold("answered")
        answer = await service.submit("graph", ANSWER, thread="t")
        await trace.until("answered")
        await service.stop(answer.run.run_id)
        await threads.ended(answer.run)
        following = await service.submit("graph", ASKED, thread="t")
        run, _ = await threads.ended(following.run)
        assert (run.state, run.public()["error"]["code"]) == (State.FAILED, "thread_waiting")
        answered = await threads.sent({"command": {"resume": "really"}})
    assert answered.public()["output"] == {"steps": ["yes", "really"]}


async def test_a_pause_survives_a_restart_and_its_answer_repeats_nothing(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking(trace)) as service:
        await Threads(service).sent()
    async with serving(database, asking(trace)) as service:
        run = await Threads(service).sent(ANSWER)
    assert run.public()["output"] == {"steps": ["plan", "yes", "finish"]}
    assert trace.ended.count("plan") == 1


async def test_a_finished_run_that_comes_to_a_question_does_not_swallow_the_message(database: str) -> None:
    trace = bench.Trace()
    async with serving(database, asking(trace)) as service:
        threads = Threads(service)
        await threads.cut(trace, "plan")
        submitted = await service.submit("graph", ASKED, thread="t")
        run, _ = await threads.ended(submitted.run)
        thread = await service.thread("t")
        assert (run.state, run.public()["error"]["code"]) == (State.FAILED, "thread_waiting")
        assert thread.position is Position.WAITING
        answered = await threads.sent(ANSWER)
    assert answered.public()["output"] == {"steps": ["plan", "yes", "finish"]}
