"""A checkpoint database of somebody's own LangGraph service, opened to be looked at or to be worked on.

Decides who may work on a thread there: whoever holds a lock that dies with its process.  In PostgreSQL it is
of the very session that writes, so who has lost the lock cannot write; in SQLite it is on a file beside the
database, and one process at a time works on it.  A look writes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from outlive import errors
from outlive.agents.serde import Faithful
from outlive.store import sql


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A thread, its graph's newest checkpoint, and the newest of it and its subgraphs."""

    thread_id: str
    head: str | None
    newest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """An open checkpoint database: its saver, its threads, and whether this process may work on one."""

    saver: BaseCheckpointSaver[Any]
    heads: tuple[Head, ...] = ()
    held: bool = False


def path_of(url: str) -> str | None:
    """Return the file of a SQLite database; None: it is a server's.  Raises ``Misconfigured``."""
    if url.startswith(("postgresql:", "postgres:")):
        return None
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:") else url
    if "://" in path or not Path(path).is_file():
        raise errors.Misconfigured(
            "There is no checkpoint database there.",
            hint="Give the file of a SQLite database, sqlite:///file, or postgresql://user@host/name.",
        )
    return path


def as_url(url: str) -> str:
    """Return a database's URL, also where only its file was given."""
    path = path_of(url)
    return url if path is None else f"sqlite:///{path}"


async def is_ours(url: str) -> bool:
    """Say whether a database is one of ours: then its runs tell more than its checkpoints do."""
    path = path_of(url)
    if path is None:
        ours: bool = await _postgres().is_ours(url)
        return ours
    async with aiosqlite.connect(f"file:{path}?mode=ro", uri=True) as connection:
        return bool(await connection.execute_fetchall(sql.load(sql.Dialect.SQLITE)["is_ours"].statements[0]))


@contextlib.asynccontextmanager
async def looked_at(url: str) -> AsyncIterator[Opened]:
    """Open a database to read it, and no more; raises ``Misconfigured``, ``StoreUnavailable``."""
    path = path_of(url)
    if path is None:
        async with _postgres().looked_at(url) as (saver, rows):
            if rows is None:
                raise _without_tables()
            yield Opened(saver=saver, heads=tuple(Head(**row) for row in rows))
        return
    async with aiosqlite.connect(f"file:{path}?mode=ro", uri=True) as connection:
        with _no_tables():
            rows = await connection.execute_fetchall(
                sql.load(sql.Dialect.SQLITE)["heads_of_threads"].statements[0]
            )
        yield Opened(saver=_sqlite_saver(connection), heads=tuple(_head(*row) for row in rows))


@contextlib.asynccontextmanager
async def worked_on(url: str, thread: str) -> AsyncIterator[Opened]:
    """Open a database to work on one thread; ``held`` says whether nobody else does."""
    path = path_of(url)
    if path is None:
        async with _postgres().worked_on(url, _token(thread)) as (saver, held):
            yield Opened(saver=saver, held=held)
        return
    with _lock_beside(path) as held:
        async with aiosqlite.connect(path) as connection:
            yield Opened(saver=_sqlite_saver(connection), held=held)


def _sqlite_saver(connection: aiosqlite.Connection) -> AsyncSqliteSaver:
    return AsyncSqliteSaver(connection, serde=Faithful())


@contextlib.contextmanager
def _lock_beside(path: str) -> Iterator[bool]:
    """Hold the lock for as long as this lasts.  The file stays: removing it would let two hold it."""
    opened = os.open(f"{path}.sweep", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(opened)


@contextlib.contextmanager
def _no_tables() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as missing:
        if "no such table" not in str(missing):
            raise errors.StoreUnavailable("The checkpoint database cannot be read.") from missing
        raise _without_tables() from missing


def _without_tables() -> errors.Misconfigured:
    return errors.Misconfigured(
        "That database holds no checkpoints of LangGraph's.", hint="Name the one that the graph's saver uses."
    )


def _head(thread_id: str, head: str | None, newest: str) -> Head:
    return Head(thread_id=thread_id, head=head, newest=newest)


def _postgres() -> Any:
    """By name, so that nobody needs the driver of a database that he does not use."""
    try:
        return importlib.import_module("outlive.torn.foreign_postgres")
    except ImportError as missing:
        raise errors.Misconfigured(
            "PostgreSQL support is not installed.", hint="Run: pip install 'outlive[langgraph,postgres]'"
        ) from missing


def _token(thread: str) -> int:
    return int.from_bytes(hashlib.sha256(f"outlive sweep {thread}".encode()).digest()[:8], "big", signed=True)
