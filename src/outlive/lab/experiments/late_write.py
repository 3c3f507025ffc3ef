"""Does a lock around the run keep two runs' checkpoints apart?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlive.lab.experiment import Bench, Experiment, Figure, Measured, interval
from outlive.lab.experiments import bench_graph
from outlive.lab.experiments.bench_graph import Chain
from outlive.probe import page
from outlive.probe.evidence import checkpoints
from outlive.probe.evidence.found import Found, Record

Lock = contextlib.AbstractAsyncContextManager[Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A lock, and the store whose checkpoints it is to keep apart."""

    name: str
    saver: contextlib.AbstractContextManager[Any]
    lock: Callable[[str], Lock]
    read: Callable[[str], Found]


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=20, quick=2)
    cases = list(_cases(bench))
    bench.plan(trials * len(cases))
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    held = True
    for case in cases:
        with case.saver as saver:
            found = [_one(bench, case, saver, f"late-{trial}") for trial in range(trials)]
        forked = [record for _, record in found if record.forks]
        hidden = [e for e, record in found if e.count("charge") > record.head.count("charge")]
        rows.append(
            {
                "lock": case.name,
                "thread forked although the lock was held": interval(len(forked), trials),
                "state shows fewer charges than executed": interval(len(hidden), trials),
            }
        )
        held &= len(forked) * 2 > trials
        title = f"A late write beside the next run's: {case.name}"
        drawn += [Figure(title=title, svg=page.tree(record.checkpoints)) for record in forked[:1]]
    return Measured(ok=held, rows=rows, figures=drawn)


def _cases(bench: Bench) -> Iterator[Case]:
    path, locks = bench.place("late.db"), defaultdict[str, asyncio.Lock](asyncio.Lock)
    yield Case(
        name="asyncio.Lock, SQLite",
        saver=bench_graph.threaded(path),
        lock=lambda thread: locks[thread],
        read=checkpoints.Sqlite(path=str(path)).read,
    )
    dsn = bench.postgres()
    if dsn is not None:
        yield Case(
            name="pg_advisory_xact_lock for the whole run, PostgreSQL",
            saver=bench_graph.threaded_postgres(dsn),
            lock=lambda thread: _advisory(dsn, thread),
            read=checkpoints.Postgres(dsn=dsn).read,
        )


@contextlib.asynccontextmanager
async def _advisory(dsn: str, thread: str) -> AsyncIterator[None]:
    """A lock of a transaction that lives as long as the run: its end, of whatever kind, lets it go."""
    psycopg: Any = importlib.import_module("psycopg")
    # It says that a query was cut, which is what is done here on purpose.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '20s'")
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (thread,))
        yield


def _one(bench: Bench, case: Case, saver: Any, thread: str) -> tuple[list[str], Record]:
    after = bench.random.uniform(0.0, saver.delay / 2)
    executed = asyncio.run(_trial(case, saver, thread, after))
    bench.step()
    record = case.read(thread).record
    assert record is not None
    return executed, record


async def _trial(case: Case, saver: Any, thread: str, after: float) -> list[str]:
    """A run holds the lock and is cut; the next message takes the lock at once."""
    chain = Chain(saver, notify=0.05)
    saver.writing.clear()

    async def locked() -> None:
        async with case.lock(thread):
            await chain.run(thread, "sync")

    async def when() -> None:
        await asyncio.to_thread(saver.writing.wait, 20)
        await asyncio.sleep(after)

    await bench_graph.cut_as_starlette_does(locked(), when)
    await locked()
    await asyncio.get_running_loop().shutdown_default_executor()
    return chain.executed


EXPERIMENT = Experiment(
    name="late-write",
    title="A lock around the run, and the cut run's own late write",
    asserts="No lock fences the write that was on its way: the thread forks in most trials, under each.",
    play=_play,
)
