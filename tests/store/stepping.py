"""Two transactions side by side on PostgreSQL, one statement at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

from outlive.store import postgres, sql
from outlive.store.script import Script

T = TypeVar("T")
BLOCKS = sql.load(sql.Dialect.POSTGRESQL)
WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Stepping(Generic[T]):
    """One script in one open transaction on a connection of its own."""

    def __init__(self, connection: postgres.Connection, script: Script[T]) -> None:
        self.connection = connection
        self.value: Any = None
        self._steps = script.start()
        self._next = next(self._steps)
        self.ended = False

    @property
    def next(self) -> str:
        """The name of the statement that comes next."""
        return self._next.name

    async def step(self) -> list[Any]:
        """Run one statement and return its rows."""
        rows = await postgres.execute(self.connection, BLOCKS, self._next)
        try:
            self._next = self._steps.send(rows)
        except StopIteration as end:
            self.value, self.ended = end.value, True
        return rows

    async def before(self, name: str) -> None:
        """Run up to the statement ``name``, without running it."""
        while self._next.name != name:
            assert not self.ended, f"the script never came to {name}"
            await self.step()

    async def after(self, name: str) -> None:
        """Run up to and with the statement ``name``."""
        await self.before(name)
        await self.step()

    async def rest(self) -> T:
        """Run what is left, without committing."""
        while not self.ended:
            await self.step()
        value: T = self.value
        return value

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def finish(self) -> T:
        """Run what is left and commit."""
        value = await self.rest()
        await self.commit()
        return value


@contextlib.asynccontextmanager
async def stepping(dsn: str, script: Script[T]) -> AsyncIterator[Stepping[T]]:
    """A script about to run its first statement in a transaction that is rolled back unless committed."""
    connection = await postgres.connect(dsn)
    try:
        await connection.execute("BEGIN")
        yield Stepping(connection, script)
    finally:
        await connection.execute("ROLLBACK")  # closing alone would leave the locks until the server notices
        await connection.close()


async def blocked(dsn: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start ``work`` and return it once the server says that it waits for a lock."""
    task = asyncio.get_running_loop().create_task(work)
    async with asyncio.timeout(20), await postgres.connect(dsn) as watch:
        while not task.done():
            if await (await watch.execute(WAITING)).fetchall():
                return task
    raise AssertionError(f"waited for no lock, and ended with {task!r}")
