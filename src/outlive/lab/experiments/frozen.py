"""What does an executor still write that froze, was replaced, and thaws: with the fence, and without it?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlive import encoding, policy, runtime, seams
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable, interval
from outlive.model import Submission
from outlive.policy import Durability
from outlive.store import moves, wakeup
from outlive.testing import hearing
from outlive.testing.processes import Process

SERVICE = "outlive.lab.services.frozen_graphs"
SHORT = {"lease": 1.5, "renew_every": 0.3, "margin": 0.2}
"""Seconds: so that a frozen process is replaced soon."""
TOGETHER = 25
"""Executors that stand in one process and are frozen with it."""
WITHIN = 60.0
CHECKPOINT_WRITES = frozenset({"put", "put_writes"})

Point = tuple[str, int]
"""A kind of write, and before which one of them an executor stands."""

_STEPS: tuple[Point, ...] = (
    *(("put", nth) for nth in range(1, 7)),
    *(("put_writes", nth) for nth in range(1, 5)),
    ("event", 1),
    ("verdict", 1),
)
POINTS: Mapping[Durability, tuple[Point, ...]] = {
    Durability.SYNC: _STEPS,
    Durability.ASYNC: _STEPS,
    Durability.EXIT: (("put", 1), ("event", 1), ("verdict", 1)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run, and before which write its first executor stood when its process was frozen."""

    run_id: str
    thread_id: str
    point: Point

    @property
    def refused(self) -> str:
        """The kind under which a fence counts the write that it stood before."""
        return "checkpoint" if self.point[0] in CHECKPOINT_WRITES else self.point[0]


@dataclass(kw_only=True)
class Seen:
    """What became of the trials of one durability mode."""

    trials: int = 0
    forks: int = 0
    late: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0

    def add(self, other: Seen) -> None:
        """Count one batch."""
        self.trials += other.trials
        self.forks += other.forks
        self.late += other.late
        self.refused += other.refused
        self.unanswered += other.unanswered


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive():
        raise Unavailable("this installation cannot serve agents")
    trials = bench.trials(full=TOGETHER, quick=4)
    stores = _stores(bench)
    bench.plan(len(stores) * len(Durability) * 2)
    rows: list[Mapping[str, object]] = []
    held = True
    for store in stores:
        for fence in (True, False):
            database = _database(bench, store, fence)
            runtime.migrate(database)
            series = _Series(bench=bench, database=database, fence=fence)
            for durability, seen in asyncio.run(series.measure(trials if fence else min(trials, TOGETHER))):
                held &= _as_asserted(fence, seen)
                rows.append({"store": store, **_row(durability, fence, seen)})
    return Measured(ok=held, rows=rows)


def _stores(bench: Bench) -> list[str]:
    more = not bench.options.quick and bench.postgres() is not None
    return ["sqlite", *(["postgresql"] if more else [])]


def _database(bench: Bench, store: str, fence: bool) -> str:
    if store == "sqlite":
        return f"sqlite:///{bench.place('fenced.db' if fence else 'unfenced.db')}"
    dsn = bench.postgres()
    assert dsn is not None
    return dsn


def _as_asserted(fence: bool, seen: Seen) -> bool:
    if not fence:
        return seen.forks > 0
    return seen.trials > 0 and not (seen.forks or seen.late or seen.unanswered)


def _row(durability: Durability, fence: bool, seen: Seen) -> Mapping[str, object]:
    return {
        "durability": durability.value,
        "fence": fence,
        "forked threads": interval(seen.forks, seen.trials),
        "rows written late": _counted(seen.late),
        "refused and counted": _counted(seen.refused),
    }


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


# ---------------------------------------------------------------- trials


@dataclass(kw_only=True)
class _Series:
    """The trials on one database: two processes take turns, one frozen while the other works."""

    bench: Bench
    database: str
    fence: bool
    batches: int = 0

    async def measure(self, trials: int) -> list[tuple[Durability, Seen]]:
        """Make so many trials in each durability mode."""
        found = []
        async with (
            runtime.Outlive(self.database, [], slots=0) as api,
            self._process("first") as first,
            self._process("second") as second,
        ):
            for durability in Durability:
                seen = Seen()
                while seen.trials < trials:
                    seen.add(await self._batch(api, first, second, durability, trials - seen.trials))
                found.append((durability, seen))
                self.bench.step()
        return found

    def _process(self, name: str) -> Process:
        log = self.bench.place(f"{name}-{'fenced' if self.fence else 'unfenced'}.log")
        also = "watched" if self.fence else "watched_without_a_fence"
        return Process(
            self.database,
            f"{SERVICE}:served",
            slots=TOGETHER,
            timing=SHORT,
            also=f"{SERVICE}:{also}",
            log=log,
        )

    async def _batch(
        self, api: runtime.Outlive, first: Process, second: Process, durability: Durability, left: int
    ) -> Seen:
        """Freeze one process with all its executors, have the other finish their runs, and thaw it."""
        self.batches += 1
        await self._freeze(second)
        trials = [await self._submitted(api, durability) for _ in range(min(left, TOGETHER))]
        api.store.announce(wakeup.QUEUE)
        stood = [trial for trial in trials if await _stands(first, trial)]
        await self._freeze(first)
        second.thaw()
        for trial in stood:
            await hearing.ended(api, trial.run_id, WITHIN)
        await self._idle(second)
        before = self._rows(stood)
        first.open(self._gate)
        first.thaw()
        await self._idle(first)
        return _judged(stood, before, self._rows(stood), first)

    @property
    def _gate(self) -> str:
        return f"go-{self.batches}"

    async def _submitted(self, api: runtime.Outlive, durability: Durability) -> Trial:
        points = POINTS[durability]
        if not self.fence:  # only a checkpoint that is written late forks anything
            points = tuple(point for point in points if point[0] == "put")
        at, nth = self.bench.random.choice(points)
        new = Submission(
            run_id=seams.new_id(),
            tenant="",
            agent="booking",
            input=encoding.encode({"steps": []}).text,
            fingerprint="",
            policy=policy.job(on_busy="enqueue", durability=durability),
            metadata=encoding.encode({"at": at, "nth": nth, "gate": self._gate}).text,
        )
        submitted = await api.store.write(moves.submit(new, None))
        return Trial(run_id=new.run_id, thread_id=submitted.run.thread_id, point=(at, nth))

    async def _idle(self, process: Process) -> None:
        """Wait until a process drives nothing any more."""
        count = len([line for line in process.said() if "idle" in line])
        process.open(f"idle-{count}")
        await process.line(within=WITHIN, idle=count)

    async def _freeze(self, process: Process) -> None:
        """Freeze a process, but not in the middle of a write: SQLite's one lock would freeze everybody."""
        while True:
            process.freeze()
            await process.frozen(within=WITHIN)
            if not await asyncio.to_thread(self._locked):
                return
            process.thaw()

    def _locked(self) -> bool:
        if not self.database.startswith("sqlite"):
            return False
        try:
            with _sqlite(self.database, 0.5) as file:
                file.execute("BEGIN IMMEDIATE")
                file.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        return False

    def _rows(self, trials: Sequence[Trial]) -> Mapping[str, Counter[Any]]:
        """What is on record of these trials, by table."""
        mine = {trial.run_id for trial in trials} | {trial.thread_id for trial in trials}
        tables = _TABLES if self.database.startswith("sqlite") else _POSTGRES_TABLES
        with _connection(self.database) as connection:
            return {
                name: Counter(row for row in map(_plain, connection.execute(query)) if row[0] in mine)
                for name, query in tables.items()
            }


_TABLES = {
    "checkpoints": "SELECT thread_id, checkpoint_ns, parent_checkpoint_id, checkpoint_id, checkpoint"
    " FROM checkpoints",
    "writes": "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, value FROM writes",
    "events": "SELECT run_id, seq, epoch, kind, payload FROM events",
    "verdicts": "SELECT run_id, state, reason, epoch, last_seq, ended_at FROM runs",
}
_POSTGRES_TABLES = {
    **_TABLES,
    "checkpoints": _TABLES["checkpoints"].replace(", checkpoint FROM", ", checkpoint::text FROM"),
    "writes": "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, blob FROM checkpoint_writes",
}


def _plain(row: Any) -> tuple[Any, ...]:
    return tuple(row)


@contextlib.contextmanager
def _connection(database: str) -> Iterator[Any]:
    if database.startswith("sqlite"):
        with _sqlite(database, 10.0) as file:
            yield file
        return
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(database) as connection:
        yield connection


@contextlib.contextmanager
def _sqlite(database: str, timeout: float) -> Iterator[sqlite3.Connection]:
    path = database.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, timeout=timeout, isolation_level=None)) as file:
        yield file


async def _stands(process: Process, trial: Trial) -> bool:
    """Wait until a run's executor stands; False if it never came to that write and has ended."""
    standing = asyncio.create_task(process.line(within=WITHIN, stands=trial.run_id))
    ending = asyncio.create_task(process.heard("RunEnded", within=WITHIN, run_id=trial.run_id))
    await asyncio.wait({standing, ending}, return_when=asyncio.FIRST_COMPLETED)
    stands = standing.done()
    for waiting in (standing, ending):
        waiting.cancel()
    await asyncio.wait({standing, ending})
    return stands


# ---------------------------------------------------------------- judgement


def _judged(
    trials: Sequence[Trial],
    before: Mapping[str, Counter[Any]],
    after: Mapping[str, Counter[Any]],
    frozen: Process,
) -> Seen:
    refused = [
        (trial.run_id, line["write"])
        for trial in trials
        for line in frozen.said(heard="StaleWriteRefused", run_id=trial.run_id)
    ]
    return Seen(
        trials=len(trials),
        forks=len(_forked(after["checkpoints"])),
        late=Counter({name: changed for name in after if (changed := (after[name] - before[name]).total())}),
        refused=Counter(write for _, write in refused),
        unanswered=sum((trial.run_id, trial.refused) not in refused for trial in trials),
    )


def _forked(checkpoints: Counter[Any]) -> set[str]:
    """The threads of which two checkpoints have the same one before them."""
    parents = Counter((thread, parent) for thread, namespace, parent, *_ in checkpoints if not namespace)
    return {thread for (thread, _), children in parents.items() if children > 1}


EXPERIMENT = Experiment(
    name="frozen",
    title="An executor that froze, was replaced, and thaws",
    asserts="With the fence it writes no checkpoint, no event and no verdict, and what is refused is counted;"
    " without it the late checkpoint forks the thread.",
    play=_play,
)
