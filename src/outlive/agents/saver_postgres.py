"""Checkpoints in the PostgreSQL database that holds the runs.

LangGraph's asynchronous saver, one object per transaction over one pooled connection: a saver serialises its
callers on a lock of its own, so that a shared one would make every run of the process take turns.  The fence
comes last before the commit, because the saver waits for a thread while it holds the connection.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg.rows import dict_row

from outlive import errors
from outlive.agents import fenced_saver
from outlive.model import Claim
from outlive.store import sql
from outlive.store.script import Script

T = TypeVar("T")
Connection: TypeAlias = psycopg.AsyncConnection[dict[str, Any]]
Work: TypeAlias = Callable[[Connection], Awaitable[T]]

SETUP_LOCK = 0x6F75746C6C67
SETUP_SECONDS = 60.0


class RawStore(Protocol):
    """What is needed of a PostgreSQL store."""

    async def write_with(self, work: Work[T], script: Script[Any], *, budget: float = ...) -> T:
        """Run ``work`` and then ``script`` in one transaction."""
        ...

    async def read_with(self, work: Work[T], *, name: str, budget: float = ...) -> T:
        """Run ``work`` on a connection in autocommit mode."""
        ...


class PostgresCheckpoints:
    """``Checkpoints`` in ``store``'s own database."""

    def __init__(self, store: RawStore) -> None:
        self._store = store
        self._versions = AsyncPostgresSaver(cast("Any", None))

    async def write(self, call: fenced_saver.Call, serde: SerializerProtocol, claim: Claim) -> Any:
        """Make the call, then prove the claim, then commit."""

        async def work(connection: Connection) -> Any:
            return await fenced_saver.acall(AsyncPostgresSaver(connection, serde=serde), call)

        return await self._store.write_with(work, fenced_saver.hold(claim), budget=fenced_saver.WRITE_BUDGET)

    async def read(self, call: fenced_saver.Call, serde: SerializerProtocol) -> Any:
        """Make the call on a pooled connection."""

        async def work(connection: Connection) -> Any:
            return await fenced_saver.acall(AsyncPostgresSaver(connection, serde=serde), call)

        return await self._store.read_with(work, name=f"checkpoint_{call.name}")

    def next_version(self, current: Any) -> Any:
        """Return the version that follows ``current``, as ``AsyncPostgresSaver`` counts."""
        return self._versions.get_next_version(current, None)


async def check_postgres(store: RawStore) -> None:
    """Raise ``SchemaMismatch`` unless the saver's tables are as new as the installed saver."""
    newest = len(AsyncPostgresSaver.MIGRATIONS) - 1
    if await store.read_with(_version, name="checkpoint_version") < newest:
        raise errors.SchemaMismatch("The database lacks LangGraph's checkpoint tables, or has old ones.")


async def _version(connection: Connection) -> int:
    found = await connection.execute("SELECT to_regclass('checkpoint_migrations') IS NOT NULL AS there")
    if not (row := await found.fetchone()) or not row["there"]:
        return -1
    found = await connection.execute("SELECT coalesce(max(v), -1) AS v FROM checkpoint_migrations")
    row = await found.fetchone()
    return int(row["v"]) if row else -1


def setup_postgres(dsn: str) -> None:
    """Create or update the saver's tables, one process at a time.  Blocks; repeatable.

    ``dsn`` must not lead through a transaction pooler.  Raises ``StoreUnavailable``.
    """
    try:
        with psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None, connect_timeout=5
        ) as connection:
            _await_turn(connection)
            PostgresSaver(connection).setup()
    except psycopg.OperationalError as failure:
        raise errors.StoreUnavailable(
            "The database cannot be reached.", hint="Start it, or correct the database URL."
        ) from failure


def _await_turn(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Take a lock that ends with the connection.

    Asked for again and again instead of waited for: a waiting statement holds a snapshot, and the saver's
    indexes are built concurrently, which waits for every snapshot. The two would wait for each other.
    """
    ask = sql.load(sql.Dialect.POSTGRESQL)["hold_token"].statements[0]
    give_up = time.monotonic() + SETUP_SECONDS
    while True:
        row = connection.execute(cast("Any", ask), {"token": SETUP_LOCK}).fetchone()
        if row and row["held"]:
            return
        if time.monotonic() > give_up:
            raise errors.StoreUnavailable("Another process has been setting the checkpoint tables up.")
        time.sleep(0.1)
