"""Appends of a process's runs to PostgreSQL, as many as come together in one statement.

Decides what travels together: whatever came while a statement for several was under way, or in one turn of
the event loop.  Such a statement waits for no lock, and what it leaves out is appended alone and learns there
why; one that is alone may wait for its own run's locks, and nobody waits for it.  So no run's trouble is
another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from outlive.model import Row
from outlive.store.script import Statement, statement

MOST_TOGETHER = 64
FEW = 4
"""Events of an append that is worth sharing a commit: more are better stored beside the others, by a server
process of their own."""
Send = Callable[[Statement, float], Awaitable[list[Row]]]


@dataclass(eq=False, slots=True)
class _Append:
    """One that waits; its answer is None if it is to be made alone."""

    step: Statement
    seconds: float
    answer: asyncio.Future[list[Row] | None]

    def as_row(self) -> tuple[Any, ...]:
        asked = self.step.params
        names = ("run_id", "thread_id", "epoch", "claim_token", "expected", "lease_ms")
        events = [(event.kind.value, event.mode, event.payload) for event in asked["events"]]
        return (*(asked[name] for name in names), events)

    def tell(self, rows: list[Row] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(rows)


class Appends:
    """The appends of one process that are under way, and those that wait."""

    def __init__(self, send: Send) -> None:
        self.together: asyncio.Task[None] | None = None
        self._send = send
        self._waiting: list[_Append] = []
        self._alone = 0

    async def run(self, step: Statement, seconds: float) -> list[Row]:
        """Append; returns the rows of ``step``, whose block is ``append``.  Raises ``psycopg.Error``."""
        others = self._alone or self._waiting or self.together
        if others and step.params["count"] <= FEW:
            rows = await self._with_others(step, seconds)
            if rows is not None:
                return rows
        self._alone += 1
        try:
            return await self._send(step, seconds)
        finally:
            self._alone -= 1

    async def _with_others(self, step: Statement, seconds: float) -> list[Row] | None:
        loop = asyncio.get_running_loop()
        asked = _Append(step, seconds, loop.create_future())
        self._waiting.append(asked)
        if self.together is None and len(self._waiting) == 1:
            loop.call_soon(self._go)
        async with asyncio.timeout(seconds):
            return await asked.answer

    def _go(self) -> None:
        """Send what waits.  Called in a turn of its own, after whoever has an append ready in this one."""
        self._waiting = [asked for asked in self._waiting if not asked.answer.done()]
        if self.together is not None or not self._waiting:
            return
        taken, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        if len(taken) == 1:
            taken[0].tell(None)
        else:
            self.together = asyncio.get_running_loop().create_task(self._send_together(taken))
            self.together.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self.together = None
        asyncio.get_running_loop().call_soon(self._go)

    async def _send_together(self, taken: list[_Append]) -> None:
        together = statement("append_many", batches=[asked.as_row() for asked in taken])
        try:
            rows = await self._send(together, max(asked.seconds for asked in taken))
        except (psycopg.DataError, UnicodeEncodeError):
            rows = []  # somebody's value cannot be stored: each finds out alone
        except Exception as failure:  # nobody else would tell those who wait
            for asked in taken:
                if not asked.answer.done():
                    asked.answer.set_exception(failure)
            return
        written = {row["n"]: row for row in rows}
        for number, asked in enumerate(taken, 1):
            asked.tell([written[number]] if number in written else None)
