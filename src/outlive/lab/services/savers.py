"""LangGraph's own savers for a SQLite file or a PostgreSQL DSN, opened for the life of a service."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

#: Two services on one SQLite file wait for each other this long. Seconds.
BUSY = 20.0


#: Seconds that each checkpoint's write takes on top, as with a database far away.
SLOW_VARIABLE = "OUTLIVE_LAB_SLOW"


class SlowSaver(AsyncSqliteSaver):
    """LangGraph's own saver, with the wait for a database far away before each checkpoint's write."""

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        delay = float(os.environ.get(SLOW_VARIABLE, "0"))
        if delay:
            await asyncio.sleep(delay)
        return await super().aput(*args, **kwargs)


def is_postgres(database: str) -> bool:
    """Whether it is a PostgreSQL DSN."""
    return database.startswith(("postgres://", "postgresql://"))


@contextlib.asynccontextmanager
async def asynchronous(database: str) -> AsyncIterator[Any]:
    """A saver for graphs that are awaited; over a pool on PostgreSQL, as one would deploy it."""
    if not is_postgres(database):
        async with SlowSaver.from_conn_string(database) as saver:
            yield saver
        return
    savers: Any = importlib.import_module("langgraph.checkpoint.postgres.aio")
    pools: Any = importlib.import_module("psycopg_pool")
    dict_row: Any = importlib.import_module("psycopg.rows").dict_row
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "row_factory": dict_row}
    async with pools.AsyncConnectionPool(
        database, min_size=1, max_size=4, open=False, kwargs=options
    ) as pool:
        yield savers.AsyncPostgresSaver(pool)


@contextlib.contextmanager
def synchronous(database: str) -> Iterator[Any]:
    """A saver for graphs that are invoked from a thread."""
    if is_postgres(database):
        savers: Any = importlib.import_module("langgraph.checkpoint.postgres")
        with savers.PostgresSaver.from_conn_string(database) as saver:
            yield saver
        return
    connection = sqlite3.connect(database, check_same_thread=False, timeout=BUSY)
    with contextlib.closing(connection):
        yield SqliteSaver(connection)


def set_up(database: str) -> None:
    """Make the tables once, before any service starts: several processes must not race to do it."""
    with synchronous(database) as saver:
        saver.setup()
