"""Checkpoints in the PostgreSQL database that holds the runs.

LangGraph's synchronous saver is never given a connection to write on.  It runs in a thread and its statements
are recorded, values serialised and all; they are then sent together with the fence, as one statement that
PostgreSQL carries out whole or not at all.  No connection is held while a state is serialised, and a write
costs one round trip.  Reads go through the asynchronous saver, one object per call: a saver serialises its
callers on a lock of its own, so that a shared one would make every run of the process take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import errors as pg_errors
from psycopg.rows import dict_row

from outlive import errors
from outlive.agents import fenced_saver, items_postgres
from outlive.model import Claim, Row
from outlive.store import sql, steps
from outlive.store.script import Script

T = TypeVar("T")
Connection: TypeAlias = psycopg.AsyncConnection[dict[str, Any]]
Work: TypeAlias = Callable[[Connection], Awaitable[T]]

SETUP_LOCK = 0x6F75746C6C67
SETUP_SECONDS = 60.0
MOST_TOGETHER = 16
"""Statements that are sent as one; parsing and planning a longer one would cost more than round trips."""


class RawStore(Protocol):
    """What is needed of a PostgreSQL store."""

    async def write_with(self, work: Work[T], script: Script[Any], *, budget: float = ...) -> T:
        """Run ``work`` and then ``script`` in one transaction."""
        ...

    async def write_alone(
        self, text: str, params: Mapping[str, Any], *, name: str, budget: float = ...
    ) -> list[Row]:
        """Run one writing statement, whose parameters are written ``%(name)s``."""
        ...

    async def read_with(self, work: Work[T], *, name: str, budget: float = ...) -> T:
        """Run ``work`` on a connection in autocommit mode."""
        ...


class PostgresCheckpoints:
    """``Checkpoints`` in ``store``'s own database."""

    def __init__(self, store: RawStore) -> None:
        self._store = store
        self._versions = AsyncPostgresSaver(cast("Any", None))

    async def write(self, call: fenced_saver.Call, serde: SerializerProtocol, claim: Claim) -> Any:
        """Record the call's statements, then execute them with the proof of the claim."""
        recording = _Recording()
        answer = await asyncio.to_thread(_call, recording, call, serde)
        await self._send(recording.kept, claim)
        return answer

    async def _send(self, kept: Sequence[_Kept], claim: Claim) -> None:
        if len(kept) <= MOST_TOGETHER and len({_row_of(*one) for one in kept}) == len(kept):
            await self._send_together(kept, claim)
        else:
            in_order = functools.partial(_in_order, kept)
            await self._store.write_with(in_order, fenced_saver.hold(claim), budget=fenced_saver.WRITE_BUDGET)

    async def _send_together(self, kept: Sequence[_Kept], claim: Claim) -> None:
        """Execute the statements and prove the claim in one statement, which fails whole if it cannot be.

        The proof keeps the run from being taken until the commit, so it does not matter in which order
        PostgreSQL carries out the parts.
        """
        values = itertools.chain.from_iterable(row for _, row in kept)
        params = {f"p{number}": value for number, value in enumerate(values)}
        params.update(fenced_saver.proof(claim).params)
        text = _as_one(*(text for text, _ in kept))
        try:
            await self._store.write_alone(
                text,
                {**params, **fenced_saver.proof(claim).params},
                name=WRITE,
                budget=fenced_saver.WRITE_BUDGET,
            )
        except pg_errors.DivisionByZero as refused:  # by the number of rows that prove it
            raise errors.Fenced(steps.LATE, run_id=claim.run_id) from refused

    async def read(self, call: fenced_saver.Call, serde: SerializerProtocol) -> Any:
        """Make the call on a pooled connection."""

        async def work(connection: Connection) -> Any:
            return await fenced_saver.acall(AsyncPostgresSaver(connection, serde=serde), call)

        return await self._store.read_with(work, name=f"checkpoint_{call.name}")

    def next_version(self, current: Any) -> Any:
        """Return the version that follows ``current``, as ``AsyncPostgresSaver`` counts."""
        return self._versions.get_next_version(current, None)


# ---------------------------------------------------------------- writing

_Kept: TypeAlias = tuple[str, Sequence[Any]]
WRITE = "write_checkpoint"
_UPSERT = re.compile(r"\s*INSERT INTO \w+ \(([\w, ]+)\)\s*VALUES \([%s, ]+\)\s*ON CONFLICT \(([\w, ]+)\)")


def _call(recording: _Recording, call: fenced_saver.Call, serde: SerializerProtocol) -> Any:
    return getattr(PostgresSaver(recording, serde=serde), call.name)(*call.args, **call.kwargs)


class _Recording(psycopg.Connection[dict[str, Any]]):
    """Stands for a connection, its cursor and its pipeline; keeps statements instead of executing them."""

    def __init__(self) -> None:
        # Not the real connection's: there is none.
        self.kept: list[_Kept] = []

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[Any]:
        yield self

    @contextlib.contextmanager
    def transaction(self, *_: Any, **__: Any) -> Iterator[Any]:
        yield self

    @contextlib.contextmanager
    def cursor(self, *_: Any, **__: Any) -> Iterator[Any]:  # type: ignore[override]
        yield self

    def execute(self, query: Any, params: Any = (), **_: Any) -> Any:
        self.kept.append((query, params))

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], **_: Any) -> None:
        self.kept.extend((query, row) for row in rows)


@functools.lru_cache(maxsize=256)
def _as_one(*texts: str) -> str:
    """Put statements in front of the proof; there are few shapes, and PostgreSQL prepares each of them."""
    names = itertools.count()
    parts = []
    for number, text in enumerate(texts):
        first, *rest = text.strip().rstrip(";").split("%s")
        parts.append(f"part{number} AS ({first}{''.join(f'%(p{next(names)})s{piece}' for piece in rest)})")
    proof = sql.load(sql.Dialect.POSTGRESQL)["check_fence"].statements[0]
    written = f"WITH {', '.join(parts)} " if parts else ""
    return f"{written}SELECT 1 / count(*) AS proven FROM ({proof}) AS held"  # noqa: S608 - no value is in it


def _row_of(text: str, params: Sequence[Any]) -> tuple[Any, ...]:
    """Which row a statement writes.  Of two that write the same one only their order tells which wins, and
    the parts of one statement have no order.
    """
    return (text, *(params[number] for number in _key_of(text)))


@functools.lru_cache(maxsize=64)
def _key_of(text: str) -> tuple[int, ...]:
    """The places of the key's columns; none, so that no two rows may go together, if it cannot be read."""
    found = _UPSERT.match(text)
    if found is None:
        return ()
    columns, key = ([name.strip() for name in found[part].split(",")] for part in (1, 2))
    return tuple(columns.index(name) for name in key)


async def _in_order(kept: Sequence[_Kept], connection: Connection) -> None:
    async with connection.cursor() as cursor:
        for text, rows in itertools.groupby(kept, key=lambda one: one[0]):
            await cursor.executemany(cast("Any", text), [params for _, params in rows])


# ---------------------------------------------------------------- tables


async def check_postgres(store: RawStore) -> None:
    """Raise ``SchemaMismatch`` unless the saver's tables are as new as the installed saver."""
    newest = len(AsyncPostgresSaver.MIGRATIONS) - 1
    if await store.read_with(_version, name="checkpoint_version") < newest:
        raise errors.SchemaMismatch("The database lacks LangGraph's checkpoint tables, or has old ones.")


async def _version(connection: Connection) -> int:
    found = await connection.execute("SELECT to_regclass('checkpoint_migrations') IS NOT NULL AS there")
    if not (row := await found.fetchone()) or not row["there"]:
        return -1
    found = await connection.execute("SELECT coalesce(max(v), -1) AS v FROM checkpoint_migrations")
    row = await found.fetchone()
    return int(row["v"]) if row else -1


def setup_postgres(dsn: str) -> None:
    """Create or update the tables of checkpoints and items, one process at a time.  Blocks; repeatable.

    ``dsn`` must not lead through a transaction pooler.  Raises ``StoreUnavailable``.
    """
    try:
        with psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None, connect_timeout=5
        ) as connection:
            _await_turn(connection)
            PostgresSaver(connection).setup()
            items_postgres.set_up(connection)
    except psycopg.OperationalError as failure:
        raise errors.StoreUnavailable(
            "The database cannot be reached.", hint="Start it, or correct the database URL."
        ) from failure


def _await_turn(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Take a lock that ends with the connection.

    Asked for again and again instead of waited for: a waiting statement holds a snapshot, and the saver's
    indexes are built concurrently, which waits for every snapshot. The two would wait for each other.
    """
    ask = sql.load(sql.Dialect.POSTGRESQL)["hold_token"].statements[0]
    give_up = time.monotonic() + SETUP_SECONDS
    while True:
        row = connection.execute(cast("Any", ask), {"token": SETUP_LOCK}).fetchone()
        if row and row["held"]:
            return
        if time.monotonic() > give_up:
            raise errors.StoreUnavailable("Another process has been setting the checkpoint tables up.")
        time.sleep(0.1)
