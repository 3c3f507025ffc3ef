"""A process that must go hands its work back: nothing is lost, charged or finalised for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import Reason, State, errors, lease, signals
from outlive.agents import Drained, generator

UNHEARD = lease.Timing(lease=60.0, renew_every=15.0)
"""Renews so seldom that a stop request is not heard of by the way."""


def resuming(thread_of_attempts: list[tuple[str, int]]) -> generator.GeneratorAgent:
    """Waits for ever in its first attempt and ends at once in a later one."""

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        thread_of_attempts.append((context.run.run_id, context.attempt))
        yield context.attempt
        if context.attempt == 1:
            await asyncio.Event().wait()

    return agent


@pytest.mark.invariant("I12")
async def test_a_run_is_handed_back_to_its_place_without_a_loss_and_goes_on_elsewhere(database: str) -> None:
    attempts: list[tuple[str, int]] = []
    agent = resuming(attempts)
    async with support.serving(database, agent) as going:
        first = (await going.submit("agent", thread="t")).run.run_id
        second = (await going.submit("agent", thread="t")).run.run_id
        await support.seen(going, first, 1)
    rows = {row["run_id"]: row for row in record.rows(database, "SELECT * FROM runs")}
    assert [rows[run_id]["state"] for run_id in (first, second)] == ["queued", "queued"]
    assert [rows[run_id]["losses"] for run_id in (first, second)] == [0, 0]
    assert [rows[run_id]["pos"] for run_id in (first, second)] == [1, 2]
    assert (rows[first]["worker"], rows[first]["ended_at"]) == (None, None)
    async with support.serving(database, agent) as next_one:
        events = await support.story(next_one, first)
        assert [(event.kind.value, event.epoch) for event in events] == [
            ("attempt", 1),
            ("chunk", 1),
            ("attempt", 2),
            ("chunk", 2),
            ("end", 2),
        ]
        await support.seen(next_one, second, 1)
        await next_one.stop(second)
        await support.story(next_one, second)
    assert attempts == [(first, 1), (first, 2), (second, 1)]


@pytest.mark.invariant("I12")
async def test_a_run_handed_back_by_one_worker_is_taken_by_the_other_at_once(database: str) -> None:
    attempts: list[tuple[str, int]] = []
    agent = resuming(attempts)
    async with support.serving(database, agent) as staying:
        staying.store.hub.poll = 1e6  # it must hear of it
        async with support.serving(database, agent) as going:
            runs = [(await going.submit("agent")).run.run_id for _ in range(8)]
            for run_id in runs:
                await support.seen(going, run_id, 1)
            assert going._worker.driving.keys() == set(runs)
        for run_id in runs:
            events = await support.story(staying, run_id)
            assert support.data(events) == [1, 2]
            assert support.end(events)["state"] == "succeeded"
    assert {row["losses"] for row in record.rows(database, "SELECT losses FROM runs")} == {0}


@pytest.mark.invariant("I12")
async def test_what_was_yielded_and_not_yet_stored_goes_along(database: str) -> None:
    more, yielded = asyncio.Event(), asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        if context.attempt == 1:
            yield 0
            await more.wait()
            for number in range(1, 5):
                yield number
            yielded.set()
            await asyncio.Event().wait()

    async with support.serving(database, agent) as going:
        with support.held_script(going, "append") as appending:
            run_id = (await going.submit("agent")).run.run_id
            await appending.arrival()  # the first is on its way, the others wait for it
            more.set()
            await yielded.wait()
            closing = asyncio.create_task(going.close())
            await support.until(going.shutdown.is_set)
        await closing
    stored = record.rows(database, "SELECT payload FROM events WHERE kind = 'chunk' ORDER BY seq")
    assert [row["payload"] for row in stored] == ["0", "1", "2", "3", "4"]
    async with support.serving(database, agent) as next_one:
        assert support.end(await support.story(next_one, run_id))["state"] == "succeeded"


@pytest.mark.invariant("I11")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize("reason", ["disconnect", "requested"])
async def test_a_run_that_somebody_stopped_before_is_stopped_for_that_reason_and_not_handed_back(
    reason: str, database: str
) -> None:
    async with support.serving(database, resuming([]), timing=UNHEARD) as going:
        run_id = (await going.submit("agent")).run.run_id
        await support.seen(going, run_id, 1)
        record.execute(database, f"UPDATE runs SET stop_requested_at = 1, stop_reason = '{reason}'")
    (run,) = record.rows(database, "SELECT * FROM runs")
    assert (run["state"], run["reason"]) == ("stopped", reason)


async def test_an_agent_that_drains_stops_at_its_safe_point(database: str) -> None:
    steps: list[str] = []

    @outlive.agent("agent", policy=outlive.job(), drains=True)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.attempt
        if context.attempt > 1:
            return
        await context.draining.wait()
        steps.append("saved")
        yield Drained()

    async with support.serving(database, agent) as going:
        run_id = (await going.submit("agent")).run.run_id
        await support.seen(going, run_id, 1)
    assert steps == ["saved"]
    async with support.serving(database, agent) as next_one:
        assert support.data(await support.story(next_one, run_id)) == [1, 2]


@pytest.mark.parametrize("ending", ["succeeds", "fails"])
async def test_an_agent_that_ends_by_itself_while_it_drains_has_ended(ending: str, database: str) -> None:
    @outlive.agent("agent", policy=outlive.job(), drains=True)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await context.draining.wait()
        if ending == "fails":
            raise ValueError("by itself")

    async with support.serving(database, agent) as going:
        run_id = (await going.submit("agent")).run.run_id
        await support.seen(going, run_id, 1)
    (run,) = record.rows(database, "SELECT * FROM runs")
    assert run["state"] == {"succeeds": "succeeded", "fails": "failed"}[ending]


@pytest.mark.invariant("I12")
async def test_an_agent_that_is_cut_by_the_shutdown_and_returns_is_handed_back_and_not_succeeded(
    database: str,
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async with support.serving(database, agent) as going:
        run_id = (await going.submit("agent")).run.run_id
        await support.seen(going, run_id, 1)
    (run,) = record.rows(database, "SELECT * FROM runs")
    assert (run["state"], run["losses"]) == ("queued", 0)


@pytest.mark.invariant("I12")
async def test_an_agent_that_neither_drains_nor_ends_does_not_hold_up_the_shutdown(database: str) -> None:
    let_go = asyncio.Event()

    @outlive.agent("agent", policy=outlive.job(stop_deadline=600), drains=True)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    async with outlive.Outlive(database, [agent], drain=0.4) as going:
        listening = support.heard(going)
        run_id = (await going.submit("agent")).run.run_id
        await support.seen(going, run_id, 1)
    (run,) = record.rows(database, "SELECT * FROM runs")
    assert (run["state"], run["losses"]) == ("queued", 0)
    assert len(listening.all(signals.SlotLeaked)) == 1
    assert len(listening.all(signals.RunHandedBack)) == 1
    let_go.set()
    await support.until(lambda: not going._worker._leaked)


@pytest.mark.invariant("I12")
async def test_a_claim_that_is_in_flight_when_the_end_begins_is_handed_back_too(database: str) -> None:
    """Cut off, it would have taken a run that nobody drives, and a loss would be charged for it."""
    async with support.serving(database, resuming([]), slots=0) as api:
        async with support.serving(database, resuming([])) as going:
            with support.held_script(going, "claim") as claiming:
                run_id = (await api.submit("agent")).run.run_id
                await claiming.arrival()
                closing = asyncio.create_task(going.close())
                await support.until(going.shutdown.is_set)
            await closing
        run = await api.run(run_id)
        assert (run.state, run.losses, run.epoch) == (State.QUEUED, 0, 1)


async def test_a_hand_back_that_cannot_be_stored_is_loud_and_the_run_is_recovered(database: str) -> None:
    attempts: list[tuple[str, int]] = []
    agent = resuming(attempts)
    async with support.serving(database, agent, timing=support.QUICK) as staying:
        async with outlive.Outlive(database, [agent], timing=support.QUICK) as going:
            listening = support.heard(going)
            run_id = (await going.submit("agent")).run.run_id
            await support.seen(going, run_id, 1)
            write = going.store.write

            async def failing(script: Any, **options: Any) -> Any:
                if script.name == "hand_back":
                    raise errors.StoreUnavailable
                return await write(script, **options)

            going.store.write = failing  # type: ignore[method-assign]
        assert len(listening.all(signals.FinalisationFailed, run_id=run_id)) == 1
        events = await support.story(staying, run_id)
    assert support.end(events)["state"] == "succeeded"
    assert record.rows(database, "SELECT losses FROM runs") == [{"losses": 1}]


async def test_a_process_that_is_going_takes_no_more_work(database: str) -> None:
    async with support.serving(database, resuming([])) as going:
        await going.close()
        for call in (going.submit("agent"), going.stop("any")):
            with pytest.raises(errors.NotReady):
                await call
    assert record.rows(database, "SELECT * FROM runs") == []


@pytest.mark.parametrize(
    ("first", "then", "counts"),
    [
        (lease.Halt.SHUTDOWN, lease.Halt.STOP, lease.Halt.STOP),
        (lease.Halt.STOP, lease.Halt.SHUTDOWN, lease.Halt.STOP),
        (lease.Halt.STOP, lease.Halt.LOST, lease.Halt.LOST),
        (lease.Halt.LOST, lease.Halt.STOP, lease.Halt.LOST),
    ],
)
async def test_the_stronger_reason_to_end_counts(
    first: lease.Halt, then: lease.Halt, counts: lease.Halt
) -> None:
    held = lease.Held(claim=support.CLAIM, trusted_until=0)
    held.end(first, Reason.TIMEOUT if first is lease.Halt.STOP else None)
    held.end(then, Reason.DISCONNECT if then is lease.Halt.STOP else None)
    assert held.halt is counts
    if counts is lease.Halt.STOP:
        assert held.reason is (Reason.TIMEOUT if first is lease.Halt.STOP else Reason.DISCONNECT)


async def test_a_second_stop_does_not_rewrite_why_a_run_was_stopped(database: str) -> None:
    async with support.serving(database, resuming([])) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        with support.held_script(served, "settle") as settling:
            await served.stop(run_id, reason=Reason.DISCONNECT)
            await settling.arrival()
            await served.stop(run_id, reason=Reason.REQUESTED)
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert support.end(events)["reason"] == "disconnect"
    assert (run.reason, run.stop_reason) == (Reason.DISCONNECT, Reason.DISCONNECT)
