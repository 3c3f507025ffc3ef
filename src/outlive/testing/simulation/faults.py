"""What goes wrong, carried out: each fault of a plan strikes one process, or the database, for a while."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from outlive.testing.simulation.database import Trap
from outlive.testing.simulation.history import FaultSpan
from outlive.testing.simulation.plan import BUSIEST, Fault, Strike
from outlive.testing.simulation.process import Fleet, Process

TOKENS_BACK = 1.5
"""Virtual seconds after which processes hold their tokens again."""
TRAP_SECONDS = 6.0
"""Virtual seconds for which a fault waits for the write that it is to strike."""


async def strike(strike: Strike, fleet: Fleet) -> None:
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


async def _provider(strike: Strike, process: Process, fleet: Fleet) -> None:
    """Callers of the model provider do not hear what became of their calls."""
    del process
    fleet.provider.hangs_up = strike.degree
    await asyncio.sleep(strike.lasts)
    fleet.provider.hangs_up = 0.0


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
    Fault.PROVIDER: _provider,
    Fault.CUT_OFF: _weather("cut_off", lambda _: True),
    Fault.LOST_REPLIES: _weather("lost_replies", lambda strike: strike.degree),
    Fault.FAILED_COMMITS: _weather("failed_commits", lambda strike: strike.degree),
    Fault.SLOW: _weather("slow", lambda strike: 1 + 100 * strike.degree),
    Fault.HINTS_LOST: _weather("hints_lost", lambda strike: 1.0 if strike.degree > 0.5 else strike.degree),
    Fault.HINTS_REPEATED: _weather("hints_repeated", lambda strike: strike.degree),
}
