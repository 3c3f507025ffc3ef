"""How a run ends when somebody, or a clock, wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import Reason, State, errors, signals
from outlive.model import EventKind, NewEvent, StopOutcome
from outlive.store import moves

FOR_EVER = asyncio.Event


@support.job()
async def waiting(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Yields once and then waits for ever, at an await that can be cancelled."""
    yield "before"
    await FOR_EVER().wait()
    yield "after"


@pytest.mark.invariant("I11")
async def test_a_stop_reaches_the_agent_at_its_next_await_and_the_record_names_the_reason(
    database: str,
) -> None:
    async with support.serving(database, waiting) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        answer = await served.stop(run_id)
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert answer.outcome is StopOutcome.REQUESTED
    assert support.data(events) == ["before"]
    assert (support.end(events)["state"], support.end(events)["reason"]) == ("stopped", "requested")
    assert (run.state, run.reason, run.stop_reason) == (State.STOPPED, Reason.REQUESTED, Reason.REQUESTED)
    assert run.stop_requested_at is not None


async def test_a_queued_run_is_stopped_at_once_and_its_agent_never_runs(database: str) -> None:
    async with support.serving(database, waiting) as served:
        first = (await served.submit("agent", thread="t")).run.run_id
        second = (await served.submit("agent", thread="t")).run.run_id
        answer = await served.stop(second)
        events = await support.story(served, second)
        assert answer.outcome is StopOutcome.STOPPED
        assert answer.run.state is State.STOPPED
        assert [event.kind for event in events] == [EventKind.END]
        assert (await served.run(first)).state is State.RUNNING
        await served.stop(first)
        await support.story(served, first)


async def test_a_stop_before_the_first_chunk_stops_the_run(database: str) -> None:
    begun = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        begun.set()
        await FOR_EVER().wait()
        yield 1

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with asyncio.timeout(support.WITHIN):
            await begun.wait()
        await served.stop(run_id)
        events = await support.story(served, run_id)
    assert [event.kind for event in events] == [EventKind.ATTEMPT, EventKind.END]


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I7")
async def test_S10_a_stop_that_comes_while_success_is_being_written_does_not_overwrite_it(
    database: str,
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    async with support.serving(database, agent) as served:
        for _ in range(32):
            with support.held_script(served, "settle") as settling:
                run_id = (await served.submit("agent")).run.run_id
                await settling.arrival()
                answer = await served.stop(run_id)
                assert answer.outcome is StopOutcome.REQUESTED  # told, and no more is known yet
            events = await support.story(served, run_id)
            again = await served.stop(run_id)
            run = await served.run(run_id)
            assert support.end(events)["state"] == "succeeded"
            assert (again.outcome, again.run.state) == (StopOutcome.ALREADY, State.SUCCEEDED)
            assert (run.reason, run.stop_reason) == (None, Reason.REQUESTED)


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I7")
async def test_S10_a_stop_that_read_running_and_writes_after_the_success_reports_already(
    database: str,
) -> None:
    gate = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await gate.wait()

    async with support.serving(database, agent) as served:
        for _ in range(32):
            gate.clear()
            run_id = (await served.submit("agent")).run.run_id
            with support.held_script(served, "stop") as stopping:
                late = asyncio.create_task(served.stop(run_id))
                await stopping.arrival()
                gate.set()
                events = await support.story(served, run_id)
            answer = await late
            assert support.end(events)["state"] == "succeeded"
            assert (answer.outcome, answer.run.state) == (StopOutcome.ALREADY, State.SUCCEEDED)
            assert answer.run.stop_requested_at is None


@pytest.mark.invariant("I1")
async def test_S10_a_stop_that_holds_the_lock_and_a_success_that_waits_for_it_make_one_end(
    database: str,
) -> None:
    gate = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await gate.wait()

    async with support.serving(database, agent) as served:
        listening = support.heard(served)
        for _ in range(32):
            gate.clear()
            run_id = (await served.submit("agent")).run.run_id
            await support.seen(served, run_id, 1)
            with support.held_before("request_stop") as stopping:
                stop = asyncio.create_task(served.stop(run_id))
                await stopping.arrival()  # it has read `running` and locked the thread
                gate.set()
                with support.held_script(served, "settle") as settling:
                    await settling.arrival()
            answer = await stop
            events = await support.story(served, run_id)
            assert answer.outcome in (StopOutcome.REQUESTED, StopOutcome.ALREADY)
            assert support.end(events)["state"] == "succeeded"
            await listening.of(signals.RunEnded, run_id=run_id)
            ends = listening.all(signals.RunEnded, run_id=run_id)
            assert [ended.state for ended in ends] == [State.SUCCEEDED]


@pytest.mark.invariant("I7")
async def test_S10_two_stops_at_once_make_one_end_and_both_callers_are_told(database: str) -> None:
    async with support.serving(database, waiting) as served:
        for _ in range(16):
            running = (await served.submit("agent", thread="t")).run.run_id
            queued = (await served.submit("agent", thread="t")).run.run_id
            answers = await asyncio.gather(
                served.stop(queued), served.stop(queued), served.stop(running), served.stop(running)
            )
            assert sorted(answer.outcome for answer in answers[:2]) == ["already", "stopped"]
            assert {answer.outcome for answer in answers[2:]} <= {StopOutcome.REQUESTED, StopOutcome.ALREADY}
            assert {answer.run.state for answer in answers[:2]} == {State.STOPPED}
            for run_id in (running, queued):
                assert support.end(await support.story(served, run_id))["state"] == "stopped"


@pytest.mark.invariant("I7")
async def test_S10_a_disconnect_that_arrives_after_the_end_changes_nothing(database: str) -> None:
    gate = asyncio.Event()

    @outlive.agent("agent", policy=outlive.chat(grace=0))
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await gate.wait()

    async with support.serving(database, agent) as served:
        with support.held_script(served, "stop") as stopping:  # the look-out has read that nobody watches
            run_id = (await served.submit("agent")).run.run_id
            await stopping.arrival()
            gate.set()
            events = await support.story(served, run_id)
        async with asyncio.timeout(support.WITHIN):
            await served._disconnect.look_once()
        run = await served.run(run_id)
    assert support.end(events)["state"] == "succeeded"
    assert (run.state, run.stop_requested_at) == (State.SUCCEEDED, None)


async def test_an_agent_that_swallows_its_cancellation_and_returns_is_stopped_not_succeeded(
    database: str,
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        try:
            await FOR_EVER().wait()
        except asyncio.CancelledError:
            return

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        await served.stop(run_id)
        events = await support.story(served, run_id)
    assert support.end(events)["state"] == "stopped"
    assert support.notes(events) == []


async def test_an_agent_that_swallows_its_cancellation_and_goes_on_is_stopped_and_noted(
    database: str,
) -> None:
    closed = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        try:
            await FOR_EVER().wait()
        except asyncio.CancelledError:
            yield "still here"
        finally:
            closed.set()

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        await served.stop(run_id)
        events = await support.story(served, run_id)
        assert closed.is_set()
    assert support.data(events) == [1]
    assert support.notes(events) == ["cleanup_failed"]
    assert support.end(events)["state"] == "stopped"


@pytest.mark.invariant("I2")
async def test_an_agent_that_never_returns_is_given_up_shut_out_and_costs_its_slot_until_it_does(
    database: str,
) -> None:
    let_go = asyncio.Event()

    @support.job(stop_deadline=0.05)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    async with support.serving(database, agent, slots=2) as served:
        listening = support.heard(served)
        started = (await served.submit("agent")).run
        run_id, claim = started.run_id, started.claim
        await support.seen(served, run_id, 1)
        await served.stop(run_id)
        events = await support.story(served, run_id)
        run = await served.run(run_id)
        assert support.end(events)["state"] == "stopped"
        assert (await listening.of(signals.SlotLeaked)).run_id == run_id
        assert run.epoch == claim.epoch + 1
        late = NewEvent(kind=EventKind.CHUNK, payload="1")
        with pytest.raises(errors.Fenced):
            await served.store.write(moves.append(claim, (late,), run.last_seq, 10))
        await support.until(lambda: not served._worker.driving)
        assert served._worker.free == 1
        let_go.set()
        await support.until(lambda: served._worker.free == 2)
    assert [event.seq for event in events] == list(range(1, run.last_seq + 1))


@pytest.mark.invariant("I11")
async def test_a_run_that_exceeds_its_time_is_stopped_with_that_reason(database: str) -> None:
    @support.job(run_timeout=0.05)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await FOR_EVER().wait()

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert (support.end(events)["state"], support.end(events)["reason"]) == ("stopped", "timeout")
    assert run.stop_requested_at is None


async def test_a_stop_is_heard_by_a_worker_that_another_process_would_have_to_tell(database: str) -> None:
    """The API process and the worker share nothing but the database."""
    async with (
        support.serving(database, waiting) as worker,
        support.serving(database, waiting, slots=0) as api,
    ):
        run_id = (await api.submit("agent")).run.run_id
        await support.seen(api, run_id, 1)
        assert worker._worker.driving.keys() == {run_id}
        assert (await api.stop(run_id)).outcome is StopOutcome.REQUESTED
        assert support.end(await support.story(api, run_id))["reason"] == "requested"


async def test_stopping_what_nobody_knows_is_not_found(database: str) -> None:
    async with support.serving(database, waiting) as served:
        for unknown in ("nothing", "0" * 32):
            with pytest.raises(errors.NotFound):
                await served.stop(unknown)
        run = (await served.submit("agent", tenant="one")).run
        with pytest.raises(errors.NotFound):
            await served.stop(run.run_id, tenant="other")
        await served.stop(run.run_id, tenant="one")
        await support.story(served, run.run_id)
    assert len(record.rows(database, "SELECT 1 AS found FROM events WHERE kind = 'end'")) == 1
