"""The thread that owns the only writing connection of a SQLite file.

Decides what shares a commit and who hears of its failure.  A piece of work is a plain function over the
connection: it begins and ends between two turns of the thread, so no caller's cancellation can tear it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from outlive import errors, failpoints
from outlive.store import retry, same_file
from outlive.store.handoff import Job, Work, deliver

MOST_PER_COMMIT = 64
ASK_AGAIN = 0.001
"""Seconds between two requests for the write lock."""
_CURABLE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)


class Writer:
    """Runs jobs in order, as many as wait at one moment in one commit."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        on_foreign_commit: Callable[[], Any],
        file: same_file.SameFile,
        patience: float,
        poll: Callable[[], float],
    ) -> None:
        """``patience``: seconds to wait for another process's write; the connection itself must not wait.

        ``poll`` gives the seconds until the next look for commits of other processes.
        """
        self._connect = connect
        self._file = file
        self._patience = patience
        self._poll = poll
        self._on_foreign_commit = on_foreign_commit
        self._connection: sqlite3.Connection | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="outlive-write", daemon=True)
        self._version = 0
        self._looked = 0.0
        self._closing = threading.Lock()
        self._closed = False

    async def opened(self) -> None:
        """Start the thread; raises what kept it from opening the database."""
        self._thread.start()
        await asyncio.wrap_future(self._ready)

    async def run(self, work: Work, within: float | None = None) -> Any:
        """Queue ``work`` and await its commit, for ``within`` seconds; see ``Job.ended``.

        Raises ``NotReady`` once the writer is stopped.
        """
        return await self._put(Job.of_loop(work)).ended(within)

    def run_now(self, work: Work, within: float) -> Any:
        """Like ``run`` from another thread, for at most so many seconds; then raises ``TimeoutError``."""
        return self._put(Job.of_thread(work)).future.result(within)

    def _put(self, job: Job) -> Job:
        with self._closing:
            if self._closed:
                raise errors.NotReady("The store is closed.")
            self._jobs.put(job)
        return job

    def stop(self) -> None:
        """Commit what is queued and end the thread.  Blocks; may be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            self._connection = self._connect()
            self._file.check()
        except BaseException as failure:
            self._ready.set_exception(failure)
            return
        self._ready.set_result(None)
        while self._turn():
            pass
        self._drop()

    def _turn(self) -> bool:
        batch, more = self._next_batch()
        if batch:
            self._commit(batch)
            deliver(batch)
            batch.clear()  # else what it holds would stay until there is something else to write
        if time.monotonic() - self._looked >= self._poll():
            self._look_for_foreign_commits()
        return more

    def _next_batch(self) -> tuple[list[Job], bool]:
        batch: list[Job] = []
        try:
            job = self._jobs.get(timeout=self._poll())
            while job is not None:
                batch.append(job)
                if len(batch) == MOST_PER_COMMIT:
                    return batch, True
                job = self._jobs.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, batch: list[Job]) -> None:
        try:
            if self._connection is None:
                self._file.check()  # else a new, empty file would be made where the database was
                self._connection = self._connect()
            commit_together(self._connection, batch, self._patience)
            self._check_file(batch)
        except BaseException as failure:
            # Neither begun nor rolled back: only a new connection is known to hold no transaction.  If this
            # thread died of it instead, every later write would wait for ever.
            for job in batch:
                job.error = job.error or translated(failure)
            self._drop()

    def _check_file(self, batch: list[Job]) -> None:
        """After the commit and before anyone hears of it: a file that is gone keeps nothing.

        What a job failed of meanwhile says nothing either: it may have met the tables of another file.
        """
        try:
            self._file.check()
            self._file.check_log()
        except (retry.Transient, OSError) as failure:
            for job in batch:
                job.error = translated(failure)

    def _drop(self) -> None:
        self._file.let_go()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _look_for_foreign_commits(self) -> None:
        self._looked = time.monotonic()
        if self._connection is None:
            return
        try:
            # On the writer's own connection this number moves only when somebody else commits.
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return  # a hint, looked for again at the next turn
        if version != self._version:
            self._version = version
            with contextlib.suppress(RuntimeError):  # the loop is closed; nobody waits any more
                self._on_foreign_commit()


def commit_together(connection: sqlite3.Connection, batch: list[Job], patience: float) -> None:
    """Run a batch in one transaction, a savepoint per job; a failing commit fails all of them."""
    try:
        begin(connection, patience)
        if len(batch) == 1:
            batch[0].run(connection)
        else:
            for job in batch:
                _in_savepoint(connection, job)
        failpoints.reach("sqlite.commit")
        connection.execute("COMMIT")
        failpoints.reach("sqlite.committed")
    except BaseException as failure:
        for job in batch:
            job.error = translated(failure)
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def begin(connection: sqlite3.Connection, patience: float) -> None:
    """Take the write lock, asking every millisecond for ``patience`` seconds.

    SQLite's own waiting backs off to a tenth of a second: a process that writes all the time then starves
    the others for seconds on end.
    """
    give_up = time.monotonic() + patience
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as busy:
            if busy.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                raise
            time.sleep(ASK_AGAIN * (0.5 + random.random()))  # not in step with the others
        else:
            return


def _in_savepoint(connection: sqlite3.Connection, job: Job) -> None:
    connection.execute("SAVEPOINT job")
    try:
        job.run(connection)
    except BaseException as failure:
        if not connection.in_transaction:
            raise  # the database rolled everything back by itself: disk full, I/O error
        connection.execute("ROLLBACK TO job")
        job.error = translated(failure)
    connection.execute("RELEASE job")


def translated(failure: BaseException) -> BaseException:
    """Return what the caller shall see of ``failure``: ``Transient`` only if a repeat may cure it."""
    code = getattr(failure, "sqlite_errorcode", 0)
    # A unique index that refuses is a race that was lost, as in PostgreSQL: the repeat finds the winner.
    curable = code & 0xFF in _CURABLE or code == sqlite3.SQLITE_CONSTRAINT_UNIQUE
    if isinstance(failure, sqlite3.Error) and curable:
        transient = retry.Transient(str(failure))
        transient.__cause__ = failure
        return transient
    if isinstance(failure, OSError):
        return retry.Transient(str(failure))
    if isinstance(failure, UnicodeEncodeError):
        return errors.InvalidInput("A text holds a lone surrogate, which no database can store.")
    return failure
