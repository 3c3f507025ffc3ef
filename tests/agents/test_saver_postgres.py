"""The statements of LangGraph's saver, sent as one: what lies in the tables is what it would write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.types import INTERRUPT

from agents import bench
from outlive import errors, runtime
from outlive.agents import fenced_saver, langgraph, saver_postgres

pytestmark = pytest.mark.anyio

Writes = list[tuple[str, Any]]
MANY = saver_postgres.MOST_TOGETHER + 1


@pytest.fixture
async def on(postgres_dsn: str) -> AsyncIterator[bench.Bench]:
    """A bench over PostgreSQL alone: the other store has a saver of its own."""
    await asyncio.to_thread(runtime.migrate, postgres_dsn)
    async with bench.opened(postgres_dsn) as opened:
        yield opened


async def saver(on: bench.Bench, context: Any) -> fenced_saver.FencedSaver:
    agent = await on.agent(bench.booking(bench.Trace()))
    assert isinstance(agent._savers, langgraph.Savers)
    return agent._savers.saver(context.claim)


def rows(on: bench.Bench, thread: str) -> list[tuple[Any, ...]]:
    """What lies in the tables about a thread, without its name."""
    return sorted((row[1:] for row in on.rows() if row[0] == thread), key=repr)


@pytest.mark.parametrize(
    "writes",
    [
        [("channel", 1)],
        [("channel", "100 %s and %(p0)s; --"), ("other", [b"\0"])],
        [("channel", number) for number in range(MANY)],
        [(INTERRUPT, "one"), (INTERRUPT, "two")],
        [("channel", 1), (INTERRUPT, "one"), (INTERRUPT, "two")],
        [],
    ],
    ids=["one", "text like a parameter", "many", "one row twice", "one row twice, kept", "none"],
)
async def test_what_is_written_is_what_the_saver_alone_would_write(on: bench.Bench, writes: Writes) -> None:
    context = await on.claimed()
    ours = await saver(on, context)
    made = empty_checkpoint()
    made["channel_values"] = {"channel": ["value"], "other": {"a": 1}, "plain": 7}
    made["channel_versions"] = {"channel": "1", "other": "1", "plain": "1"}

    async def write(to: Any, thread: str) -> None:
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        stored = await to.aput(config, made, {"step": 0}, made["channel_versions"])
        await to.aput_writes(stored, writes, "task", "path")
        await to.aput_writes(stored, writes, "task", "path")  # a repeat after a lost reply

    await write(ours, context.run.thread_id)
    async with on.store.connection() as connection:
        await write(AsyncPostgresSaver(connection), "alone")
    assert rows(on, context.run.thread_id) == rows(on, "alone")
    assert len(rows(on, "alone")) >= 3


@pytest.mark.parametrize("count", [1, MANY])
async def test_a_refused_write_leaves_nothing_however_it_is_sent(on: bench.Bench, count: int) -> None:
    context = await on.claimed()
    late = await saver(on, context)
    config: Any = {"configurable": {"thread_id": context.run.thread_id, "checkpoint_ns": ""}}
    stored = await late.aput(config, empty_checkpoint(), {"step": 0}, {})
    before = on.rows()
    await on.lose(context.claim)
    with pytest.raises(errors.Fenced):
        await late.aput_writes(stored, [("channel", number) for number in range(count)], "task")
    assert on.rows() == before


def test_the_row_that_a_statement_writes_is_known_of_each_that_the_saver_writes() -> None:
    key = saver_postgres._key_of
    assert key(AsyncPostgresSaver.UPSERT_CHECKPOINT_BLOBS_SQL) == (0, 1, 2, 3)
    assert key(AsyncPostgresSaver.UPSERT_CHECKPOINTS_SQL) == (0, 1, 2)
    assert key(AsyncPostgresSaver.UPSERT_CHECKPOINT_WRITES_SQL) == (0, 1, 2, 3, 5)
    assert key(AsyncPostgresSaver.INSERT_CHECKPOINT_WRITES_SQL) == (0, 1, 2, 3, 5)
    assert key("DELETE FROM checkpoints WHERE thread_id = %s") == ()


def test_each_shape_of_a_write_is_one_text_so_that_it_is_prepared() -> None:
    one, other = (saver_postgres._as_one("INSERT INTO t VALUES (%s, %s);") for _ in range(2))
    assert one is other
    assert one.startswith("WITH part0 AS (INSERT INTO t VALUES (%(p0)s, %(p1)s)) SELECT 1 / count(*)")
