"""An executor that was frozen while its thread was deleted writes nothing of it once it is thawed."""

from __future__ import annotations

import pytest

import outlive
from core import record
from core import support as core
from processes import support, test_freeze, workload
from processes.support import worker

TABLES = ("runs", "events", "threads", "presence", "checkpoints")


def left(database: str) -> dict[str, int]:
    """How many rows there are, by table."""
    counts = {name: len(record.rows(database, f"SELECT 1 FROM {name}")) for name in TABLES}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.invariant("I2")
@pytest.mark.parametrize(
    ("failpoint", "gates", "write"),
    [("recorder.append@2", 1, "event"), ("execution.finalise@1", 2, "verdict")],
    ids=["event", "verdict"],
)
async def test_resurrected_threads_a_thawed_executor_writes_no_event_and_no_verdict(
    failpoint: str, gates: int, write: str, database: str
) -> None:
    async with (
        core.serving(database, *workload.agents, slots=0) as api,
        worker(database, points=f"{failpoint}=freeze") as frozen,
    ):
        run_id = (await api.submit("steps", thread="t")).run.run_id
        await core.seen(api, run_id, 1)
        for gate in ("first", "second")[:gates]:
            frozen.open(gate)
        await frozen.frozen()
        assert (await api.delete_thread("t")).stopped == (run_id,)
        frozen.thaw()
        await frozen.heard("StaleWriteRefused", run_id=run_id, epoch=1, write=write)
        with pytest.raises(outlive.errors.NotFound):
            await api.thread("t")
    assert frozen.said(heard="RunEnded") == []
    tables = [name for name in TABLES if name != "checkpoints"]
    assert [record.rows(database, f"SELECT * FROM {name}") for name in tables] == [[]] * len(tables)


@pytest.mark.invariant("I2")
async def test_resurrected_threads_a_thawed_executor_writes_no_checkpoint(database: str) -> None:
    """Frozen between a node's end and its checkpoint."""
    options = {"agents": "processes.graph_workload:agents"}
    submitted = outlive.agent("graph", policy=outlive.job())(test_freeze.nobody)
    async with (
        core.serving(database, submitted, slots=0) as api,
        worker(database, points="checkpoint@1=freeze", **options) as frozen,
    ):
        run_id = (await api.submit("graph", {"done": []}, thread="t")).run.run_id
        await frozen.line(node="first")
        frozen.open("first")
        await frozen.frozen()
        await api.delete_thread("t")
        frozen.thaw()
        await frozen.heard("StaleWriteRefused", run_id=run_id, epoch=1, write="checkpoint")
        await frozen.heard("LeaseLost", run_id=run_id, epoch=1)
    assert frozen.said(node="second") == []
    assert left(database) == {}


async def test_a_process_that_is_frozen_anywhere_brings_nothing_of_a_deleted_thread_back(
    database: str,
) -> None:
    """Stopped from outside; it goes on working with the threads that are there."""
    async with (
        core.serving(database, *workload.agents, slots=0) as api,
        worker(database, slots=1) as process,
    ):
        run_id = (await api.submit("steps", thread="t")).run.run_id
        await core.seen(api, run_id, 1)
        await support.freeze(process, database)
        await api.delete_thread("t")
        process.thaw()
        await process.heard("LeaseLost", run_id=run_id)
        test_freeze.finish(process)
        events = await core.story(api, (await api.submit("steps", thread="t")).run.run_id)
    assert core.end(events)["state"] == "succeeded"
    assert [row["last_seq"] for row in record.rows(database, "SELECT last_seq FROM threads")] == [4]
