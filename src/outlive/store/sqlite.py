"""Outlive's record in one SQLite file (3.40 or newer, WAL).

All writes go through one thread that owns one connection: whole transactions as plain functions, so a
cancelled request can never leave one open, and whatever waits at that moment shares one commit.  Each piece
of work has a savepoint of its own: one run's failed fence neither fails nor delays another's.  Reads have
threads and connections of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from outlive import errors, seams, signals
from outlive.model import Claim, Renewed, Row
from outlive.store import filesystem, migrate, reader, retry, same_file, sql, writer
from outlive.store.script import Script, Statement, statement
from outlive.store.token_files import TokenFiles
from outlive.store.wakeup import Hub

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]
Blocks = Mapping[str, sql.Block]

BLOCKS = sql.load(sql.Dialect.SQLITE)  # at import: reading a file would block an event loop

POLL_FOREIGN = 0.02
"""Seconds between two looks for commits of other processes."""
POLL_FOLLOWED = 0.004
"""The same while a run is being followed here, perhaps one that another process drives."""
BUSY_BUDGET = 5.0
"""Seconds that a write waits for another process's write; leases must be longer."""


class SqliteStore:
    """A store in one file.  ``path`` may be ``:memory:`` for tests: then reads share the writer thread."""

    dialect = sql.Dialect.SQLITE

    def __init__(
        self,
        path: str | Path,
        *,
        local: seams.Seams = seams.REAL,
        happenings: signals.Signals | None = None,
        readers: int = 2,
    ) -> None:
        self.path = str(path)
        self.hub = Hub()
        self._local = local
        self._signals = happenings or signals.Signals()
        self._blocks = BLOCKS
        self._writer: writer.Writer | None = None
        self._tokens = TokenFiles(self.path)
        self._file = same_file.SameFile(self.path)
        self._readers = readers
        self._reading: reader.Readers | None = None

    # ------------------------------------------------------------ lifetime

    async def open(self) -> None:
        """Open the file, refusing an unsafe file system or another version's schema."""
        try:
            await asyncio.to_thread(self._check)
            loop = asyncio.get_running_loop()
            wake = functools.partial(loop.call_soon_threadsafe, self.hub.wake_all)
            connecting = functools.partial(open_writing, self.path)
            self._writer = writer.Writer(
                connecting, wake, self._file, patience=BUSY_BUDGET, poll=self._poll_foreign
            )
            await self._writer.opened()
        except BaseException as failure:
            await self.close()
            raise _refusal(failure) from failure
        if self.path != ":memory:":
            self._reading = reader.Readers(
                self._readers,
                connect=functools.partial(open_reading, self.path),
                check=self._file.check,  # whoever reads from a file that is gone waits for ever for more
                translate=writer.translated,
            )

    def _check(self) -> None:
        if sqlite3.sqlite_version_info < (3, 40, 0):
            raise errors.Misconfigured(
                f"SQLite {sqlite3.sqlite_version} is too old.", hint="Use a Python with SQLite 3.40 or newer."
            )
        if self.path != ":memory:":
            filesystem.refuse_network(Path(self.path))
        if self.path == ":memory:" or not Path(self.path).exists():
            return
        with contextlib.closing(connect(self.path)) as connection:
            if not _empty(connection, self._blocks):
                migrate.check(migrate.applied(_Migrating(connection)))

    async def close(self) -> None:
        """End the threads; what was queued is still committed."""
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)
            self._writer = None
        if self._reading is not None:
            await asyncio.to_thread(self._reading.stop)
            self._reading = None
        await asyncio.to_thread(self._tokens.release)

    # ------------------------------------------------------------ transactions

    async def write(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run ``script`` on the writer thread; see ``store.Transactions``."""
        return await self._within(script.name, functools.partial(self.in_writer, self._steps(script)), budget)

    async def read(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run a reading ``script`` on a reader thread; see ``store.Transactions``."""
        return await self.read_with(self._steps(script), name=script.name, budget=budget)

    async def write_with(self, work: Work[T], script: Script[Any], *, budget: float = 10.0) -> T:
        """Run ``script``, then ``work`` on the raw connection, in one transaction; see ``in_writer``."""

        def both(connection: sqlite3.Connection) -> T:
            self._steps(script)(connection)
            return work(connection)

        return await self._within(script.name, functools.partial(self.in_writer, both), budget)

    async def read_with(self, work: Work[T], *, name: str, budget: float = 10.0) -> T:
        """Run ``work`` on a reader thread's raw connection, which cannot write."""
        run = self.in_writer if self._reading is None else self._reading.run
        return await self._within(name, functools.partial(run, work), budget)

    async def in_writer(self, work: Work[T], within: float | None = None) -> T:
        """Run ``work`` in one transaction on the writer's connection; it must neither commit nor block."""
        value: T = await self._opened().run(work, within)
        return value

    async def _within(self, name: str, attempt: Callable[[float], Awaitable[T]], budget: float) -> T:
        return await retry.until_within(
            attempt, name=name, budget=budget, local=self._local, happenings=self._signals
        )

    def _steps(self, script: Script[T]) -> Work[T]:
        return functools.partial(run_script, self._blocks, script)

    def _opened(self) -> writer.Writer:
        if self._writer is None:
            raise errors.NotReady("The store is not open.")
        return self._writer

    # ------------------------------------------------------------ leases and liveness

    def renew(self, claims: Sequence[Claim], lease: float) -> list[Renewed]:
        """Renew on the writer thread, which the event loop cannot stall; see ``store.Leases``."""
        step = statement("renew", claims=list(claims), lease_ms=round(lease * 1000))
        try:
            rows: list[Row] = self._opened().run_now(
                lambda connection: execute(connection, self._blocks, step), within=BUSY_BUDGET + 5
            )
        except (retry.Transient, TimeoutError) as failure:
            raise errors.StoreUnavailable("The leases could not be renewed.") from failure
        return [Renewed.from_row(row) for row in rows]

    async def hold_token(self, worker: str) -> None:
        """Hold a lock on a file of this worker's own; see ``store.Liveness``."""
        await asyncio.to_thread(self._tokens.hold, worker)

    async def dead(self, workers: Collection[str]) -> set[str]:
        """Try the others' locks; see ``store.Liveness``."""
        return await asyncio.to_thread(self._tokens.dead, workers)

    def _poll_foreign(self) -> float:
        return POLL_FOLLOWED if self.hub.followed else POLL_FOREIGN

    def announce(self, *topics: str) -> None:
        """Wake local waiters; other processes see the commit itself when they next look for one."""
        self.hub.wake(topics)


def connect(path: str) -> sqlite3.Connection:
    """Open a connection with explicit transactions and rows by name."""
    connection = sqlite3.connect(path, timeout=BUSY_BUDGET, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def open_writing(path: str) -> sqlite3.Connection:
    """Open the connection that writes."""
    connection = connect(path)
    try:
        prepare(connection)
        connection.execute("PRAGMA busy_timeout = 0")  # the writer asks again by itself
    except BaseException:
        connection.close()
        raise
    return connection


def open_reading(path: str) -> sqlite3.Connection:
    """Open a connection that cannot write."""
    connection = connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Set the journal up and create the schema in an empty database."""
    use_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if _empty(connection, BLOCKS):
        migrate_connection(connection)


def use_wal(connection: sqlite3.Connection) -> None:
    """Keep a write-ahead log, so that readers and the writer never wait for each other."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode not in ("wal", "memory"):
        raise errors.UnsafeFileSystem(f"SQLite cannot keep a write-ahead log here; it uses {mode!r}.")


def _refusal(failure: BaseException) -> BaseException:
    """What the caller of ``open`` shall see."""
    if isinstance(writer.translated(failure), retry.Transient):
        return errors.StoreUnavailable(
            f"The SQLite file cannot be opened: {failure}.",
            hint="Check that its directory exists and can be written, and that nobody locks it for long.",
        )
    if isinstance(failure, sqlite3.DatabaseError) and not isinstance(failure, sqlite3.OperationalError):
        return errors.Misconfigured(
            f"The SQLite file cannot be used: {failure}.", hint="Name a file that Outlive made, or a new one."
        )
    return failure


def _empty(connection: sqlite3.Connection, blocks: Blocks) -> bool:
    return not execute(connection, blocks, statement("any_table"))


class _Migrating:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._blocks = BLOCKS

    def define(self, text: str) -> None:
        self._connection.execute(text)

    def run(self, step: Statement) -> list[Row]:
        return execute(self._connection, self._blocks, step)


def migrate_connection(connection: sqlite3.Connection, *, include_post: bool = True) -> list[str]:
    """Apply missing migrations in one transaction; returns their names."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        applied = migrate.apply(_Migrating(connection), include_post=include_post)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return applied


def migrate_file(path: str, *, include_post: bool = True) -> list[str]:
    """Create or migrate a database file; returns the names applied.  Blocks.

    Raises ``UnsafeFileSystem`` for a path whose locks cannot be trusted, and what ``open`` raises for one
    that cannot be opened.
    """
    filesystem.refuse_network(Path(path))
    try:
        with contextlib.closing(connect(path)) as connection:
            use_wal(connection)
            return migrate_connection(connection, include_post=include_post)
    except sqlite3.Error as failure:
        raise _refusal(failure) from failure


def run_script(blocks: Blocks, script: Script[T], connection: sqlite3.Connection) -> T:
    """Step a script through on ``connection``, inside whatever transaction is open."""
    steps = script.start()
    try:
        step = next(steps)
        while True:
            step = steps.send(execute(connection, blocks, step))
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()


def execute(connection: sqlite3.Connection, blocks: Blocks, step: Statement) -> list[Row]:
    """Run one block: its statements in order, stopping where one that returns rows returns none."""
    params = sql.bind(step.params)
    statements = blocks[step.name].statements
    if len(statements) == 1:
        return [dict(row) for row in connection.execute(statements[0], params)]
    merged: dict[str, Any] = {}
    for text in statements:
        cursor = connection.execute(text, params)
        if cursor.description is None:
            continue
        row = cursor.fetchone()
        cursor.close()
        if row is None:
            return []
        merged.update(dict(row))
    return [merged]
