"""A PostgreSQL connection that sends one statement and gives back its rows, at little cost.

Decides how a statement travels: which are prepared, how parameters are written, who waits for the answer, and
what becomes of a connection whose answer does not come.  A driver's cursor does more for every statement than
those of this package need; it still serves whoever asks for one.

A statement that was sent is not torn by the end of whoever waits for it: its answer is read, and only then is
the connection free for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import adapt, pq
from psycopg import errors as pg_errors
from psycopg.rows import dict_row

from outlive.model import Row

CONNECT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "client_encoding": "utf8",
}
STATEMENT_BUDGET = 10.0
"""Seconds that one try of a transaction may take before its connection is given up."""
PREPARE_AFTER = 4
"""Uses after which a connection prepares a statement: to do so for fewer costs more than it saves."""
MOST_PREPARED = 100
CANCEL_SECONDS = 5.0
_BOOL, _BYTEA, _INT8, _NUMERIC = 16, 17, 20, 1700
_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement as PostgreSQL reads it, and the names of its parameters in order."""

    sql: bytes
    names: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> _Text:
    places: dict[str, int] = {}

    def placed(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        return f"${places.setdefault(found[1], len(places) + 1)}"

    return _Text(_PARAMETER.sub(placed, text).encode(), tuple(places))


@dataclass(slots=True)
class _Known:
    """What a connection knows of a statement that it has sent before."""

    uses: int = 0
    name: bytes | None = None
    columns: Sequence[str] = ()


class Connection(psycopg.AsyncConnection[dict[str, Any]]):
    """One connection, for one statement at a time: ``fetch`` and ``command`` only while it is ``free``."""

    prepares = False
    """Whether a statement that comes again and again is prepared; never behind a transaction pooler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.free = True
        self.when_free: Callable[[], object] | None = None
        self.taken_at = 0.0
        self._loading = adapt.Transformer(self)
        self._statements: dict[str, _Known] = {}
        self._named = 0
        self._loop = asyncio.get_running_loop()
        self._known = _Known()
        self._answer: asyncio.Future[list[Row]] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._next: Callable[[], None] | None = None
        self._result: pq.abc.PGresult | None = None
        self._socket: int | None = None
        self._flushing = False
        self._hanging_up: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ asking

    async def fetch(
        self, text: str, params: Mapping[str, Any], seconds: float = STATEMENT_BUDGET
    ) -> list[Row]:
        """Send a statement, whose parameters are written ``%(name)s``, and return its rows.

        After ``seconds`` it is cancelled, the connection closed and ``TimeoutError`` raised.  Otherwise
        raises ``psycopg.Error``.
        """
        compiled = _compiled(text)
        values, oids, formats = self._dump([params[name] for name in compiled.names])
        known = self._statements.get(text)
        if known is None:
            known = self._statements[text] = _Known()
        known.uses += 1
        send: Callable[[], None]
        if _NUMERIC in oids:  # too large for how the statement may have been prepared
            send = functools.partial(self.pgconn.send_query_params, compiled.sql, values, oids, formats)
        elif known.name is not None:
            send = functools.partial(self.pgconn.send_query_prepared, known.name, values, formats)
        elif self.prepares and known.uses >= PREPARE_AFTER and self._named < MOST_PREPARED:
            self._named += 1
            name = b"outlive%d" % self._named
            self._next = functools.partial(self._send_prepared, known, name, values, formats)
            send = functools.partial(self.pgconn.send_prepare, name, compiled.sql, oids)
        else:
            send = functools.partial(self.pgconn.send_query_params, compiled.sql, values, oids, formats)
        return await self._ask(known, send, seconds)

    async def command(self, text: str, seconds: float = STATEMENT_BUDGET) -> None:
        """Send a command that has neither parameters nor rows; raises as ``fetch`` does."""
        await self._ask(_Known(), functools.partial(self.pgconn.send_query, text.encode()), seconds)

    def _dump(self, values: Sequence[Any]) -> tuple[list[bytes | None], list[int], list[int]]:
        dumped = [self._dump_one(value) for value in values]
        return [one[0] for one in dumped], [one[1] for one in dumped], [one[2] for one in dumped]

    def _dump_one(self, value: Any) -> tuple[bytes | None, int, int]:
        """How a value travels; what PostgreSQL can tell from its place has no type of its own."""
        if value is None:
            return None, 0, _TEXT
        kind = type(value)
        if kind is str:
            if "\0" in value:  # it would end there, and nobody would know
                raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
            return value.encode(), 0, _TEXT
        if kind is int:
            return b"%d" % value, _INT8 if -(2**63) <= value < 2**63 else _NUMERIC, _TEXT
        if kind is bool:
            return (b"t" if value else b"f"), _BOOL, _TEXT
        if kind is bytes:
            return value, _BYTEA, _BINARY
        dumper = self._loading.get_dumper(value, adapt.PyFormat.TEXT)
        dumped = dumper.dump(value)
        return None if dumped is None else bytes(dumped), dumper.oid, _TEXT

    def _send_prepared(
        self, known: _Known, name: bytes, values: list[bytes | None], formats: list[int]
    ) -> None:
        known.name = name
        self.pgconn.send_query_prepared(name, values, formats)

    # ------------------------------------------------------------ one statement under way

    async def _ask(self, known: _Known, send: Callable[[], None], seconds: float) -> list[Row]:
        if not self.free:
            raise psycopg.InterfaceError("the connection is not free")
        answer = self._answer = self._loop.create_future()
        self._known, self._result, self.free = known, None, False
        try:
            send()
            self._socket = self.pgconn.socket
            self._loop.add_reader(self._socket, self._readable)
            self._flush()
        except psycopg.Error as failure:
            self._end(failure)
        else:
            self._timer = self._loop.call_later(seconds, self._late)
        rows: list[Row] = await answer
        return rows

    def _flush(self) -> None:
        """Send what has not been sent yet; a long one goes out in parts, as the server reads it."""
        waits = bool(self.pgconn.flush())
        if waits and not self._flushing:
            self._loop.add_writer(self.pgconn.socket, self._readable)
        elif self._flushing and not waits:
            self._loop.remove_writer(self.pgconn.socket)
        self._flushing = waits

    def _readable(self) -> None:
        if self._socket is None:  # told of once more, in the turn in which it ended
            return
        pgconn = self.pgconn
        try:
            pgconn.consume_input()
            if self._flushing:
                self._flush()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    self._result = result
                elif self._next is None or self._failed():
                    self._end(None)
                    return
                else:
                    send, self._next = self._next, None
                    send()
                    self._flush()
        except Exception as failure:  # in a callback: whoever waits would wait in vain
            self._end(failure)

    def _failed(self) -> bool:
        return self._result is not None and self._result.status == pq.ExecStatus.FATAL_ERROR

    def _end(self, failure: Exception | None) -> None:
        """Tell whoever still waits, and be free."""
        self._detach()
        answer = self._answer
        if not answer.done():
            try:
                answer.set_result(self._rows() if failure is None else _raised(failure))
            except Exception as raised:
                answer.set_exception(raised)
        self._be_free()

    def _rows(self) -> list[Row]:
        result, self._result = self._result, None
        if result is None:
            raise psycopg.OperationalError("the server answered nothing")
        if result.status == pq.ExecStatus.TUPLES_OK:
            known = self._known
            if not known.columns:
                known.columns = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
            self._loading.set_pgresult(result)
            rows = self._loading.load_rows(0, result.ntuples, tuple)
            return [dict(zip(known.columns, row, strict=True)) for row in rows]
        if result.status == pq.ExecStatus.COMMAND_OK:
            return []
        raise pg_errors.error_from_result(result)

    def _detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = None
        number, self._socket = self._socket, None
        flushing, self._flushing = self._flushing, False
        if number is None:
            return
        # By the number, also when the connection is lost and closed: it may soon be another's. Where the loop
        # refuses, it watches for us no more; raised here, that would keep from whoever waits that it is over.
        with contextlib.suppress(OSError, RuntimeError):
            self._loop.remove_reader(number)
        if flushing:
            with contextlib.suppress(OSError, RuntimeError):
                self._loop.remove_writer(number)

    def _be_free(self) -> None:
        self.free = True
        told, self.when_free = self.when_free, None
        if told is not None:
            told()

    # ------------------------------------------------------------ giving up

    async def close(self) -> None:
        """Close; whoever waits for a statement still under way is told that its outcome is not known."""
        if not self.free and self._hanging_up is None:
            # Before the socket is closed: the loop would go on watching its number, which is soon another
            # connection's, and that one would then seem to be lost.
            self._end(psycopg.OperationalError("the connection was closed before the server answered"))
        await super().close()

    def _late(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(TimeoutError("the database did not answer"))
        self.give_up()

    def give_up(self) -> None:
        """Cancel the statement under way and close; nothing is known of its outcome."""
        if self.free or self._hanging_up is not None:
            return
        self._detach()
        self._hanging_up = self._loop.create_task(self._hang_up())

    async def _hang_up(self) -> None:
        try:
            await self.cancel_safe(timeout=CANCEL_SECONDS)
        except psycopg.Error:
            pass  # a server that cannot be told finds out when it next writes
        finally:
            self.pgconn.finish()
            self._be_free()


def _raised(failure: Exception) -> list[Row]:
    raise failure


async def connect(dsn: str) -> Connection:
    """Open a connection of our own in autocommit mode, with time-outs."""
    return await Connection.connect(
        dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None, **CONNECT
    )
