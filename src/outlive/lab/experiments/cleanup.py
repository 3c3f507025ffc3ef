"""Injected failures at the boundaries where a run ends: what must hold, done carelessly and with care."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass

import anyio

from outlive.lab.experiment import Bench, Experiment, Measured


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A failure, what must hold afterwards, and whether it held. `care` chooses the way that it was done."""

    where: str
    must_hold: str
    holds: Callable[[Ledger, bool], bool]


class Ledger:
    """The record of one run, in a file, read back through a connection of its own."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        with self._open() as connection:
            connection.execute(
                "CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT, epoch INTEGER, partial TEXT)"
            )
            connection.execute("INSERT INTO runs VALUES ('r', 'running', 1, '')")

    def write(self, sql: str, *values: object) -> int:
        """Commit one statement; returns how many rows it changed."""
        with self._open() as connection:
            return connection.execute(sql, values).rowcount

    def state(self) -> str:
        with self._open() as connection:
            return str(connection.execute("SELECT state FROM runs").fetchone()[0])

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
            yield connection


END = "UPDATE runs SET state = ? WHERE id = 'r'"
END_ONCE = "UPDATE runs SET state = ? WHERE id = 'r' AND state = 'running'"
END_FENCED = "UPDATE runs SET state = ? WHERE id = 'r' AND state = 'running' AND epoch = ?"


def _closed_outside(ledger: Ledger, care: bool) -> bool:
    """Close the outer generator after its first item and look whether the inner one is closed."""
    del ledger
    closed: list[str] = []

    async def inner() -> AsyncGenerator[str, None]:
        try:
            yield "item"
            await asyncio.Event().wait()
        finally:
            closed.append("inner")

    async def check() -> bool:
        source = inner()  # somebody else holds it as well, as an SDK's client does
        outer = _relay(source, care=care)
        await anext(outer)
        await outer.aclose()
        told = closed == ["inner"]
        await source.aclose()
        return told

    return asyncio.run(check())


async def _relay(source: AsyncGenerator[str, None], *, care: bool) -> AsyncGenerator[str, None]:
    if not care:
        async for item in source:
            yield item
        return
    async with contextlib.aclosing(source) as items:
        async for item in items:
            yield item


def _cancelled_while_waiting(ledger: Ledger, care: bool) -> bool:
    """Cancel the run while it waits; the cancellation must arrive above and an end must be on record."""

    async def careless() -> None:
        try:
            await asyncio.Event().wait()
        except Exception:
            ledger.write(END, "failed")
            raise
        ledger.write(END, "succeeded")

    async def careful() -> None:
        state = "stopped"
        try:
            await asyncio.Event().wait()
            state = "succeeded"
        finally:
            ledger.write(END_ONCE, state)

    async def check() -> bool:
        task = asyncio.create_task(careful() if care else careless())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return task.cancelled()

    return asyncio.run(check()) and ledger.state() == "stopped"


def _await_in_the_cleanup(ledger: Ledger, care: bool) -> bool:
    """Cancel a scope around a run whose clean-up awaits."""

    async def save() -> None:
        await asyncio.sleep(0.005)
        ledger.write(END_ONCE, "stopped")

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if care:
                with anyio.move_on_after(5, shield=True):
                    await save()
            else:
                await save()

    async def check() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await asyncio.sleep(0)
            group.cancel_scope.cancel()

    asyncio.run(check())
    return ledger.state() == "stopped"


def _told_before_committed(ledger: Ledger, care: bool) -> bool:
    """The process ends between the two: what the client was told must be what is on record."""
    body = (
        "import os, sqlite3, sys\n"
        "path, care = sys.argv[1], sys.argv[2] == 'True'\n"
        "def tell(): print('done', flush=True)\n"
        "def commit():\n"
        "    with sqlite3.connect(path) as c: c.execute(\"UPDATE runs SET state = 'succeeded'\")\n"
        "(commit if care else tell)()\n"
        "os._exit(1)\n"  # here the process ends, before the other one
    )
    told = subprocess.run(
        [sys.executable, "-c", body, str(ledger.path), str(care)], capture_output=True, check=False
    ).stdout
    return not told or ledger.state() == "succeeded"


def _cleaned_up_after_success(ledger: Ledger, care: bool) -> bool:
    """The response object is cleaned up after all went well: success must stay success."""
    ledger.write(END_ONCE, "succeeded")
    ledger.write(END_ONCE if care else END, "stopped")
    return ledger.state() == "succeeded"


def _end_cannot_be_written(ledger: Ledger, care: bool) -> bool:
    """Another process holds the database: no success may be pretended, and the run must be found later."""
    told: list[str] = []
    with contextlib.closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with contextlib.closing(sqlite3.connect(ledger.path, timeout=0)) as mine:
            try:
                mine.execute(END_ONCE, ("succeeded",))
                told.append("done")
            except sqlite3.OperationalError:
                if not care:
                    told.append("done")  # it was only a log line
        other.execute("ROLLBACK")
    return not told and ledger.state() == "running"


def _late_worker(ledger: Ledger, care: bool) -> bool:
    """A worker returns after its run was claimed again: it must not write the end."""
    ledger.write("UPDATE runs SET epoch = 2 WHERE id = 'r'")
    written = ledger.write(END_FENCED, "failed", 1) if care else ledger.write(END, "failed")
    return written == 0 and ledger.state() == "running"


def _told_twice(ledger: Ledger, care: bool) -> bool:
    """The receiver got a notification and the mark was lost: the second must be known as the same."""
    ledger.write("CREATE TABLE outbox (id TEXT, marked INTEGER)")
    ledger.write("INSERT INTO outbox VALUES ('r/end', 0)")
    body = (
        "import os, sqlite3, sys, uuid\n"
        "path, care, last = sys.argv[1], sys.argv[2] == 'True', sys.argv[3] == 'True'\n"
        "with sqlite3.connect(path) as c:\n"
        "    (id,) = c.execute('SELECT id FROM outbox WHERE marked = 0').fetchone()\n"
        "print(id if care else uuid.uuid4(), flush=True)\n"  # the careless one names each delivery anew
        "if not last: os._exit(1)\n"  # delivered, and the mark is lost
        "with sqlite3.connect(path) as c: c.execute('UPDATE outbox SET marked = 1')\n"
    )
    command = [sys.executable, "-c", body, str(ledger.path), str(care)]
    received = {
        subprocess.run([*command, str(last)], capture_output=True, check=False).stdout
        for last in (False, True)
    }
    return len(received) == 1 and ledger.write("DELETE FROM outbox WHERE marked = 1") == 1


def _killed(ledger: Ledger, care: bool) -> bool:
    """Kill the process in the middle of its run: somebody must find that there is work left."""
    ledger.write("DELETE FROM runs")
    body = (
        "import sqlite3, sys, time\n"
        "path, care = sys.argv[1:]\n"
        "running = {'r'}\n"  # the careless one knows its run only here
        "with sqlite3.connect(path) as c:\n"
        "    care == 'True' and c.execute(\"INSERT INTO runs VALUES ('r', 'running', 1, '')\")\n"
        "print('running', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", body, str(ledger.path), str(care)], stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    return ledger.write("UPDATE runs SET state = 'abandoned' WHERE state = 'running'") == 1


INJECTIONS = (
    Injection(
        where="outer generator closed after its first item",
        must_hold="the inner one is closed before that returns",
        holds=_closed_outside,
    ),
    Injection(
        where="task cancelled while it waits",
        must_hold="the cancellation arrives above, an end is on record",
        holds=_cancelled_while_waiting,
    ),
    Injection(
        where="scope cancelled, clean-up awaits",
        must_hold="the clean-up finishes",
        holds=_await_in_the_cleanup,
    ),
    Injection(
        where="process ends between telling and committing",
        must_hold="what was told is on record",
        holds=_told_before_committed,
    ),
    Injection(
        where="response cleaned up after success", must_hold="success stays", holds=_cleaned_up_after_success
    ),
    Injection(
        where="the end cannot be written",
        must_hold="no pretended success, the run is found later",
        holds=_end_cannot_be_written,
    ),
    Injection(
        where="worker returns after its run was claimed again",
        must_hold="it writes nothing",
        holds=_late_worker,
    ),
    Injection(
        where="notification delivered, mark lost",
        must_hold="the second is known as the same",
        holds=_told_twice,
    ),
    Injection(where="process killed in the middle", must_hold="the run is found", holds=_killed),
)


def _play(bench: Bench) -> Measured:
    bench.plan(len(INJECTIONS))
    rows: list[Mapping[str, object]] = []
    for number, injection in enumerate(INJECTIONS):
        careless = injection.holds(Ledger(bench.place(f"{number}-careless.db")), False)
        careful = injection.holds(Ledger(bench.place(f"{number}-careful.db")), True)
        rows.append(
            {
                "failure": injection.where,
                "must hold": injection.must_hold,
                "careless": careless,
                "careful": careful,
            }
        )
        bench.step()
    held = all(row["careful"] and not row["careless"] for row in rows)
    return Measured(ok=held, rows=rows)


EXPERIMENT = Experiment(
    name="cleanup",
    title="Injected failures where a run ends, and generator clean-up",
    asserts="Each invariant breaks when done carelessly and holds when done with care.",
    play=_play,
)
