"""Runs one plan from beginning to rest, and has what happened checked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from outlive.model import Run
from outlive.store import sql
from outlive.testing.simulation import checker, faults
from outlive.testing.simulation.cast import MODEL, Cast
from outlive.testing.simulation.clients import Clients
from outlive.testing.simulation.history import EventRow, History
from outlive.testing.simulation.plan import PROCESSES, Plan, generate
from outlive.testing.simulation.process import Fleet
from outlive.testing.simulation.world import Dice, StuckError, VirtualLoop

T = TypeVar("T")
BLOCKS = sql.load(sql.Dialect.SQLITE, bound_clock=True)
LAST_READS = 1.0
"""Virtual seconds after which a read whose viewer has gone must be back."""
REST = 45.0
"""Virtual seconds after the last fault within which everything must have ended, if no policy takes longer."""


@dataclass(frozen=True, slots=True)
class Result:
    """A plan, what happened, and which promises that broke."""

    plan: Plan
    history: History
    violations: tuple[checker.Violation, ...]

    @property
    def broken(self) -> frozenset[str]:
        """The ids of the broken invariants."""
        return frozenset(violation.invariant for violation in self.violations)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sabotage:
    """A world that breaks its own rules, to see whether the checker notices.

    ``blocks`` replaces the queries, ``ddl`` changes the schema, ``dirty_reads`` shows readers what was
    rolled back, ``forgetful_provider`` executes the same key again.
    """

    blocks: Mapping[str, sql.Block] | None = None
    ddl: tuple[str, ...] = ()
    dirty_reads: bool = False
    forgetful_provider: bool = False


def simulate(plan: Plan | int, *, sabotage: Sabotage | None = None, cast: Cast = MODEL) -> Result:
    """Run a plan, or the plan of a seed."""
    plan = generate(plan) if isinstance(plan, int) else plan
    with _no_garbage_collector():
        return _simulate(plan, sabotage or Sabotage(), cast)


def _simulate(plan: Plan, broken: Sabotage, cast: Cast) -> Result:
    cast.begin()
    history = History()
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _, context: history.leaks.append(_complaint(context)))
    blocks = broken.blocks or BLOCKS
    fleet = Fleet(loop, Dice(plan.seed), history, blocks, cast)
    fleet.database.change(broken.ddl, dirty_reads=broken.dirty_reads)
    fleet.provider.forgets = broken.forgetful_provider
    try:
        loop.run_until_complete(_unfold(plan, fleet))
    except StuckError as stuck:
        history.leaks.append(str(stuck))
    finally:
        history.ended_at = loop.time()
        history.final_runs = fleet.database.rows(
            "SELECT r.*, t.external_id AS thread, t.position AS thread_position, t.left_by"
            " FROM runs r JOIN threads t USING (thread_id)"
        )
        history.final_events = [
            EventRow(**row)
            for row in fleet.database.rows(
                "SELECT run_id, seq, thread_id, thread_seq, epoch, kind, payload FROM events"
                " ORDER BY run_id, seq"
            )
        ]
        history.final_outbox = fleet.database.rows("SELECT notification_id, state FROM outbox")
        _look_for_leftovers(loop, history)
        _end(loop, fleet)
    return Result(plan, history, (*checker.check(history), *_own_check(cast, history)))


def _own_check(cast: Cast, history: History) -> Iterator[checker.Violation]:
    if cast.check is None:
        return
    try:
        cast.check([Run.from_row(row) for row in history.final_runs])
    except AssertionError as failure:
        yield checker.Violation("own", str(failure) or "the check raised AssertionError", check="own")


@contextlib.contextmanager
def _no_garbage_collector() -> Iterator[None]:
    """A collection finalises what a simulation left, at a moment that no seed decides."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _look_for_leftovers(loop: VirtualLoop, history: History) -> None:
    """What a process that ended well may not leave: tasks at work, and failures that nobody looked at."""
    for task, sandbox in loop.made:
        if sandbox is None or sandbox.dead:
            continue
        name = getattr(task.get_coro(), "__qualname__", "?")
        if not task.done():
            history.leaks.append(f"{sandbox.name} ends with a task at work: {name}")
        elif task._log_traceback:
            history.leaks.append(f"nobody looked at the failure of {name}: {task.exception()!r}")


def _complaint(context: dict[str, object]) -> str:
    return f"the event loop complained: {context.get('message')} {context.get('exception')!r}"


async def _unfold(plan: Plan, fleet: Fleet) -> None:
    for name in PROCESSES:
        fleet.start(name)
    clients = Clients(fleet, {op.number: op for op in plan.ops})
    loop = asyncio.get_running_loop()
    acting = [loop.create_task(clients.act(op)) for op in plan.ops]
    striking = [loop.create_task(faults.strike(strike, fleet)) for strike in plan.strikes]
    await asyncio.gather(*striking)
    quiet_at = loop.time()
    await asyncio.gather(*acting)
    while loop.time() < quiet_at + _rest(fleet.cast) and _alive(fleet):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.5)
    for process in list(fleet.current.values()):
        ending = process.sandbox.spawn(process.shut_down())
        await asyncio.wait({ending}, timeout=30.0)
        if not ending.done():
            fleet.history.leaks.append(f"{process.name} does not shut down")
    await asyncio.sleep(LAST_READS)


def _rest(cast: Cast) -> float:
    longest = max(max(declared.grace, declared.stop_deadline) for declared in cast.policies.values())
    return max(REST, 4 * longest)


def _alive(fleet: Fleet) -> bool:
    if any(process.store.busy for process in fleet.current.values()):
        return True  # a submit that nobody waits for any more may still make a run
    live = "SELECT 1 FROM runs WHERE state IN ('queued', 'running') LIMIT 1"
    to_be_told = "SELECT 1 FROM outbox WHERE state = 'pending' LIMIT 1"
    return bool(fleet.database.rows(live) or fleet.database.rows(to_be_told))


def _end(loop: VirtualLoop, fleet: Fleet) -> None:
    """Close what the killed left open, quietly: their ``finally`` blocks run now, and reach nothing."""
    fleet.close()
    loop.set_exception_handler(lambda *_: None)  # what is complained about from now on is no history
    complain, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task, _ in loop.made:
                _close(task)
            loop.close()
    finally:
        sys.unraisablehook = complain


def _close(task: asyncio.Task[object]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        task._log_traceback = False
        return
    work = task.get_coro()
    for _ in range(10):
        try:
            work.close()
        except BaseException:
            continue
        return
