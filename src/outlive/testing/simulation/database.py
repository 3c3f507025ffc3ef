"""The simulated fleet's database: one real SQLite with the real queries, and a store per process over it.

Decides what can go wrong between a process and the database: latency, a connection lost before or after the
commit, a lost reply, hints that are lost, late or repeated, tokens that vanish.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import random
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from outlive import errors, seams, signals
from outlive.model import Claim, Renewed, Row
from outlive.store import retry, sql, sqlite, wakeup
from outlive.store.script import Script, Statement, statement
from outlive.store.wakeup import Hub
from outlive.testing.simulation.history import EPOCH_MS, Commit, EventRow, History, RunChange
from outlive.testing.simulation.world import Dice, VirtualLoop

if TYPE_CHECKING:
    from outlive.testing.simulation.process import Process

T = TypeVar("T")
LATENCY = 0.002
"""Seconds that a message to the database, or back, takes on average."""
_WATCH = """
CREATE TEMP TRIGGER made AFTER INSERT ON main.runs BEGIN SELECT note_run(
  NEW.run_id, NEW.thread_id, NULL, NULL, NEW.state, NEW.epoch, NEW.losses, NEW.stop_reason); END;
CREATE TEMP TRIGGER moved AFTER UPDATE ON main.runs BEGIN SELECT note_run(
  NEW.run_id, NEW.thread_id, OLD.state, OLD.epoch, NEW.state, NEW.epoch, NEW.losses, NEW.stop_reason); END;
CREATE TEMP TRIGGER written AFTER INSERT ON main.events BEGIN SELECT note_event(
  NEW.run_id, NEW.seq, NEW.thread_id, NEW.thread_seq, NEW.epoch, NEW.kind, NEW.payload); END;
CREATE TEMP TRIGGER told AFTER INSERT ON main.outbox BEGIN SELECT note_told(NEW.notification_id); END;
"""


_ALIKE: Mapping[str, str] = {"settle_run": "settle"}
"""Scripts that make the same move as another, with more besides."""


def move(script: str) -> str:
    """Return the name under which a script's commits are known."""
    return _ALIKE.get(script, script)


@dataclass(slots=True)
class Weather:
    """What the world does to one process's traffic with the database and with its peers, now."""

    cut_off: bool = False
    lost_replies: float = 0.0
    failed_commits: float = 0.0
    slow: float = 1.0
    hints_lost: float = 0.0
    hints_repeated: float = 0.0
    traps: list[Trap] = field(default_factory=list)
    _at_once: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, name: str, value: float) -> None:
        """Something gets bad; of several at once the worst counts."""
        usual: float = getattr(self, name)
        self._at_once.setdefault(name, [usual]).append(value)
        setattr(self, name, max(self._at_once[name]))

    def end(self, name: str, value: float) -> None:
        """One of the bad things is over."""
        self._at_once[name].remove(value)
        setattr(self, name, max(self._at_once[name]))

    @property
    def fair(self) -> bool:
        """True if nothing is wrong with the database and the way to it."""
        return not self.cut_off and not self.lost_replies and not self.failed_commits and self.slow == 1.0


@dataclass(eq=False, slots=True)
class Trap:
    """Waits for one write of a kind, and holds it up for a moment in which a fault can strike."""

    script: str
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    by: Process | None = None


class Database:
    """One SQLite in memory, its clock, and the log of its commits."""

    def __init__(self, loop: VirtualLoop, history: History, blocks: Mapping[str, sql.Block]) -> None:
        self.loop = loop
        self.history = history
        self.up_since = -1_000.0
        self.checkpoints: dict[str, int] = {}
        self.dirty_reads = False
        self._rolled_back: list[EventRow] = []
        self._blocks = blocks
        self._runs: list[RunChange] = []
        self._events: list[EventRow] = []
        self._told: list[str] = []
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.deserialize(_migrated())
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.create_function("note_run", 8, self._note_run)
        self._connection.create_function("note_event", 7, self._note_event)
        self._connection.create_function("note_told", 1, self._told.append)
        self._connection.executescript(_WATCH)

    def change(self, ddl: Sequence[str], *, dirty_reads: bool) -> None:
        """Break the database on purpose."""
        for text in ddl:
            self._connection.execute(text)
        self.dirty_reads = dirty_reads

    def close(self) -> None:
        """Free the memory."""
        self._connection.close()

    @property
    def now_ms(self) -> int:
        """The database's clock, which every fence is judged by."""
        return EPOCH_MS + round(self.loop.time() * 1000)

    def work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with the connection, in no transaction of its own."""
        return work(self._connection)

    def run(self, script: Script[T], process: str, *, commit: bool = True) -> T:
        """Run a script in one transaction; ``commit`` False rolls back what it did."""
        if script.reads:
            return self._step_through(script)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            value = self._step_through(script)
        except BaseException:
            self._changes(process, script.name)
            connection.execute("ROLLBACK")
            raise
        changes = self._changes(process, script.name)
        if not commit:
            if self.dirty_reads and script.name == "append" and changes is not None:
                self._rolled_back = list(changes.events)
            connection.execute("ROLLBACK")
            return value
        connection.execute("COMMIT")
        if changes is not None:
            self.history.commits.append(changes)
        return value

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Read for the checker."""
        return [dict(row) for row in self._connection.execute(text)]

    def _step_through(self, script: Script[T]) -> T:
        steps = script.start()
        try:
            step = next(steps)
            while True:
                step = steps.send(self._execute(step))
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()

    def _execute(self, step: Statement) -> list[Row]:
        if step.name == "uptime":  # this one restarts when the simulation says so
            return [{"up_ms": round((self.loop.time() - self.up_since) * 1000)}]
        if step.name == "events_after" and self._rolled_back and (seen := self._unreal(step)):
            return seen
        at = Statement(step.name, {**step.params, "now": self.now_ms})
        return sqlite.execute(self._connection, self._blocks, at)

    def _unreal(self, step: Statement) -> list[Row]:
        """What was rolled back, as a reader of a broken database would get it."""
        wanted = (step.params["run_id"], step.params["after"] + 1)
        return [
            {**dataclasses.asdict(event), "mode": None, "created_at": 0}
            for event in self._rolled_back
            if (event.run_id, event.seq) == wanted
        ]

    def _changes(self, process: str, script: str) -> Commit | None:
        """Take what the triggers noted since the last transaction."""
        if not self._runs and not self._events and not self._told:
            return None
        runs, self._runs = self._runs, []
        events, self._events = self._events, []
        told = tuple(self._told)
        self._told.clear()
        return Commit(self.loop.time(), process, move(script), tuple(runs), tuple(events), told)

    def _note_run(self, run_id: str, thread_id: str, *row: Any) -> None:
        old_state, old_epoch, state, epoch, losses, stop_reason = row
        before = None if old_state is None else (old_state, old_epoch)
        self._runs.append(RunChange(run_id, thread_id, before, (state, epoch), losses, stop_reason))

    def _note_event(self, *row: Any) -> None:
        self._events.append(EventRow(*row))


@functools.cache
def _migrated() -> bytes:
    """A database with the schema in place, made once."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        sqlite.migrate_connection(connection)
        return connection.serialize()


@dataclass(eq=False)
class SimulatedStore:
    """The store of one simulated process."""

    database: Database
    process: Process
    dice: Dice
    happenings: signals.Signals
    local: seams.Seams
    hub: Hub = field(default_factory=Hub)
    weather: Weather = field(default_factory=Weather)
    _running: set[asyncio.Task[Any]] = field(default_factory=set)
    _writing: int = 0
    dialect: sql.Dialect = sql.Dialect.SQLITE

    @property
    def busy(self) -> bool:
        """True while a write is on its way."""
        return self._writing > 0

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Let transactions end."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=10.0)
        self.process.fleet.tokens.discard(self.process.worker_id)

    async def write(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run a script; see ``store.Transactions``."""
        self._writing += 1
        try:
            return await self._until(script, functools.partial(self._apart, script), budget)
        finally:
            self._writing -= 1

    async def read(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run a reading script; see ``store.Transactions``."""
        return await self._until(script, functools.partial(self._look, script), budget)

    async def write_with(
        self, work: Callable[[sqlite3.Connection], T], script: Script[Any], *, budget: float = 10.0
    ) -> T:
        """Run ``script`` and ``work`` in one transaction, as the SQLite store does."""
        return await self.write(_both(script, functools.partial(self.database.work, work)), budget=budget)

    async def read_with(
        self, work: Callable[[sqlite3.Connection], T], *, name: str, budget: float = 10.0
    ) -> T:
        """Run ``work`` where it can read."""
        reading = _both(Script(name, _nothing, reads=True), functools.partial(self.database.work, work))
        return await self.read(reading, budget=budget)

    async def in_writer(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` outside of any transaction."""
        return self.database.work(work)

    async def _until(self, script: Script[T], attempt: Callable[[], Awaitable[T]], budget: float) -> T:
        return await retry.until(
            attempt, name=script.name, budget=budget, local=self.local, happenings=self.happenings
        )

    async def _apart(self, script: Script[T]) -> T:
        """A write that was sent is carried out, whatever becomes of its caller."""
        task = asyncio.get_running_loop().create_task(self._try(script))
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be dead

    async def _look(self, script: Script[T]) -> T:
        """One try to read: as old as it can be when it arrives."""
        rolls, weather = self.dice.of(f"io/{self.process.name}"), self.weather
        if weather.cut_off:
            await asyncio.sleep(self._latency(rolls))
            raise retry.Transient("cut off")
        value = self.database.run(script, self.process.name)
        await asyncio.sleep(self._latency(rolls) + self._latency(rolls))
        if self.weather.cut_off or rolls.random() < weather.lost_replies:
            raise retry.Transient("reply lost")
        return value

    def _latency(self, rolls: random.Random) -> float:
        return rolls.expovariate(1 / LATENCY) * self.weather.slow

    async def _try(self, script: Script[T]) -> T:
        """One try to write."""
        rolls, weather = self.dice.of(f"io/{self.process.name}"), self.weather
        await asyncio.sleep(self._latency(rolls))
        if weather.cut_off:
            raise retry.Transient("cut off")
        for trap in weather.traps:
            if trap.script == move(script.name) and trap.by is None:
                trap.by = self.process
                trap.sprung.set()
                await asyncio.sleep(0.0001)  # the fault strikes here, whatever it is
                break
        if self.weather.cut_off and script.name != "claim":
            raise retry.Transient("cut off")
        failed = rolls.random() < weather.failed_commits
        value = self.database.run(script, self.process.name, commit=not failed)
        if failed:
            if self.database.dirty_reads:
                self.process.fleet.wake_all()  # what was not committed is published all the same
            raise retry.Transient("connection lost before commit")
        await asyncio.sleep(self._latency(rolls))
        lost = rolls.random() < weather.lost_replies
        if lost or self.weather.cut_off:  # the weather may have changed meanwhile
            raise retry.Transient("reply lost")
        return value

    def renew(self, claims: Sequence[Claim], lease: float) -> list[Renewed]:
        """Renew; see ``store.Leases``."""
        rolls, weather = self.dice.of(f"renew/{self.process.name}"), self.weather
        if weather.cut_off:
            raise errors.StoreUnavailable("cut off")
        script = _renewal(claims, lease)
        renewed = self.database.run(script, self.process.name)
        if rolls.random() < weather.lost_replies:
            raise errors.StoreUnavailable("reply lost")
        return renewed

    async def hold_token(self, worker: str) -> None:
        """Hold the token until death."""
        self.process.fleet.tokens.add(worker)

    async def dead(self, workers: Collection[str]) -> set[str]:
        """Look at the tokens, after some latency."""
        await asyncio.sleep(self.dice.of("tokens").random() * 0.01)
        return {worker for worker in workers if worker and worker not in self.process.fleet.tokens}

    def announce(self, *topics: str) -> None:
        """Wake local waiters; tell the peers, if the weather lets it."""
        self.hub.wake(topics)
        for peer in self.process.fleet.peers(self.process):
            # Hints for those who send have luck of their own: they are to change nobody else's history.
            about = "outbox hints" if topics == (wakeup.OUTBOX,) else "hints"
            rolls = self.dice.of(f"{about}/{self.process.name}/{peer.name}")
            if rolls.random() < self.weather.hints_lost:
                continue
            for _ in range(1 + (rolls.random() < self.weather.hints_repeated)):
                delay = rolls.expovariate(1 / 0.01) * self.weather.slow
                peer.sandbox.later(delay, peer.store.hub.wake, topics)


def _both(script: Script[Any], work: Callable[[], T]) -> Script[T]:
    def start() -> Any:
        yield from script.start()
        return work()

    return Script(script.name, start, reads=script.reads)


def _nothing() -> Any:
    yield from ()


def _renewal(claims: Sequence[Claim], lease: float) -> Script[list[Renewed]]:
    def start() -> Any:
        rows = yield statement("renew", claims=list(claims), lease_ms=round(lease * 1000))
        return [Renewed.from_row(row) for row in rows]

    return Script("renew", start, single=True)
