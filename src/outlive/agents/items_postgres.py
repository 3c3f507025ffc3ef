"""Graphs' items in the PostgreSQL database that holds the runs, over the connections of their store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import psycopg
from langgraph.store.base import Op, Result
from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.aio import AsyncPostgresStore

from outlive import errors

T = TypeVar("T")
Connection: TypeAlias = psycopg.AsyncConnection[dict[str, Any]]
Work: TypeAlias = Callable[[Connection], Awaitable[T]]


class RawStore(Protocol):
    """What is needed of a PostgreSQL store."""

    async def read_with(self, work: Work[T], *, name: str, budget: float = ...) -> T:
        """Run ``work`` on a connection in autocommit mode."""
        ...


class PostgresItems:
    """``Keeping`` in ``store``'s own database.  Operations may be repeated after a lost connection."""

    def __init__(self, store: RawStore) -> None:
        self._store = store

    async def batch(self, ops: Sequence[Op]) -> list[Result]:
        """Carry operations out on a pooled connection."""

        async def work(connection: Connection) -> list[Result]:
            try:
                return await _Lent(connection).abatch(ops)
            except (psycopg.DataError, UnicodeEncodeError) as failure:
                raise errors.InvalidInput(
                    "A value cannot be stored or compared: NUL, a lone surrogate, too large, or no number."
                ) from failure

        return await self._store.read_with(work, name="items")


class _Lent(AsyncPostgresStore):
    """LangGraph's store on a connection that is lent for one batch."""

    def __init__(self, connection: Connection) -> None:
        # Not the real one's, which starts a task that collects calls of one moment: this has one call.
        self._task = None
        self._deserializer = None
        self.conn = cast("Any", connection)
        self.pipe = None
        self.lock = asyncio.Lock()
        self.supports_pipeline = psycopg.Capabilities().has_pipeline()
        self.index_config = None
        self.embeddings = None
        self.ttl_config = None


async def check_postgres(store: RawStore) -> None:
    """Raise ``SchemaMismatch`` unless the tables are as new as the installed store."""
    if await store.read_with(_version, name="items_version") < len(PostgresStore.MIGRATIONS) - 1:
        raise errors.SchemaMismatch("The database lacks LangGraph's tables of items, or has old ones.")


async def _version(connection: Connection) -> int:
    found = await connection.execute("SELECT to_regclass('store_migrations') IS NOT NULL AS there")
    if not (row := await found.fetchone()) or not row["there"]:
        return -1
    found = await connection.execute("SELECT coalesce(max(v), -1) AS v FROM store_migrations")
    row = await found.fetchone()
    return int(row["v"]) if row else -1


def set_up(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Create or update the tables over a connection in autocommit mode.  Blocks; repeatable."""
    PostgresStore(connection).setup()
