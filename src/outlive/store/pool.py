"""The PostgreSQL connections of one process, lent one at a time.

Decides who gets which: the one used last first, since what it needs is still at hand, there and here.  How
many there are, and how lost ones are replaced, is the driver's pool's to say; each goes back to it now and
then, so that it can be renewed, and at once when somebody waits for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import psycopg
import psycopg_pool
from psycopg import pq
from psycopg.rows import dict_row

from outlive import errors
from outlive.store.connection import CONNECT, Connection

PATIENCE = 2.0
"""Seconds to wait for a connection.  Short, for the driver's attempts to reconnect back off: with long ones
an outage would last for as long again after its end.  Whoever still waits asks anew, and that begins a fresh
attempt."""
KEPT_SECONDS = 60.0


class Pool:
    """Lends connections in autocommit mode."""

    def __init__(self, dsn: str, *, size: int, prepares: bool) -> None:
        self.lent = 0
        self._idle: list[Connection] = []
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._prepares = prepares
        self._closing = False
        self._pool = psycopg_pool.AsyncConnectionPool(
            dsn,
            connection_class=Connection,
            configure=self._configure,
            kwargs={
                **CONNECT,
                "autocommit": True,
                "row_factory": dict_row,
                "prepare_threshold": 5 if prepares else None,
            },
            min_size=min(2, size),
            max_size=size,
            timeout=PATIENCE,
            reconnect_timeout=1.0,
            open=False,
        )

    async def _configure(self, connection: Connection) -> None:
        connection.prepares = self._prepares
        # What is read after waiting for a lock must be what the lock's last holder wrote, whatever level the
        # database's owner made the default.
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)

    async def open(self) -> None:
        """Connect; raises ``PoolTimeout`` if there is no server."""
        await self._pool.open(wait=True, timeout=10.0)

    async def close(self) -> None:
        """Close every connection."""
        self._closing = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._pool.putconn(connection)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await self._pool.close()

    @property
    def whole(self) -> bool:
        """Whether no connection is lent and nobody waits for one."""
        stats = self._pool.get_stats()
        here = stats["pool_available"] + len(self._idle)
        return not (self.lent or self._tasks or self._waiting) and here == stats["pool_size"]

    async def take(self) -> Connection:
        """Lend a connection; raises ``PoolTimeout``."""
        if self._closing:
            raise errors.NotReady("The store is closed.")
        connection = self._idle.pop() if self._idle else await self._another()
        self.lent += 1
        return connection

    async def _another(self) -> Connection:
        """Ask the driver, in a task of its own: cancelled as it gets one, it forgets one or the other."""
        loop = asyncio.get_running_loop()
        asking = loop.create_task(self._pool.getconn())
        self._waiting += 1
        asking.add_done_callback(self._asked)
        try:
            connection = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._unwanted)
            raise
        connection.taken_at = loop.time()
        return connection

    def _asked(self, asking: asyncio.Task[Connection]) -> None:
        self._waiting -= 1

    def _unwanted(self, asking: asyncio.Task[Connection]) -> None:
        if not asking.cancelled() and asking.exception() is None:
            self._spawn(self._pool.putconn(asking.result()))

    def give(self, connection: Connection) -> None:
        """Take a connection back, as soon as the statement that it may still carry has been answered."""
        if not connection.free:
            connection.when_free = lambda: self.give(connection)
            return
        self.lent -= 1
        sound = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if sound and not (self._waiting or self._closing or self._stale(connection)):
            self._idle.append(connection)
        else:
            self._spawn(self._pool.putconn(connection))
        if self._idle and self._stale(self._idle[0]):  # the one that is lent last is hardly ever lent
            self._spawn(self._pool.putconn(self._idle.pop(0)))
        if connection.closed:
            self._look_at_the_others()

    def _stale(self, connection: Connection) -> bool:
        return asyncio.get_running_loop().time() - connection.taken_at > KEPT_SECONDS

    def _look_at_the_others(self) -> None:
        """What ended one connection often ended all: found out one by one, each would cost a try."""
        idle, self._idle = self._idle, []
        for connection in idle:
            try:
                connection.pgconn.consume_input()
            except psycopg.Error:
                self._spawn(self._pool.putconn(connection))
            else:
                self._idle.append(connection)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
