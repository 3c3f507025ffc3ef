"""Lets processes fire a schedule, kills them between the steps, and says what became of every slot.

Decides where they die and what is counted.  Used by the tests and by the laboratory alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import outlive
from outlive import cron, databases, policy, schedules, signals
from outlive.store import Store, reads
from outlive.store import schedules as kept
from outlive.store.schedules import Fate, Occurrence
from outlive.testing.processes import Process

AGENTS = "outlive.testing.ticking:agents"
SHORT = {"lease": 1.5, "renew_every": 0.3, "margin": 0.2}
WITHIN = 60.0
POINTS = (
    *("schedules.taken@2=kill", "schedules.submitted=kill", "schedules.due@2=kill"),
    *("schedules.fired=kill", "schedules.planned@9=kill"),
)
"""Between any two steps."""


@outlive.agent("tick", policy=policy.job(on_busy="enqueue"))
async def tick(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Ends at once."""
    yield context.input


agents = [tick]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of the slots.  ``twice``: slots with more than one run; ``lost``: those with no row."""

    slots: int
    fired: int
    skipped: int
    twice: int
    lost: int
    kills: int
    latest: float

    @property
    def sound(self) -> bool:
        """Whether every slot was accounted for, none twice, and what fired has its run."""
        return self.twice == self.lost == 0 and self.fired + self.skipped == self.slots


async def ticked(database: str, seconds: int, *, each: int = 1, processes: int = 4) -> Outcome:
    """Fire a schedule of every ``each`` seconds for so long, by processes that die at ``POINTS`` in turns."""
    over, points = asyncio.Event(), itertools.cycle(POINTS)
    async with _store(database) as store:
        desk = schedules.Desk(store, happenings=signals.Signals())
        hands = [
            asyncio.get_running_loop().create_task(_hand(database, points, over)) for _ in range(processes)
        ]
        try:
            expression = f"*/{each} * * * * *"
            ends_at = await store.read(kept.clock()) + seconds
            made = await desk.create(expression, "tick", missed="all", ends_at=ends_at)
            await _until(desk, made.schedule_id, seconds)
        finally:
            over.set()
            kills = sum(await asyncio.gather(*hands))
        async with Process(database, AGENTS, timing=SHORT):  # whatever the dead have left
            await _until(desk, made.schedule_id, 0)
        times = cron.parse(expression, "UTC")
        wanted = set(cron.slots(times, int(made.seen_until), ends_at))
        rows = await desk.occurrences(made.schedule_id, limit=1000)
        runs = Counter(
            json.loads(run.metadata)["slot"] for run in await store.read(reads.runs("", limit=1000))
        )
        return _counted(wanted, rows, runs, kills)


def _counted(wanted: set[int], rows: list[Occurrence], runs: Counter[float], kills: int) -> Outcome:
    fired = [row for row in rows if row.state is Fate.FIRED and runs[row.slot]]
    return Outcome(
        slots=len(wanted),
        fired=len(fired),
        skipped=sum(row.state is Fate.SKIPPED for row in rows),
        twice=sum(count > 1 for count in runs.values()),
        lost=len(wanted - {int(row.slot) for row in rows}),
        kills=kills,
        latest=max(((row.ended_at or 0.0) - row.slot for row in fired), default=0.0),
    )


async def _hand(database: str, points: Iterator[str], over: asyncio.Event) -> int:
    """One process after another, until it is over; returns how many of them died of a point."""
    kills = 0
    while not over.is_set():
        async with Process(database, AGENTS, timing=SHORT, points=next(points)) as process:
            ends = [asyncio.ensure_future(process.ended(within=1e6)), asyncio.ensure_future(over.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            kills += ends[0].done()
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
    return kills


async def _until(desk: schedules.Desk, schedule_id: str, seconds: float) -> None:
    """Wait until the schedule is over and nothing of it waits."""
    async with asyncio.timeout(seconds + WITHIN):
        while True:
            found = await desk.show(schedule_id)
            rows = await desk.occurrences(schedule_id, limit=1000)
            if found.next_at is None and (seconds or all(row.state is not Fate.PENDING for row in rows)):
                return
            await asyncio.sleep(0.2)  # other processes write it, and only they know when


@contextlib.asynccontextmanager
async def _store(database: str) -> AsyncIterator[Store]:
    store = databases.open_store(database, None, signals.Signals())
    await store.open()
    try:
        yield store
    finally:
        await store.close()
