"""One statement over one connection: what travels, and what a caller who leaves it behind leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from outlive.store import postgres
from outlive.store.connection import MOST_PREPARED, PREPARE_AFTER, Connection
from outlive.store.pool import Pool
from store import support
from store.test_races import ACTIVITY

WITHIN = 20.0


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    connection = await postgres.connect(dsn)
    connection.prepares = True
    try:
        yield connection
    finally:
        await connection.close()


VALUES: list[tuple[Any, str, Any]] = [
    ("text", "text", "text"),
    ("", "text", ""),
    ("ü, 'quoted' %s %(x)s :x $1", "text", "ü, 'quoted' %s %(x)s :x $1"),
    (None, "bigint", None),
    (-(2**63), "bigint", -(2**63)),
    (2**63, "numeric", 2**63),
    (True, "boolean", True),
    (b"\x00\xff", "bytea", b"\x00\xff"),
    (Jsonb({"a": [1]}), "jsonb", {"a": [1]}),
]


@pytest.mark.parametrize(("value", "kind", "back"), VALUES)
async def test_a_value_comes_back_as_it_was_sent_whether_prepared_or_not(
    value: Any, kind: str, back: Any, empty_dsn: str
) -> None:
    text = f"SELECT CAST(%(value)s AS {kind}) AS value, 7 %% 4 AS three, %(value)s IS NULL AS none"
    async with connected(empty_dsn) as connection:
        for _ in range(PREPARE_AFTER + 2):
            [row] = await connection.fetch(text, {"value": value})
            assert row == {"value": back, "three": 3, "none": value is None}
        prepared = await connection.fetch("SELECT count(*) AS n FROM pg_prepared_statements", {})
        assert prepared == [{"n": 0 if value == 2**63 else 1}]


async def test_a_value_too_large_for_a_prepared_statement_is_refused_by_the_database_alone(
    empty_dsn: str,
) -> None:
    text = "SELECT 1 AS one WHERE 5 = CAST(%(value)s AS bigint)"
    async with connected(empty_dsn) as connection:
        for _ in range(PREPARE_AFTER + 1):
            assert await connection.fetch(text, {"value": 6}) == []
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            await connection.fetch(text, {"value": 10**30})
        assert len(await connection.fetch(text, {"value": 5})) == 1


async def test_a_text_that_would_end_at_a_nul_is_refused_before_it_is_sent(empty_dsn: str) -> None:
    async with connected(empty_dsn) as connection:
        with pytest.raises(psycopg.DataError):
            await connection.fetch("SELECT %(value)s AS value", {"value": "a\0b"})
        assert connection.free


async def test_no_more_statements_are_prepared_than_a_server_should_remember(empty_dsn: str) -> None:
    async with connected(empty_dsn) as connection:
        for number in range(MOST_PREPARED + 5):
            for _ in range(PREPARE_AFTER + 1):
                assert await connection.fetch(f"SELECT {number} AS n", {}) == [{"n": number}]
        [row] = await connection.fetch("SELECT count(*) AS n FROM pg_prepared_statements", {})
        assert row["n"] == MOST_PREPARED


async def test_what_does_not_fit_into_the_sockets_buffer_arrives_whole(empty_dsn: str) -> None:
    long = "x" * (16 * 1024 * 1024)
    async with connected(empty_dsn) as connection:
        for _ in range(PREPARE_AFTER + 1):
            [row] = await connection.fetch("SELECT length(%(long)s) AS n, %(long)s AS back", {"long": long})
            assert (row["n"], row["back"]) == (len(long), long)


async def test_a_caller_who_leaves_does_not_tear_the_statement_and_frees_the_connection(
    empty_dsn: str,
) -> None:
    support.postgres_rows(empty_dsn, "CREATE TABLE seen (n integer)")
    async with connected(empty_dsn) as connection:
        leaving = asyncio.create_task(connection.fetch("INSERT INTO seen VALUES (%(n)s)", {"n": 1}))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert not connection.free
        with pytest.raises(psycopg.InterfaceError):
            await connection.fetch("SELECT 1 AS one", {})
        freed = asyncio.Event()
        connection.when_free = freed.set
        async with asyncio.timeout(WITHIN):
            await freed.wait()
        assert await connection.fetch("SELECT n FROM seen", {}) == [{"n": 1}]


async def test_a_statement_without_an_answer_is_cancelled_and_its_connection_closed(empty_dsn: str) -> None:
    async with connected(empty_dsn) as connection:
        with pytest.raises(TimeoutError):
            await connection.fetch("SELECT pg_sleep(%(n)s)", {"n": 3600}, 0.05)
        freed = asyncio.Event()
        connection.when_free = freed.set
        async with asyncio.timeout(WITHIN):
            await freed.wait()
        assert connection.closed
        assert support.postgres_rows(empty_dsn, ACTIVITY) == []


async def test_a_connection_lost_in_the_middle_is_said_and_freed(empty_dsn: str) -> None:
    async with connected(empty_dsn) as connection:
        sleeping = asyncio.create_task(connection.fetch("SELECT pg_sleep(3600)", {}))
        while not support.postgres_rows(empty_dsn, ACTIVITY):  # noqa: ASYNC110 - asks the database
            await asyncio.sleep(0)
        pid = connection.info.backend_pid
        support.postgres_rows(empty_dsn, f"SELECT pg_terminate_backend({pid})")
        with pytest.raises(psycopg.OperationalError):
            await sleeping
        assert connection.free


async def test_the_connection_used_last_is_lent_first_and_whoever_waits_gets_the_next(empty_dsn: str) -> None:
    pool = Pool(empty_dsn, size=2, prepares=True)
    await pool.open()
    try:
        one, two = await pool.take(), await pool.take()
        waiting = asyncio.create_task(pool.take())
        await asyncio.sleep(0)
        pool.give(one)
        async with asyncio.timeout(WITHIN):
            assert await waiting is one
        pool.give(two)
        pool.give(one)
        assert await pool.take() is one
        pool.give(one)
        assert pool.whole
    finally:
        await pool.close()


async def test_a_connection_closed_under_a_statement_leaves_no_watch_on_its_sockets_number(
    empty_dsn: str,
) -> None:
    connection = await postgres.connect(empty_dsn)
    number = connection.pgconn.socket
    waiting = asyncio.create_task(connection.fetch("SELECT pg_sleep(3600)", {}))
    await asyncio.sleep(0)
    assert not connection.free
    await connection.close()
    assert not asyncio.get_running_loop().remove_reader(number)
    with pytest.raises(psycopg.OperationalError, match="closed before"):
        await asyncio.wait_for(waiting, WITHIN)
