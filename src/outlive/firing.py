"""Turns the slots of schedules into runs, each once, or into a row that says why there is none.

Decides which of the slots that have come become runs, and what a refusal of one means.  Any number of
processes do so side by side.  It is done in three steps, each a transaction of its own: the slot's row is
written as the schedule moves past it, its run is submitted under the id in that row, the row says what came
of it.  Whoever dies between two of them leaves a row that waits, and another goes on with it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from outlive import cron, errors, failpoints, seams, signals
from outlive.agents import Registry
from outlive.commands import Commands
from outlive.policy import RunPolicy
from outlive.store import Store, deleting, schedules, wakeup
from outlive.store.schedules import Missed, Occurrence, Plan, Planned, Schedule, Status, Why

LATEST = 100
"""Of slots that are noticed together, at most so many of the newest become runs or have their own row."""
LOOK = 20_000
"""Slots that one step goes past at most."""
BATCH = 50
LEASE = 5.0
"""Seconds after which an occurrence that somebody took is taken again; a run is made once all the same."""
PATIENCE = 60.0
"""Seconds for which an occurrence waits for a process that has its agent."""
_REASONS: tuple[tuple[type[errors.OutliveError], Why], ...] = (
    (errors.ThreadBusy, Why.THREAD_BUSY),
    (errors.ThreadLeft, Why.THREAD_LEFT),
    (errors.LimitReached, Why.LIMIT),
    (errors.NotFound, Why.AGENT_UNKNOWN),
    (errors.Refused, Why.REFUSED),
)


def plan(found: Schedule, new_id: Callable[[], str]) -> Plan:
    """Say what to write for the slots up to now that are not accounted for.  Pure, but for the ids."""
    times = cron.parse(found.cron, found.timezone)
    now = max(found.now, found.seen_until)
    until = now if found.ends_at is None else min(now, found.ends_at)
    come = list(itertools.islice(cron.slots(times, int(found.seen_until), until), LOOK))
    if len(come) == LOOK:  # there may be more: the newest of these are left for the next step
        past = come[:-LATEST]
        rows = _row(found, past, new_id)
        return Plan(rows=rows, seen_until=past[-1], next_at=come[-LATEST], state=found.state)
    rows = _row(found, come[:-LATEST], new_id)
    for slot in come[-LATEST:]:
        fires, on_time = _fires(found, slot, come[-1])
        late = Why.PAUSED if found.state is Status.PAUSED else Why.MISSED
        deadline = slot + found.grace if on_time and found.missed is Missed.SKIP else None
        row = Planned(slot=slot, run_id=new_id(), reason=None if fires else late, deadline=deadline)
        rows = (*rows, row)
    after = next(iter(cron.following(times, int(now))), None)
    over = after is None or (found.ends_at is not None and after > found.ends_at)
    state = Status.ENDED if over else found.state
    return Plan(rows=rows, seen_until=now, next_at=None if over else after, state=state)


def _row(found: Schedule, past: list[int], new_id: Callable[[], str]) -> tuple[Planned, ...]:
    """One row for the slots that are too many to have their own."""
    if not past:
        return ()
    why = Why.PAUSED if found.state is Status.PAUSED else Why.MISSED
    return (Planned(slot=past[-1], run_id=new_id(), reason=why, slots=len(past)),)


def _fires(found: Schedule, slot: int, newest: int) -> tuple[bool, bool]:
    """Say whether a slot becomes a run, and whether that is because it was noticed in time."""
    if found.state is not Status.ACTIVE:
        return False, False
    on_time = found.now - slot <= found.grace
    late = found.missed is Missed.ALL or (found.missed is Missed.LATEST and slot == newest)
    return on_time or late, on_time


class Timetable:
    """One process's share of the firing."""

    def __init__(
        self,
        store: Store,
        commands: Commands,
        registry: Registry,
        *,
        happenings: signals.Signals,
        local: seams.Seams = seams.REAL,
    ) -> None:
        self._store = store
        self._commands = commands
        self._registry = registry
        self._signals = happenings
        self._local = local

    async def run(self) -> None:
        """Fire for ever: when the next slot comes, at each hint, and at least once in a poll interval."""
        with self._store.hub.watch(wakeup.SCHEDULES) as waiter:
            while True:
                waiter.clear()
                bound = self._store.hub.poll * (0.8 + 0.4 * self._local.random())
                try:
                    await self.look_once()
                    wait = await self._store.read(schedules.wait())
                    bound = bound if wait is None else min(bound, max(wait, 0.0))
                except Exception as failure:  # one row that cannot be read must not end the firing
                    self._signals.emit(signals.BackgroundFailed(duty="schedules", error=repr(failure)))
                await waiter.wait(bound)

    async def look_once(self) -> int:
        """Account for the slots that have come, and submit what waits; returns how many runs that made."""
        for found in await self._store.read(schedules.due(BATCH)):
            await move_on(self._store, found, self._local.new_id, self._signals)
        failpoints.reach("schedules.planned")
        fired = 0
        while taken := await self._take():
            for each in taken:
                fired += await self._settle(each)
        return fired

    async def _take(self) -> list[Occurrence]:
        if not await self._store.read(schedules.waiting()):  # a look must not cost a write
            return []
        return await self._store.write(schedules.take(self._registry.names, BATCH, LEASE, PATIENCE))

    async def _settle(self, each: Occurrence) -> bool:
        failpoints.reach("schedules.taken")
        if each.barred is not None:
            return await self._skip(each, each.barred, None)
        try:
            await self._submit(each)
        except errors.Refused as refused:
            why = next(why for kind, why in _REASONS if isinstance(refused, kind))
            return await self._skip(each, why, str(refused))
        except errors.Unavailable:
            return False  # its row waits, and is taken again
        failpoints.reach("schedules.submitted")
        late = await self._store.write(schedules.fired(each.run_id))
        failpoints.reach("schedules.fired")
        if late is not None:
            self._signals.emit(
                signals.ScheduleFired(
                    schedule_id=each.schedule_id, run_id=each.run_id, slot=each.slot, seconds=late
                )
            )
        return late is not None

    async def _submit(self, each: Occurrence) -> None:
        made = await self._commands.submit(
            each.agent,
            each.input,
            thread=each.thread,
            key=f"schedule:{each.schedule_id}:{each.slot:.0f}",
            tenant=each.tenant,
            policy=policy_of(self._registry[each.agent].policy, each.policy),
            metadata={**each.metadata, "schedule_id": each.schedule_id, "slot": each.slot},
            principal=each.principal,
            webhook=each.webhook,
            run_id=each.run_id,
        )
        if each.passes_after is not None:
            run = made.run
            await self._store.write(deleting.pass_after(run.tenant, run.thread, each.passes_after))

    async def _skip(self, each: Occurrence, why: Why, error: str | None) -> bool:
        if await self._store.write(schedules.skipped(each.run_id, why, error)):
            self._signals.emit(
                signals.ScheduleSkipped(schedule_id=each.schedule_id, slot=each.slot, reason=why.value)
            )
        return False


async def move_on(store: Store, found: Schedule, new_id: Callable[[], str], told: signals.Signals) -> None:
    """Account for the slots of one schedule that have come."""
    planned = await asyncio.to_thread(plan, found, new_id)
    failpoints.reach("schedules.due")
    for each in await store.write(schedules.advance(found, planned)):
        if each.reason is not None:
            told.emit(
                signals.ScheduleSkipped(
                    schedule_id=found.schedule_id,
                    slot=each.slot,
                    reason=each.reason.value,
                    slots=each.slots,
                )
            )


def policy_of(declared: RunPolicy, changes: dict[str, object]) -> RunPolicy:
    """Return the policy of a schedule's runs: its agent's with its own changes.

    Nobody watches what no request has made: it goes on without viewers, unless the schedule says otherwise.
    """
    return declared.but(**{"on_disconnect": "continue", **changes})
