"""What the tests of the stores share: factories, doors behind the stores' backs, and short words."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import psycopg

from outlive import signals
from outlive.store.postgres import PostgresStore
from outlive.store.sqlite import SqliteStore
from outlive.testing.store_checks.bench import Backdoor, Factory

Rows = list[tuple[Any, ...]]


@contextlib.asynccontextmanager
async def opened(store: SqliteStore | PostgresStore) -> AsyncIterator[Any]:
    """A store for the length of a block."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def sqlite_factory(path: pathlib.Path) -> Factory:
    """Stores on one file, as processes on one host have them."""
    return lambda: opened(SqliteStore(path))


def postgres_factory(dsn: str) -> Factory:
    """Stores on one database, as processes on many hosts have them."""
    return lambda: opened(PostgresStore(dsn, pool_size=4))


def sqlite_backdoor(path: pathlib.Path) -> Backdoor:
    """Runs SQL over a connection that no store knows of."""

    async def run(text: str) -> Rows:
        return sqlite_rows(path, text)

    return run


def postgres_backdoor(dsn: str) -> Backdoor:
    """Runs SQL over a connection that no store knows of."""

    async def run(text: str) -> Rows:
        return postgres_rows(dsn, text)

    return run


def memory_backdoor(store: SqliteStore) -> Backdoor:
    """Runs SQL on the only connection that sees a database in memory."""

    async def run(text: str) -> Rows:
        return await store.in_writer(lambda connection: [tuple(row) for row in connection.execute(text)])

    return run


def sqlite_rows(path: pathlib.Path | str, text: str, params: Any = ()) -> Rows:
    """One statement over a connection of its own, committed."""
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection, connection:
        return connection.execute(text, params).fetchall()


def postgres_rows(dsn: str, text: str, params: Any = None) -> Rows:
    """One statement over a connection of its own, committed."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(text.encode(), params)
        return cursor.fetchall() if cursor.description is not None else []


def told(store: Any) -> contextlib.AbstractContextManager[list[signals.Happening]]:
    """What a store says aloud for the length of a block."""
    happenings: signals.Signals = store._signals
    return happenings.recording()
