"""Graphs' items in the SQLite file that holds the runs.

LangGraph's synchronous store is lent the connections of the store of the runs: the writer's for what writes,
a reader's for the rest.  So there is one writer to the file, and nobody waits for a lock.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from langgraph.store.base import GetOp, Op, PutOp, Result, SearchOp
from langgraph.store.sqlite import SqliteStore

from outlive.store import items
from outlive.store.script import Script

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class RawStore(Protocol):
    """What is needed of a SQLite store."""

    async def write_with(self, work: Work[T], script: Script[Any], *, budget: float = ...) -> T:
        """Run ``script`` and ``work`` in one transaction."""
        ...

    async def read_with(self, work: Work[T], *, name: str, budget: float = ...) -> T:
        """Run ``work`` on a reading connection."""
        ...


class SqliteItems:
    """``Keeping`` in ``store``'s own file."""

    def __init__(self, store: RawStore) -> None:
        self._store = store

    async def batch(self, ops: Sequence[Op]) -> list[Result]:
        """Carry operations out on the writer's connection if one of them writes, else on a reader's."""
        work = functools.partial(_batch, ops)
        if any(_writes(op) for op in ops):
            return await self._store.write_with(work, items.by_itself())
        return await self._store.read_with(work, name="items")


def setup_sqlite(connection: sqlite3.Connection) -> None:
    """Create or update the tables, in the transaction that is open, if any.  Blocks; repeatable."""
    SqliteStore(cast("sqlite3.Connection", _Guest(connection))).setup()


def _writes(op: Op) -> bool:
    """A read writes where it makes an item live longer."""
    return isinstance(op, PutOp) or (isinstance(op, GetOp | SearchOp) and op.refresh_ttl)


def _batch(ops: Sequence[Op], connection: sqlite3.Connection) -> list[Result]:
    store = SqliteStore(cast("sqlite3.Connection", _Guest(connection)), ttl={"refresh_on_read": True})
    store.is_setup = True  # by ``setup_sqlite``
    return store.batch(ops)


class _Cursor(sqlite3.Cursor):
    """Binds times as the text that the database compares them with: the driver's own way is deprecated."""

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        bound = [one.isoformat(" ") if isinstance(one, datetime) else one for one in parameters]
        return super().execute(sql, bound)


class _Guest:
    """A connection lent to a store: rows are plain tuples, and transactions are not the store's to end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor(_Cursor)
        cursor.row_factory = None
        return cursor

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor | None:
        if sql in ("BEGIN", "COMMIT"):
            return None
        return self.cursor().execute(sql, parameters)

    def executescript(self, sql: str) -> None:
        for part in sql.split(";"):  # the real one would commit first
            if part.strip():
                self._connection.execute(part)

    def create_function(self, name: str, *rest: Any, **options: Any) -> None:
        known = "SELECT 1 FROM pragma_function_list WHERE name = ?"
        if not self._connection.execute(known, (name,)).fetchall():  # another time it might be in use
            self._connection.create_function(name, *rest, **options)

    def commit(self) -> None:
        """Nothing: whoever lent the connection commits."""
