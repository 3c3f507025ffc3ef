"""Checkpoints in the SQLite file that holds the runs.

LangGraph's synchronous saver is never given a connection to write on.  It runs in a thread and its statements
are recorded, values serialised and all; the store's writer thread then executes them under the fence, in one
transaction.  A state that is slow to serialise, or a serialiser that hangs, thus holds up nobody's events and
nobody's lease.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from outlive.agents import fenced_saver
from outlive.agents.serde import Faithful
from outlive.model import Claim
from outlive.store.script import Script

T = TypeVar("T")

LIGHT_BYTES = 16 * 1024
"""About how much is serialised on the event loop: some tens of microseconds of it."""
_SERIALISED = {"put": (1, 2), "put_writes": (1,)}
"""Which arguments of a saver's method are."""
_PLAIN = (JsonPlusSerializer, Faithful)
_TEXTS = frozenset({str, bytes})
_MAPPINGS = frozenset({dict, defaultdict})
_SIZED = _TEXTS | _MAPPINGS | {list, tuple, deque}
_NUMBERS = frozenset({int, float, bool, type(None)})


class RawStore(Protocol):
    """What is needed of a SQLite store."""

    async def write_with(
        self, work: Callable[[sqlite3.Connection], T], script: Script[Any], *, budget: float = ...
    ) -> T:
        """Run ``script`` and ``work`` in one transaction."""
        ...

    async def read_with(
        self, work: Callable[[sqlite3.Connection], T], *, name: str, budget: float = ...
    ) -> T:
        """Run ``work`` on a reading connection."""
        ...


class SqliteCheckpoints:
    """``Checkpoints`` in ``store``'s own file."""

    def __init__(self, store: RawStore) -> None:
        self._store = store
        self._versions = _saver(_Recording())

    async def write(self, call: fenced_saver.Call, serde: SerializerProtocol, claim: Claim) -> Any:
        """Record the call's statements, then execute them with the fence."""
        recording = _Recording()
        if _is_light(call, serde):
            answer = _call(recording, call, serde)
        else:
            answer = await asyncio.to_thread(_call, recording, call, serde)
        await self._store.write_with(
            recording.replay, fenced_saver.hold(claim), budget=fenced_saver.WRITE_BUDGET
        )
        return answer

    async def read(self, call: fenced_saver.Call, serde: SerializerProtocol) -> Any:
        """Make the call on a reader thread."""
        return await self._store.read_with(
            functools.partial(_read, call, serde), name=f"checkpoint_{call.name}"
        )

    def next_version(self, current: Any) -> Any:
        """Return the version that follows ``current``, as ``SqliteSaver`` counts."""
        return self._versions.get_next_version(current, None)


def setup_sqlite(connection: sqlite3.Connection) -> None:
    """Create or update the saver's tables, in the transaction that is open, if any.  Blocks; repeatable."""
    SqliteSaver(cast("sqlite3.Connection", _Guest(connection))).setup()


def _saver(connection: Any, serde: SerializerProtocol | None = None) -> SqliteSaver:
    saver = SqliteSaver(connection, serde=serde)
    saver.is_setup = True  # ``setup_sqlite`` did it: data definition has no place among a run's writes
    return saver


def _call(connection: Any, call: fenced_saver.Call, serde: SerializerProtocol) -> Any:
    return getattr(_saver(connection, serde), call.name)(*call.args, **call.kwargs)


def _is_light(call: fenced_saver.Call, serde: SerializerProtocol) -> bool:
    """Say whether a call's values are so few, small and plain that a thread would cost more than they do.

    No code of anybody else's runs while they are serialised, so nothing can hang or be slow.
    """
    if type(serde) not in _PLAIN or call.name not in _SERIALISED:
        return False
    waiting: list[Any] = [call.args[at] for at in _SERIALISED[call.name]]
    left = LIGHT_BYTES
    while waiting and left > 0:
        value = waiting.pop()
        kind = type(value)
        if kind in _NUMBERS:
            continue
        if kind not in _SIZED:
            return False
        left -= 32 + (len(value) if kind in _TEXTS else 32 * len(value))
        if left > 0 and kind not in _TEXTS:
            waiting.extend(value)
            if kind in _MAPPINGS:
                waiting.extend(value.values())
    return left > 0


def _read(call: fenced_saver.Call, serde: SerializerProtocol, connection: sqlite3.Connection) -> Any:
    answer = _call(_Guest(connection), call, serde)
    return list(answer) if call.name == "list" else answer


class _Recording:
    """Stands for a connection and its cursor; keeps statements instead of executing them."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, list[Sequence[Any]]]] = []

    def cursor(self) -> _Recording:
        return self

    def execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        self._kept.append((sql, [params]))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._kept.append((sql, list(rows)))

    def commit(self) -> None:
        """Nothing: the writer thread commits."""

    def close(self) -> None:
        """Nothing: the recording outlives its cursor."""

    def replay(self, connection: sqlite3.Connection) -> None:
        for sql, rows in self._kept:
            connection.executemany(sql, rows)


class _Guest:
    """A connection lent to a saver: rows are plain tuples, and transactions are not the saver's to end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor

    def execute(self, sql: str) -> sqlite3.Cursor:
        return self._connection.execute(sql)

    def executescript(self, sql: str) -> None:
        # The real one would commit first; and a journal mode cannot be changed inside a transaction.
        for part in sql.split(";"):
            if part.strip() and not part.lstrip().upper().startswith("PRAGMA"):
                self._connection.execute(part)

    def commit(self) -> None:
        """Nothing: whoever lent the connection commits."""
