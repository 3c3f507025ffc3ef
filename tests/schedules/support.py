"""What the tests of schedules share: a runtime that looks often, and the record moved in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import outlive
from core import support
from outlive import firing, seams, signals
from outlive.agents import Agent
from outlive.store.schedules import Fate, Occurrence, Schedule
from outlive.store.script import Steps, script, statement

EACH_SECOND = "* * * * * *"
NEVER_SOON = "0 0 1 1 *"


@support.job()
async def quick(context: outlive.Context) -> Any:
    """Ends at once."""
    yield {"asked": context.input}


@contextlib.asynccontextmanager
async def serving(database: str, *agents: Agent, **options: Any) -> AsyncIterator[outlive.Outlive]:
    """A runtime that looks often."""
    served = outlive.Outlive(database, agents or (quick,), **options)
    served.store.hub.poll = 0.05
    async with served:
        yield served


@script()
def _seen(schedule_id: str, state: str, seen_until: float, next_at: float) -> Steps[None]:
    yield statement(
        "advance_schedule",
        schedule_id=schedule_id,
        seen_until=int(seen_until * 1000),
        next_at=int(next_at * 1000),
        state=state,
    )


async def down_for(served: outlive.Outlive, made: Schedule, seconds: int) -> int:
    """Leave a schedule as it is after a time in which nothing looked at it; returns the first slot missed."""
    since = int(made.now) - seconds
    await served.store.write(_seen(made.schedule_id, made.state.value, since, since + 1))
    return since + 1


def timetable(served: outlive.Outlive) -> firing.Timetable:
    """Another hand that fires, without a process around it."""
    return firing.Timetable(
        served.store, served._commands, served.registry, happenings=served.signals, local=seams.REAL
    )


async def until(
    served: outlive.Outlive, schedule_id: str, enough: Callable[[list[Occurrence]], bool], tenant: str = ""
) -> list[Occurrence]:
    """Read the occurrences, newest first, at each happening until they are as wanted; bounded."""
    changed = asyncio.Event()

    def hear(happening: signals.Happening) -> None:
        if isinstance(happening, signals.ScheduleFired | signals.ScheduleSkipped):
            changed.set()

    served.signals.listen(hear)
    async with asyncio.timeout(support.WITHIN):
        while True:
            changed.clear()
            found = await served.schedules.occurrences(schedule_id, tenant=tenant, limit=1000)
            if enough(found):
                return found
            await changed.wait()


def slots_of(runs: list[outlive.Run]) -> list[float]:
    """Return the slots that runs were made for, in order."""
    return sorted(json.loads(run.metadata)["slot"] for run in runs)


def settled(found: list[Occurrence]) -> bool:
    """Say whether nothing waits any more."""
    return bool(found) and all(each.state is not Fate.PENDING for each in found)
