"""Outlive's record in PostgreSQL, for many processes on many hosts.

A script of one statement is that statement, sent over a pooled connection; a longer one is a transaction in
a task of its own.  Neither is torn by a cancelled request, nor leaves its connection in the middle of
something.  One direct connection listens for hints and holds the liveness token; leases are renewed over a
third, from a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any, TypeAlias, TypeVar, cast

import psycopg
import psycopg_pool
from psycopg import errors as pg_errors
from psycopg.rows import dict_row

from outlive import errors, failpoints, seams, signals
from outlive.model import Claim, Renewed, Row
from outlive.store import migrate, retry, sql
from outlive.store.appending import Appends
from outlive.store.connection import CONNECT
from outlive.store.connection import STATEMENT_BUDGET as STATEMENT_BUDGET
from outlive.store.connection import Connection as Connection
from outlive.store.connection import connect as connect
from outlive.store.notify import Direct
from outlive.store.pool import Pool
from outlive.store.script import Script, Statement, statement
from outlive.store.wakeup import Hub

T = TypeVar("T")
Blocks = Mapping[str, sql.Block]

BLOCKS = sql.load(sql.Dialect.POSTGRESQL)  # at import: reading a file would block an event loop
Work: TypeAlias = Callable[[Connection], Awaitable[T]]

_RETRYABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg_pool.PoolTimeout,
    pg_errors.UniqueViolation,
    pg_errors.DeadlockDetected,
    pg_errors.SerializationFailure,
    pg_errors.AdminShutdown,
    pg_errors.ReadOnlySqlTransaction,  # a fail-over left us on a standby
    pg_errors.IdleInTransactionSessionTimeout,
    pg_errors.TransactionTimeout,
    TimeoutError,
)
_MEANT = (*_RETRYABLE, psycopg.DataError, UnicodeEncodeError)


class PostgresStore:
    """A store in one PostgreSQL database.

    ``direct_dsn`` is for LISTEN and the liveness token, where ``dsn`` goes through a transaction pooler.
    """

    dialect = sql.Dialect.POSTGRESQL

    def __init__(
        self,
        dsn: str,
        *,
        direct_dsn: str | None = None,
        pool_size: int = 10,
        local: seams.Seams = seams.REAL,
        happenings: signals.Signals | None = None,
    ) -> None:
        self.hub = Hub()
        self._dsn = dsn
        self._direct_dsn = direct_dsn or dsn
        self._pooled = direct_dsn is not None and direct_dsn != dsn
        self._local = local
        self._signals = happenings or signals.Signals()
        self._blocks = BLOCKS
        self._pool_size = pool_size
        self._pool: Pool | None = None
        self._appends = Appends(self._execute)
        self._direct = Direct(self._direct_dsn, self._blocks, self.hub, self._signals)
        self._running: set[asyncio.Task[Any]] = set()
        self._renewing: psycopg.Connection[dict[str, Any]] | None = None

    # ------------------------------------------------------------ lifetime

    async def open(self) -> None:
        """Check the schema, test LISTEN for real, and fill the pool."""
        try:
            await self._check_schema()
            await self._direct.open()
            await self._fill_pool()
        except BaseException as failure:
            await self.close()
            raise _refusal(failure) from failure

    async def _check_schema(self) -> None:
        async with await connect(self._dsn) as connection, asyncio.timeout(STATEMENT_BUDGET):
            if not await execute(connection, self._blocks, statement("has_ledger")):
                await asyncio.to_thread(migrate.check, set())
            done = await execute(connection, self._blocks, statement("applied_migrations"))
            await asyncio.to_thread(migrate.check, {row["name"] for row in done})  # it reads files

    async def _fill_pool(self) -> None:
        # Behind a transaction pooler a prepared statement may land on a server that never saw it.
        prepares = self._direct.listening and not self._pooled
        self._pool = Pool(self._dsn, size=self._pool_size, prepares=prepares)
        await self._pool.open()

    async def close(self) -> None:
        """Let running transactions end, then release every connection and the token."""
        if running := {*self._running, *filter(None, [self._appends.together])}:
            await asyncio.wait(running, timeout=STATEMENT_BUDGET)
        await self._direct.close()
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._renewing is not None:
            await asyncio.to_thread(self._renewing.close)
            self._renewing = None

    # ------------------------------------------------------------ transactions

    async def write(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run ``script`` in one transaction; see ``store.Transactions``."""
        if script.single or script.reads:
            return await self._alone(script, budget)
        return await self._together(script.name, functools.partial(run_script, self._blocks, script), budget)

    async def read(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run a reading ``script``; see ``store.Transactions``."""
        return await self._alone(script, budget)

    async def write_with(self, work: Work[T], script: Script[Any], *, budget: float = 10.0) -> T:
        """Run ``work`` on the raw connection, then ``script``, whose locks come last, in one transaction."""

        async def both(connection: Connection) -> T:
            value = await work(connection)
            await run_script(self._blocks, script, connection)
            return value

        return await self._together(script.name, both, budget)

    async def write_alone(
        self, text: str, params: Mapping[str, Any], *, name: str, budget: float = 10.0
    ) -> list[Row]:
        """Run one writing statement, whose parameters are written ``%(name)s``, and return its rows.

        A ``DivisionByZero`` is the caller's own.
        """

        async def attempt(seconds: float) -> list[Row]:
            try:
                failpoints.reach("postgres.commit")
                connection = await self._lending.take()
                try:
                    rows = await connection.fetch(text, params, min(seconds, STATEMENT_BUDGET))
                finally:
                    self._lending.give(connection)
                failpoints.reach("postgres.committed")
                return rows
            except pg_errors.DivisionByZero:
                raise  # the statement's own way of saying that it must not be
            except _MEANT as failure:
                raise _meaning(failure) from failure

        return await self._until(name, attempt, budget)

    async def read_with(self, work: Work[T], *, name: str, budget: float = 10.0) -> T:
        """Run ``work`` on a raw connection in autocommit mode."""

        async def attempt(seconds: float) -> T:
            return await self._apart(self._within(seconds, work))

        return await self._until(name, attempt, budget)

    async def _alone(self, script: Script[T], budget: float) -> T:
        """Run a script whose statements need no transaction around them."""

        async def attempt(seconds: float) -> T:
            try:
                value = await self._step_through(script, seconds)
                if script.single:
                    failpoints.reach("postgres.committed")
                return value
            except _MEANT as failure:
                raise _meaning(failure) from failure

        return await self._until(script.name, attempt, budget)

    async def _step_through(self, script: Script[T], seconds: float) -> T:
        give_up = self._local.monotonic() + seconds
        steps = script.start()
        try:
            step = next(steps)
            while True:
                left = min(max(0.0, give_up - self._local.monotonic()), STATEMENT_BUDGET)
                run = self._appends.run if step.name == "append" else self._execute
                step = steps.send(await run(step, left))
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()

    async def _execute(self, step: Statement, seconds: float) -> list[Row]:
        pool = self._lending
        connection = await pool.take()
        try:
            return await execute(connection, self._blocks, step, seconds)
        finally:
            pool.give(connection)

    async def _together(self, name: str, work: Work[T], budget: float) -> T:
        """Run ``work`` in one transaction, in a task that the caller's cancellation does not reach."""

        async def attempt(seconds: float) -> T:
            return await self._apart(self._within(seconds, functools.partial(_in_transaction, work)))

        return await self._until(name, attempt, budget)

    async def _until(self, name: str, attempt: Callable[[float], Awaitable[T]], budget: float) -> T:
        return await retry.until_within(
            attempt, name=name, budget=budget, local=self._local, happenings=self._signals
        )

    async def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _within(self, seconds: float, work: Work[T]) -> T:
        try:
            async with asyncio.timeout(min(seconds, STATEMENT_BUDGET)), self.connection() as connection:
                try:
                    return await work(connection)
                finally:
                    connection.give_up()  # of a statement that is still under way
        except _MEANT as failure:
            raise _meaning(failure) from failure

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a pooled connection in autocommit mode.  Do not hold it while waiting for anything else."""
        pool, connection = self._lending, await self._lending.take()
        try:
            yield connection
        finally:
            pool.give(connection)

    @property
    def _lending(self) -> Pool:
        if self._pool is None:
            raise errors.NotReady("The store is not open.")
        return self._pool

    # ------------------------------------------------------------ leases and liveness

    def renew(self, claims: Sequence[Claim], lease: float) -> list[Renewed]:
        """Renew over a connection of the calling thread's own; see ``store.Leases``."""
        step = statement("renew", claims=list(claims), lease_ms=round(lease * 1000))
        try:
            if self._renewing is None or self._renewing.closed:
                self._renewing = psycopg.connect(
                    self._direct_dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None, **CONNECT
                )
            cursor = self._renewing.execute(
                cast("Any", self._blocks[step.name].statements[0]), sql.bind(step.params)
            )
            return [Renewed.from_row(row) for row in cursor.fetchall()]
        except psycopg.Error as failure:
            if self._renewing is not None:
                self._renewing.close()
            raise errors.StoreUnavailable("The leases could not be renewed.") from failure

    async def hold_token(self, worker: str) -> None:
        """Hold a session advisory lock on the direct connection; see ``store.Liveness``."""
        await self._direct.hold(worker)

    async def dead(self, workers: Collection[str]) -> set[str]:
        """Look for the others' advisory locks; see ``store.Liveness``."""
        if not self._direct.listening:
            return set()
        return await self._direct.dead(workers)

    def announce(self, *topics: str) -> None:
        """Wake local waiters now and other processes with the next coalesced NOTIFY."""
        self.hub.wake(topics)
        self._direct.tell(topics)


def _refusal(failure: BaseException) -> BaseException:
    """What the caller of ``open`` shall see."""
    if isinstance(failure, _RETRYABLE):
        return errors.StoreUnavailable(
            "The database cannot be reached.", hint="Start it, or correct the database URL."
        )
    if isinstance(failure, psycopg.ProgrammingError):
        return errors.Misconfigured(
            f"The database refuses what Outlive needs: {type(failure).__name__}.",
            hint="Correct the database URL, or grant its user the tables that outlive migrate made.",
        )
    return failure


def _meaning(failure: Exception) -> Exception:
    if isinstance(failure, _RETRYABLE):
        return retry.Transient(type(failure).__name__)
    return errors.InvalidInput("A value cannot be stored: NUL, a lone surrogate or too large.")


async def _in_transaction(work: Work[T], connection: Connection) -> T:
    await connection.command("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        value = await work(connection)
        failpoints.reach("postgres.commit")
    except BaseException:
        if connection.free and not connection.closed:
            await connection.command("ROLLBACK")
        raise
    await connection.command("COMMIT")
    failpoints.reach("postgres.committed")
    return value


async def run_script(blocks: Blocks, script: Script[T], connection: Connection) -> T:
    """Step a script through on ``connection``, inside whatever transaction is open."""
    steps = script.start()
    with contextlib.closing(steps):
        try:
            step = next(steps)
            while True:
                step = steps.send(await execute(connection, blocks, step))
        except StopIteration as end:
            value: T = end.value
            return value


async def execute(
    connection: Connection, blocks: Blocks, step: Statement, seconds: float = STATEMENT_BUDGET
) -> list[Row]:
    """Run one block and return its rows (none for a statement that returns nothing)."""
    return await connection.fetch(blocks[step.name].statements[0], sql.bind(step.params), seconds)


class _Migrating:
    def __init__(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        self._connection = connection
        self._blocks = BLOCKS

    def define(self, text: str) -> None:
        self._connection.execute(cast("Any", text))

    def run(self, step: Statement) -> list[Row]:
        text, params = self._blocks[step.name].statements[0], sql.bind(step.params)
        cursor = self._connection.execute(cast("Any", text), params)
        return list(cursor.fetchall()) if cursor.description is not None else []


MIGRATION_LOCK = 0x6F75746C697665


def migrate_database(dsn: str, *, include_post: bool = True) -> list[str]:
    """Apply missing migrations in one transaction, one process at a time; returns their names.  Blocks.

    Raises ``StoreUnavailable``.
    """
    try:
        with psycopg.connect(dsn, prepare_threshold=None, row_factory=dict_row, **CONNECT) as connection:
            migrating = _Migrating(connection)
            migrating.run(statement("lock_migrations", lock=MIGRATION_LOCK))
            return migrate.apply(migrating, include_post=include_post)
    except psycopg.OperationalError as failure:
        raise errors.StoreUnavailable(
            "The database cannot be reached.", hint="Start it, or correct the database URL."
        ) from failure
