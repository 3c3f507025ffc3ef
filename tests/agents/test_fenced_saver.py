"""A checkpoint write happens together with the proof that its run is still held, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import pickle
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agents import bench
from outlive import agents, errors, failpoints, signals
from outlive.agents import fenced_saver, langgraph, saver_postgres, saver_sqlite
from outlive.model import Claim
from outlive.states import State
from outlive.store import postgres

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _nothing_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


async def savers(on: bench.Bench, serde: Any = None) -> langgraph.Savers:
    """What makes savers over the bench's store."""
    agent = await on.agent(bench.booking(bench.Trace()), serde=serde)
    assert agent._savers is not None
    return agent._savers


def config(thread: str, checkpoint_id: str | None = None) -> Any:
    """A config as LangGraph passes it to a saver."""
    address = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": address if checkpoint_id is None else {**address, "checkpoint_id": checkpoint_id}}


def checkpoint(value: Any = "value") -> Checkpoint:
    """A checkpoint with one channel."""
    made = empty_checkpoint()
    made["channel_values"] = {"channel": value}
    made["channel_versions"] = {"channel": "1"}
    return made


async def put(saver: fenced_saver.FencedSaver, thread: str, value: Any = "value") -> Any:
    """Store a checkpoint with one channel; returns its config."""
    return await saver.aput(config(thread), checkpoint(value), {"step": 0}, {"channel": "1"})


Write = Callable[[fenced_saver.FencedSaver, Any], Any]
WRITES: dict[str, Write] = {
    "put": lambda saver, stored: put(saver, stored["configurable"]["thread_id"]),
    "put_writes": lambda saver, stored: saver.aput_writes(stored, [("channel", [1])], "task"),
    "delete_thread": lambda saver, stored: saver.adelete_thread(stored["configurable"]["thread_id"]),
}


@pytest.mark.parametrize("write", WRITES)
async def test_S08_a_write_of_an_executor_that_lost_its_run_leaves_the_tables_as_they_were(
    on: bench.Bench, write: str
) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    stored = await put(saver, context.run.thread_id)
    await saver.aput_writes(stored, [("channel", [0])], "task")
    before = on.rows()
    await on.lose(context.claim)
    with on.signals.recording() as happened, pytest.raises(errors.Fenced) as refused:
        await WRITES[write](saver, stored)
    assert refused.value.run_id == context.run.run_id
    assert on.rows() == before
    assert happened == [
        signals.StaleWriteRefused(run_id=context.run.run_id, epoch=1, write=signals.Write.CHECKPOINT)
    ]
    assert saver.refused
    with pytest.raises(errors.Fenced):
        saver.check()


@pytest.mark.parametrize("wrong", ["epoch", "claim_token", "run_id"])
async def test_every_part_of_the_claim_is_proven(on: bench.Bench, wrong: str) -> None:
    context = await on.claimed()
    right = {name: getattr(context.claim, name) for name in ("run_id", "thread_id", "epoch", "claim_token")}
    forged = Claim(**{**right, wrong: 7 if wrong == "epoch" else "another"})
    make = await savers(on)
    with pytest.raises(errors.Fenced):
        await put(make.saver(forged), context.run.thread_id)
    assert on.rows() == []
    await put(make.saver(context.claim), context.run.thread_id)
    assert on.rows() != []


async def test_a_run_that_has_ended_takes_no_more_checkpoints(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    await on.settle(context, State.SUCCEEDED)
    with pytest.raises(errors.Fenced):
        await put(saver, context.run.thread_id)
    assert on.rows() == []


async def test_a_claim_raised_while_a_write_is_under_way_refuses_the_write(on: bench.Bench) -> None:
    """PostgreSQL: the write stands before its fence when the run is taken. SQLite: before both."""
    context = await on.claimed()
    gate = Gate()
    saver = (await savers(on, serde=gate)).saver(context.claim)
    task = asyncio.ensure_future(put(saver, context.run.thread_id, ["slow"]))
    await gate.reached()
    await on.lose(context.claim)
    gate.let_go.set()
    with pytest.raises(errors.Fenced):
        await task
    assert on.rows() == []


async def test_a_failure_at_the_commit_leaves_neither_half(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    failpoints.arm(f"{'sqlite' if on.on_sqlite else 'postgres'}.commit", failpoints.fail)
    with pytest.raises(failpoints.FailpointReached):
        await put(saver, context.run.thread_id)
    failpoints.disarm()
    assert on.rows() == []


async def test_a_write_that_the_database_failed_under_is_made_again(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    point = f"{'sqlite' if on.on_sqlite else 'postgres'}.commit"
    failure: Exception = psycopg.OperationalError()
    if on.on_sqlite:
        failure = sqlite3.OperationalError("locked")
        failure.sqlite_errorcode = sqlite3.SQLITE_BUSY

    def fail_once() -> None:
        failpoints.disarm(point)
        raise failure

    failpoints.arm(point, fail_once)
    with on.signals.recording() as happened:
        stored = await put(saver, context.run.thread_id)
    assert [type(one) for one in happened] == [signals.StoreRetried]
    found = await saver.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"channel": "value"}


class Gate(JsonPlusSerializer):
    """A serialiser that waits, in whatever thread it runs, when it is given the word ``slow``."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self._reached = threading.Event()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Wait, then do as the other one does."""
        if "slow" in str(obj):
            self._reached.set()
            assert self.let_go.wait(bench.WITHIN)
        return super().dumps_typed(obj)

    async def reached(self) -> None:
        """Wait until it waits."""
        assert await asyncio.to_thread(self._reached.wait, bench.WITHIN)


async def test_a_run_whose_write_is_slow_holds_up_no_other_run(on: bench.Bench) -> None:
    slow, quick = await on.claimed(), await on.claimed()
    gate = Gate()
    make = await savers(on, serde=gate)
    held_up = asyncio.ensure_future(put(make.saver(slow.claim), slow.run.thread_id, ["slow"]))
    await gate.reached()
    saver = make.saver(quick.claim)
    await asyncio.wait_for(put(saver, quick.run.thread_id, ["quick"]), bench.WITHIN)
    assert await saver.aget_tuple(config(quick.run.thread_id)) is not None
    await on.settle(quick, State.SUCCEEDED)  # nor does it hold up anybody's log
    assert not held_up.done()
    gate.let_go.set()
    await held_up


async def test_many_runs_write_at_once_and_none_is_lost(on: bench.Bench) -> None:
    make = await savers(on)
    contexts = [await on.claimed() for _ in range(12)]
    each = [make.saver(context.claim) for context in contexts]
    async with asyncio.TaskGroup() as group:
        for saver, context in zip(each, contexts, strict=True):
            for number in range(3):
                group.create_task(put(saver, context.run.thread_id, [number]))
    reader = make.saver(None)
    for context in contexts:
        found = [one async for one in reader.alist(config(context.run.thread_id))]
        assert len(found) == 3


# ---------------------------------------------------------------- stopped callers


async def test_a_write_that_has_begun_outlives_its_callers_cancellation(on: bench.Bench) -> None:
    context = await on.claimed()
    gate = Gate()
    saver = (await savers(on, serde=gate)).saver(context.claim)
    task = asyncio.ensure_future(put(saver, context.run.thread_id, ["slow"]))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert on.rows() == []
    gate.let_go.set()
    await saver.settled()
    found = await saver.aget_tuple(config(context.run.thread_id))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"channel": ["slow"]}


async def test_waiting_for_the_writes_is_not_cut_short_by_a_cancellation(on: bench.Bench) -> None:
    context = await on.claimed()
    gate = Gate()
    saver = (await savers(on, serde=gate)).saver(context.claim)
    writing = asyncio.ensure_future(put(saver, context.run.thread_id, ["slow"]))
    await gate.reached()
    waiting = asyncio.ensure_future(saver.settled())
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    assert not waiting.done()
    gate.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert writing.done()


async def test_a_write_that_does_not_end_in_time_is_reported(on: bench.Bench) -> None:
    context = await on.claimed()
    gate = Gate()
    saver = (await savers(on, serde=gate)).saver(context.claim)
    writing = asyncio.ensure_future(put(saver, context.run.thread_id, ["slow"]))
    await gate.reached()
    with on.signals.recording() as happened:
        await saver.settled(0.0)
    (overdue,) = happened
    assert isinstance(overdue, signals.CleanupFailed)
    assert overdue.run_id == context.run.run_id
    gate.let_go.set()
    await writing


# ---------------------------------------------------------------- other threads and loops


async def test_synchronous_methods_work_from_another_thread(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    address = config(context.run.thread_id)

    def everything() -> list[Any]:
        stored = saver.put(address, checkpoint(), {"step": 0}, {"channel": "1"})
        saver.put_writes(stored, [("channel", 1)], "task")
        found = saver.get_tuple(address)
        assert found is not None
        history = saver.get_delta_channel_history(config=stored, channels=["channel"])
        listed = list(saver.list(address, limit=1))
        saver.delete_thread(context.run.thread_id)
        return [found.pending_writes, len(listed), list(history), saver.get_tuple(address)]

    assert await asyncio.to_thread(everything) == [[("task", "channel", 1)], 1, ["channel"], None]


async def test_a_loop_of_another_thread_may_use_the_saver(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    await asyncio.to_thread(lambda: asyncio.run(put(saver, context.run.thread_id)))
    found = await asyncio.to_thread(lambda: asyncio.run(saver.aget_tuple(config(context.run.thread_id))))
    assert found is not None


async def test_a_synchronous_method_on_the_event_loop_is_refused_instead_of_blocking_it(
    on: bench.Bench,
) -> None:
    context = await on.claimed()
    saver = (await savers(on)).saver(context.claim)
    with pytest.raises(errors.Misconfigured):
        saver.get_tuple(config(context.run.thread_id))


# ---------------------------------------------------------------- reading, serialising, elsewhere


async def test_a_saver_without_a_claim_only_reads(on: bench.Bench) -> None:
    context = await on.claimed()
    make = await savers(on)
    stored = await put(make.saver(context.claim), context.run.thread_id)
    reader = make.saver(None)
    assert await reader.aget_tuple(stored) is not None
    for write in WRITES.values():
        with pytest.raises(errors.Fenced):
            await write(reader, stored)


class Pickled:
    """A user's own serialiser."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Pickle."""
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Unpickle what this one pickled."""
        assert data[0] == "pickle"
        return pickle.loads(data[1])


async def test_a_users_serialiser_writes_and_reads(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on, serde=Pickled())).saver(context.claim)
    await put(saver, context.run.thread_id, frozenset({1}))
    assert any("pickle" in row for row in on.rows())
    found = await saver.aget_tuple(config(context.run.thread_id))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"channel": frozenset({1})}


async def test_a_value_that_cannot_be_serialised_fails_the_write_and_leaves_nothing(on: bench.Bench) -> None:
    context = await on.claimed()
    saver = (await savers(on, serde=Pickled())).saver(context.claim)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        await put(saver, context.run.thread_id, threading.Lock())
    assert on.rows() == []


async def test_a_saver_elsewhere_is_asked_only_while_the_claim_stands(on: bench.Bench) -> None:
    memory = InMemorySaver()
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace, checkpointer=memory), checkpointer="own")
    thaw = trace.hold("charge")
    first = await on.claimed()
    frozen = bench.driven(agent, first)
    await trace.until("charge")
    outcome = await bench.last_of(agent, await on.again(first))
    assert outcome == agents.Outcome(output={"steps": ["plan", "charge", "notify", "finish"]})
    stored = len(list(memory.list(None)))
    thaw.set()
    with pytest.raises(errors.Fenced):
        await frozen
    assert len(list(memory.list(None))) == stored


async def test_a_graph_without_a_saver_of_its_own_cannot_ask_for_it() -> None:
    with pytest.raises(errors.Misconfigured):
        langgraph.LangGraphAgent("graph", bench.booking(bench.Trace()), policy=bench.JOB, checkpointer="own")


# ---------------------------------------------------------------- tables


def test_setting_up_sqlite_can_be_repeated_and_stays_inside_a_transaction() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        saver_sqlite.setup_sqlite(connection)
        saver_sqlite.setup_sqlite(connection)
        assert connection.in_transaction
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


async def test_tables_that_cannot_be_made_in_time_are_an_error_of_the_store(
    sqlite_path: pathlib.Path,
) -> None:
    async with bench.opened(f"sqlite:///{sqlite_path}") as on:
        busy = sqlite3.OperationalError("locked")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY

        def fail() -> None:
            raise busy

        failpoints.arm("sqlite.commit", fail)
        with pytest.raises(errors.StoreUnavailable):
            await savers(on)


def test_a_saver_reads_plain_rows_from_a_connection_that_names_its_columns() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        cursor = saver_sqlite._Guest(connection).cursor()
        assert cursor.execute("SELECT 1 AS a").fetchone() == (1,)
        assert connection.execute("SELECT 1 AS a").fetchone()["a"] == 1


async def test_several_processes_may_set_postgresql_up_at_once(postgres_dsn: str) -> None:
    await asyncio.to_thread(postgres.migrate_database, postgres_dsn)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(asyncio.to_thread(saver_postgres.setup_postgres, postgres_dsn))
    async with bench.opened(postgres_dsn) as on:
        await savers(on)


async def test_an_agent_refuses_a_postgresql_without_the_tables(postgres_dsn: str) -> None:
    await asyncio.to_thread(postgres.migrate_database, postgres_dsn)
    on = bench.Bench(postgres_dsn)
    await on.store.open()
    try:
        with pytest.raises(errors.SchemaMismatch):
            await savers(on)
    finally:
        await on.store.close()


def test_setting_up_a_postgresql_that_is_not_there_says_so() -> None:
    with pytest.raises(errors.StoreUnavailable):
        saver_postgres.setup_postgres("postgresql://nobody@127.0.0.1:1/none")
