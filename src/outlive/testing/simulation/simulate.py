"""Runs one plan from beginning to rest, and makes a failing one smaller."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import math
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from outlive.store import sql
from outlive.testing.simulation import checker
from outlive.testing.simulation.clients import Clients
from outlive.testing.simulation.database import Trap
from outlive.testing.simulation.history import EventRow, FaultSpan, History
from outlive.testing.simulation.plan import BUSIEST, PROCESSES, Fault, Plan, Strike, generate
from outlive.testing.simulation.process import Fleet, Process
from outlive.testing.simulation.world import Dice, StuckError, VirtualLoop

T = TypeVar("T")
BLOCKS = sql.load(sql.Dialect.SQLITE, bound_clock=True)
REST = 45.0
"""Virtual seconds after the last fault within which everything must have ended."""
TOKENS_BACK = 1.5
TRAP_SECONDS = 6.0


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


def simulate(plan: Plan | int, *, sabotage: Sabotage | None = None) -> Result:
    """Run a plan, or the plan of a seed."""
    plan = generate(plan) if isinstance(plan, int) else plan
    with _no_garbage_collector():
        return _simulate(plan, sabotage or Sabotage())


def _simulate(plan: Plan, broken: Sabotage) -> Result:
    history = History()
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _, context: history.leaks.append(_complaint(context)))
    blocks = broken.blocks or BLOCKS
    fleet = Fleet(loop, Dice(plan.seed), history, blocks)
    fleet.database.change(broken.ddl, dirty_reads=broken.dirty_reads)
    fleet.provider.forgets = broken.forgetful_provider
    try:
        loop.run_until_complete(_unfold(plan, fleet))
    except StuckError as stuck:
        history.leaks.append(str(stuck))
    finally:
        history.ended_at = loop.time()
        history.final_runs = fleet.database.rows("SELECT * FROM runs")
        history.final_events = [
            EventRow(**row)
            for row in fleet.database.rows(
                "SELECT run_id, seq, thread_id, thread_seq, epoch, kind, payload FROM events"
                " ORDER BY run_id, seq"
            )
        ]
        _look_for_leftovers(loop, history)
        _end(loop, fleet)
    return Result(plan, history, tuple(checker.check(history)))


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
    striking = [loop.create_task(_strike(strike, fleet)) for strike in plan.strikes]
    await asyncio.gather(*striking)
    quiet_at = loop.time()
    await asyncio.gather(*acting)
    while loop.time() < quiet_at + REST and _alive(fleet):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.5)
    for process in list(fleet.current.values()):
        ending = process.sandbox.spawn(process.shut_down())
        await asyncio.wait({ending}, timeout=30.0)
        if not ending.done():
            fleet.history.leaks.append(f"{process.name} does not shut down")


def _alive(fleet: Fleet) -> bool:
    if any(process.store.busy for process in fleet.current.values()):
        return True  # a submit that nobody waits for any more may still make a run
    return bool(fleet.database.rows("SELECT 1 FROM runs WHERE state IN ('queued', 'running') LIMIT 1"))


async def _strike(strike: Strike, fleet: Fleet) -> None:
    await asyncio.sleep(strike.at)
    process = await _victim(strike, fleet)
    if process is not None and process.up:
        strike = dataclasses.replace(strike, process=process.machine)
        span = FaultSpan(fleet.loop.time(), math.inf, strike.fault.value, process.name)
        fleet.history.faults.append(span)
        await _STRIKES[strike.fault](strike, process, fleet)
        span.end = fleet.loop.time()


async def _victim(strike: Strike, fleet: Fleet) -> Process | None:
    """Whom the fault strikes: the one that is named, or that is busiest, or that makes a write first."""
    some = list(fleet.current.values()) if strike.process == BUSIEST else [fleet.current[strike.process]]
    if strike.on is None:
        return max(some, key=lambda process: len(process.worker.driving))
    trap = Trap(strike.on)
    for process in some:
        process.store.weather.traps.append(trap)
    try:
        async with asyncio.timeout(TRAP_SECONDS):
            await trap.sprung.wait()
    except TimeoutError:
        return None
    finally:
        for process in some:
            process.store.weather.traps.remove(trap)
    return trap.by


async def _kill(strike: Strike, process: Process, fleet: Fleet) -> None:
    process.kill()
    await asyncio.sleep(strike.lasts)
    if fleet.current[strike.process] is process:
        fleet.start(strike.process)


async def _shut_down(strike: Strike, process: Process, fleet: Fleet) -> None:
    ending = process.sandbox.spawn(process.shut_down())
    await asyncio.wait({ending}, timeout=30.0)
    process.kill()
    await asyncio.sleep(strike.lasts)
    if fleet.current[strike.process] is process:
        fleet.start(strike.process)


async def _freeze(strike: Strike, process: Process, fleet: Fleet) -> None:
    del fleet
    process.sandbox.freeze()
    await asyncio.sleep(strike.lasts)
    process.sandbox.thaw()


async def _stall(strike: Strike, process: Process, fleet: Fleet) -> None:
    del fleet
    process.sandbox.stall()
    await asyncio.sleep(strike.lasts)
    process.sandbox.go_on()


async def _skew(strike: Strike, process: Process, fleet: Fleet) -> None:
    """A clock that is off by a constant: monotonic clocks of two machines have nothing in common."""
    del fleet
    if not process.worker.driving:
        process.skew += 600.0 * strike.degree
    await asyncio.sleep(0)


async def _tokens_lost(strike: Strike, process: Process, fleet: Fleet) -> None:
    """The database restarts: every token is gone at once, and comes back as processes reconnect."""
    del strike, process
    held = set(fleet.tokens)
    fleet.tokens.clear()
    fleet.database.up_since = fleet.loop.time()
    await asyncio.sleep(TOKENS_BACK)
    fleet.tokens.update(held & {process.worker_id for process in fleet.current.values() if process.up})


def _weather(
    name: str, value: Callable[[Strike], float]
) -> Callable[[Strike, Process, Fleet], Coroutine[Any, Any, None]]:
    async def strike_with(strike: Strike, process: Process, fleet: Fleet) -> None:
        del fleet
        weather, now = process.store.weather, value(strike)
        weather.begin(name, now)
        await asyncio.sleep(strike.lasts)
        weather.end(name, now)

    return strike_with


_STRIKES: Mapping[Fault, Callable[[Strike, Process, Fleet], Coroutine[Any, Any, None]]] = {
    Fault.KILL: _kill,
    Fault.SHUTDOWN: _shut_down,
    Fault.FREEZE: _freeze,
    Fault.STALL: _stall,
    Fault.SKEW: _skew,
    Fault.TOKENS_LOST: _tokens_lost,
    Fault.CUT_OFF: _weather("cut_off", lambda _: True),
    Fault.LOST_REPLIES: _weather("lost_replies", lambda strike: strike.degree),
    Fault.FAILED_COMMITS: _weather("failed_commits", lambda strike: strike.degree),
    Fault.SLOW: _weather("slow", lambda strike: 1 + 100 * strike.degree),
    Fault.HINTS_LOST: _weather("hints_lost", lambda strike: 1.0 if strike.degree > 0.5 else strike.degree),
    Fault.HINTS_REPEATED: _weather("hints_repeated", lambda strike: strike.degree),
}


def _end(loop: VirtualLoop, fleet: Fleet) -> None:
    """Close what the killed left open, quietly: their ``finally`` blocks run now, and reach nothing."""
    fleet.close()
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


# ---------------------------------------------------------------- smaller


def shrink(plan: Plan, *, sabotage: Sabotage | None = None, most: int = 200) -> Result:
    """Return the smallest plan found that breaks one of the same promises, in at most ``most`` runs."""
    best = simulate(plan, sabotage=sabotage)
    wanted = best.broken
    left = most
    shorter = True
    while shorter and left > 0:
        shorter = False
        for candidate in _shorter(best.plan):
            left -= 1
            tried = simulate(candidate, sabotage=sabotage)
            if tried.broken & wanted:
                best, shorter = tried, True
                break
            if left <= 0:
                break
    return best


def _shorter(plan: Plan) -> list[Plan]:
    rolls = random.Random(plan.seed)
    without = [
        dataclasses.replace(plan, strikes=_but(plan.strikes, at)) for at in range(len(plan.strikes))
    ] + [dataclasses.replace(plan, ops=_but(plan.ops, at)) for at in range(len(plan.ops))]
    rolls.shuffle(without)
    half = len(plan.ops) // 2
    return [
        dataclasses.replace(plan, ops=plan.ops[:half]),
        dataclasses.replace(plan, ops=plan.ops[half:]),
        *without,
    ]


def _but(items: tuple[T, ...], at: int) -> tuple[T, ...]:
    return items[:at] + items[at + 1 :]
