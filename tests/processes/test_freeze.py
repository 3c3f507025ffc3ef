"""An executor that froze while another took its run over finds, once thawed, that it may do nothing more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import pytest

import outlive
from core import record
from core import support as core
from outlive import signals
from outlive.testing.processes import Process
from processes import support, workload
from processes.support import worker

HELD = {"lease": 60.0, "renew_every": 0.1}
"""What the second executor gets, so that it does not lose the run as well while the test looks on."""


def nothing(process: Process) -> None:
    """It freezes by itself."""


def finish(process: Process) -> None:
    """Let its agent end, so that it comes to write its verdict."""
    process.open("first")
    process.open("second")


def go_on(process: Process) -> None:
    """Let its agent yield once more."""
    process.open("first")


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.parametrize(
    ("failpoint", "then", "write"),
    [
        ("recorder.append@2", go_on, "event"),
        ("execution.finalise@1", finish, "verdict"),
        ("execution.finalise@1", Process.terminate, "hand_back"),
        ("lease.renew@4", nothing, "renewal"),
    ],
    ids=["event", "verdict", "hand_back", "renewal"],
)
async def test_S08_every_late_write_of_a_thawed_executor_is_refused_and_counted(
    failpoint: str, then: Callable[[Process], None], write: str, database: str
) -> None:
    async with (
        core.serving(database, *workload.agents, slots=0) as api,
        worker(database, timing=support.SHORT, points=f"{failpoint}=freeze") as frozen,
    ):
        listening = core.heard(api)
        run_id = (await api.submit("steps")).run.run_id
        await core.seen(api, run_id, 1)
        then(frozen)
        await frozen.frozen()
        async with worker(database, timing=HELD) as second:
            await second.heard("RunClaimed", run_id=run_id)
            # A name is no proof: the fence must not fall for it.
            record.execute(database, f"UPDATE runs SET worker = '{frozen.worker}'")
            frozen.thaw()
            await frozen.heard("StaleWriteRefused", run_id=run_id, epoch=1, write=write)
            finish(second)
            events = await core.story(api, run_id)
        early = [swept.early for swept in listening.all(signals.RunSwept)]
        early += [line["early"] for line in second.said(heard="RunSwept")]
    assert early == [False]  # a frozen process still holds its token
    refused = [line["write"] for line in frozen.said(heard="StaleWriteRefused")]
    assert refused.count(write) == 1
    assert set(refused) <= {write, "renewal"}
    assert frozen.said(heard="RunEnded") == frozen.said(heard="RunHandedBack") == []
    assert core.data(events)[0] == {"step": 1, "attempt": 1}
    assert core.data([event for event in events if event.epoch == 3]) == [
        {"step": 1, "attempt": 2},
        {"step": 2, "attempt": 2},
    ]
    assert core.end(events)["state"] == "succeeded"
    run = support.run_row(database, run_id)
    assert (run["epoch"], run["losses"]) == (3, 1)


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
async def test_S08_an_executor_that_thaws_after_the_other_has_ended_the_run_changes_nothing(
    database: str,
) -> None:
    async with (
        core.serving(database, *workload.agents, slots=0) as api,
        worker(database, timing=support.SHORT, points="execution.finalise@1=freeze") as frozen,
    ):
        run_id = (await api.submit("steps")).run.run_id
        finish(frozen)
        await frozen.frozen()
        async with worker(database, timing=HELD) as second:
            finish(second)
            events = await core.story(api, run_id)
            before = support.run_row(database, run_id)
            frozen.thaw()
            await frozen.heard("StaleWriteRefused", run_id=run_id, write="verdict")
            after = support.run_row(database, run_id)
            assert await core.story(api, run_id) == events
    assert before == after
    assert core.end(events)["state"] == "succeeded"


async def test_S08_a_thawed_process_goes_on_working_with_what_it_may(database: str) -> None:
    """Stopped from outside, at any place; it does not take the lost run's slot with it."""
    async with (
        core.serving(database, *workload.agents, slots=0, timing=core.QUICK) as api,
        worker(database, timing=support.SHORT, slots=1) as process,
    ):
        listening = core.heard(api)
        run_id = (await api.submit("steps")).run.run_id
        await core.seen(api, run_id, 1)
        await support.freeze(process, database)
        await listening.of(signals.RunSwept, run_id=run_id, early=False)
        process.thaw()
        await process.heard("LeaseLost", run_id=run_id)
        finish(process)
        events = await core.story(api, run_id)
    assert core.end(events)["state"] == "succeeded"
    assert {event.epoch for event in events} == {1, 3}


async def nobody(context: outlive.Context) -> AsyncGenerator[None, None]:
    """Stands for the graph where it is only submitted: importing LangGraph takes a while."""
    yield
    raise AssertionError("this process drives nothing")


@pytest.mark.invariant("I2")
async def test_S08_a_late_checkpoint_of_a_thawed_executor_is_refused_and_counted(database: str) -> None:
    """Frozen between a node's end and its checkpoint, it comes back to write it."""
    options = {"agents": "processes.graph_workload:agents"}
    async with (
        core.serving(database, outlive.agent("graph", policy=outlive.job())(nobody), slots=0) as api,
        worker(database, timing=support.SHORT, points="checkpoint@1=freeze", **options) as frozen,
    ):
        run_id = (await api.submit("graph", {"done": []})).run.run_id
        await frozen.line(node="first")
        frozen.open("first")
        await frozen.frozen()
        async with worker(database, timing=HELD, **options) as second:
            await second.line(node="first")
            frozen.thaw()
            await frozen.heard("StaleWriteRefused", run_id=run_id, epoch=1, write="checkpoint")
            await frozen.heard("LeaseLost", run_id=run_id, epoch=1)
            finish(second)
            events = await core.story(api, run_id)
            run = await api.run(run_id)
    assert frozen.said(heard="RunEnded") == []
    assert core.end(events)["state"] == "succeeded"
    assert run.public()["output"]["done"] == ["first", "second"]
    assert [len(process.said(node="second")) for process in (frozen, second)] == [0, 1]
