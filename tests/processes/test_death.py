"""A worker that is killed costs nobody their run, their thread or the truth."""

from __future__ import annotations

import pytest

from core import record
from core import support as core
from outlive import Reason, State, lease, signals
from outlive.model import EventKind
from processes import support, workload
from processes.support import worker


async def up_for(database: str, seconds: float) -> None:
    """Wait until the database has been up for so long that a missing token proves a death."""
    if not database.startswith("sqlite"):
        query = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) AS up"
        await core.until(lambda: record.rows(database, query)[0]["up"] > seconds)


@pytest.mark.invariant("I1")
async def test_S07_a_worker_killed_in_the_middle_of_a_run_is_replaced_and_the_next_in_line_runs_too(
    database: str,
) -> None:
    async with core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, timing=support.SHORT) as first:
            running = (await api.submit("steps", thread="t")).run.run_id
            queued = (await api.submit("brief", "next", thread="t")).run.run_id
            await core.seen(api, running, 1)
            first.kill()
            assert await first.ended() == -9
        async with worker(database, timing=support.SHORT) as second:
            second.open("first")
            second.open("second")
            events = await core.story(api, running)
            assert core.end(await core.story(api, queued))["state"] == "succeeded"
            later = (await api.submit("brief", "later", thread="t")).run.run_id
            assert core.data(await core.story(api, later)) == ["later"]
    assert core.data(events) == [
        {"step": 1, "attempt": 1},
        {"step": 1, "attempt": 2},
        {"step": 2, "attempt": 2},
    ]
    assert core.end(events)["state"] == "succeeded"
    assert support.run_row(database, running)["losses"] == 1
    assert support.run_row(database, queued)["losses"] == 0


async def test_S07_a_worker_killed_right_after_its_claim_is_replaced(database: str) -> None:
    async with core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, timing=support.SHORT, points="worker.claimed=kill") as first:
            run_id = (await api.submit("brief", "hello")).run.run_id
            assert await first.ended() == -9
            assert first.said(began=run_id) == []
        async with worker(database, timing=support.SHORT):
            events = await core.story(api, run_id)
    assert [(event.kind, event.epoch) for event in events] == [
        (EventKind.ATTEMPT, 1),
        (EventKind.ATTEMPT, 3),
        (EventKind.CHUNK, 3),
        (EventKind.END, 3),
    ]


@pytest.mark.invariant("I11")
async def test_S07_a_run_whose_worker_dies_while_it_stops_is_stopped_and_not_tried_again(
    database: str,
) -> None:
    async with core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, timing=support.SHORT, points="execution.finalise=kill") as first:
            run_id = (await api.submit("steps", thread="t")).run.run_id
            await core.seen(api, run_id, 1)
            await api.stop(run_id)
            assert await first.ended() == -9
        async with worker(database, timing=support.SHORT) as second:
            events = await core.story(api, run_id)
            later = (await api.submit("brief", "later", thread="t")).run.run_id
            assert core.end(await core.story(api, later))["state"] == "succeeded"
            assert second.said(began=run_id) == []
    assert (core.end(events)["state"], core.end(events)["reason"]) == ("stopped", "requested")


@pytest.mark.invariant("I11")
async def test_S07_a_run_that_must_not_be_tried_again_is_abandoned_as_lost(database: str) -> None:
    async with core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, timing=support.SHORT) as first:
            run_id = (await api.submit("once")).run.run_id
            await core.seen(api, run_id, 1)
            first.kill()
            await first.ended()
        events = await core.story(api, run_id)
        run = await api.run(run_id)
    assert core.data(events) == [{"step": 1, "attempt": 1}]  # what was told is kept
    assert (run.state, run.reason) == (State.ABANDONED, Reason.LOST)


async def test_S07_a_worker_killed_before_its_verdict_is_durable_has_recorded_none(database: str) -> None:
    async with core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api:
        run_id = (await api.submit("steps")).run.run_id
        async with worker(database, timing=support.SHORT, points="execution.finalise=kill") as first:
            first.open("first")
            first.open("second")
            await first.line(finished=run_id)
            assert await first.ended() == -9
        assert support.run_row(database, run_id)["state"] in ("running", "queued")
        async with worker(database, timing=support.SHORT) as second:
            second.open("first")
            second.open("second")
            events = await core.story(api, run_id)
    assert [event.kind for event in events].count(EventKind.END) == 1


async def test_a_killed_worker_is_noticed_long_before_its_lease_is_over(database: str) -> None:
    timing = {"lease": 4.0, "renew_every": 0.1}
    await up_for(database, timing["lease"])
    async with core.serving(database, *workload.agents, timing=lease.Timing(**timing)) as other:
        listening = core.heard(other)
        async with core.serving(database, *workload.agents, slots=0) as api:
            other._worker._closing = True  # let the process have it
            async with worker(database, timing=timing) as first:
                run_id = (await api.submit("steps")).run.run_id
                await core.seen(api, run_id, 1)
                first.kill()
                swept = await listening.of(signals.RunSwept, run_id=run_id)
        other._worker._closing = False
        assert swept.early
        await other.stop(run_id)
        await core.story(other, run_id)


async def test_a_worker_that_is_told_to_end_hands_its_runs_over_without_a_loss(database: str) -> None:
    async with (
        core.serving(database, *workload.agents, slots=0) as api,
        worker(database) as first,
    ):
        run_id = (await api.submit("steps")).run.run_id
        await core.seen(api, run_id, 1)
        async with worker(database) as second:
            first.terminate()
            assert await first.ended() == 0
            second.open("first")
            second.open("second")
            events = await core.story(api, run_id)
    assert {event.epoch for event in events} == {1, 2}
    assert core.end(events)["state"] == "succeeded"
    assert support.run_row(database, run_id)["losses"] == 0


@pytest.mark.invariant("I8")
async def test_S21_the_same_clicks_on_two_processes_make_one_run_each(database: str) -> None:
    async with (
        worker(database, also="processes.workload:double_click") as one,
        worker(database, also="processes.workload:double_click") as two,
    ):
        one.open("go")
        two.open("go")
        for process in (one, two):
            await process.line(clicked=True)
        for number in range(20):
            (first,), (second,) = one.said(key=number), two.said(key=number)
            assert first["run"] == second["run"]
            assert [first["admitted"], second["admitted"]].count("created") == 1
    assert len(record.rows(database, "SELECT 1 AS found FROM runs")) == 20


@pytest.mark.invariant("I11")
async def test_a_server_that_dies_counts_as_a_viewer_who_left_once_its_presence_is_over(
    database: str,
) -> None:
    async with core.serving(database, *workload.agents) as staying:
        async with worker(database, slots=0, presence_lease=1.0, also="processes.workload:watch") as server:
            run_id = (await server.line(saw=2))["run"]
            server.kill()
            await server.ended()
        events = await core.story(staying, run_id)
    assert (core.end(events)["state"], core.end(events)["reason"]) == ("stopped", "disconnect")
