"""The PostgreSQL half of ``foreign``: apart, because not everybody has the driver."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias, cast

import psycopg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import errors as pg_errors
from psycopg.rows import dict_row

from outlive import errors
from outlive.agents.serde import Faithful
from outlive.store import sql

Rows: TypeAlias = list[dict[str, Any]]


async def is_ours(url: str) -> bool:
    """Say whether a database is one of ours."""
    async with await _connected(url) as connection:
        found = await connection.execute(_block("is_ours"))
        return await found.fetchone() is not None


@contextlib.asynccontextmanager
async def looked_at(url: str) -> AsyncIterator[tuple[AsyncPostgresSaver, Rows | None]]:
    """Connect to read, and no more; None instead of rows if there are no tables of checkpoints."""
    async with await _connected(url) as connection:
        await connection.set_read_only(True)
        try:
            found = await connection.execute(_block("heads_of_threads"))
            rows: Rows | None = await found.fetchall()
        except pg_errors.UndefinedTable:
            rows = None
        yield AsyncPostgresSaver(connection, serde=Faithful()), rows


@contextlib.asynccontextmanager
async def worked_on(url: str, token: int) -> AsyncIterator[tuple[AsyncPostgresSaver, bool]]:
    """Connect to write; the lock is of this session, and so is every write."""
    async with await _connected(url) as connection:
        found = await connection.execute(_block("hold_token"), {"token": token})
        row = await found.fetchone()
        yield AsyncPostgresSaver(connection, serde=Faithful()), bool(row and row["held"])


async def _connected(url: str) -> psycopg.AsyncConnection[dict[str, Any]]:
    try:
        return await psycopg.AsyncConnection.connect(
            url, autocommit=True, prepare_threshold=None, row_factory=dict_row, connect_timeout=5
        )
    except psycopg.OperationalError as failure:
        raise errors.StoreUnavailable(
            "The checkpoint database cannot be reached.", hint="Start it, or correct its URL."
        ) from failure


def _block(name: str) -> Any:
    return cast("Any", sql.load(sql.Dialect.POSTGRESQL)[name].statements[0])
