"""Schedules as people and programs see them: make, look, change, pause, resume, delete.

Decides what a schedule may be; when its slots are is ``cron``'s to say, what becomes of them ``firing``'s.
A change holds for the slots that come after it: those that came before are accounted for first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from outlive import commands, cron, errors, firing, names, notifications, policy, seams, signals
from outlive.agents import Registry
from outlive.store import Store, schedules, wakeup
from outlive.store.schedules import Missed, Occurrence, Schedule, Status

GRACE = 60.0
MOST = 1000
LONGEST_GRACE = 366 * 86400.0
CHANGEABLE = frozenset(
    {
        *("cron", "timezone", "agent", "input", "thread", "name", "metadata", "policy", "webhook"),
        *("missed", "grace", "ends_at", "passes_after"),
    }
)
_TRIES = 10
Told = Callable[[str, str, str | None], str | None]


class Desk:
    """The schedules of one database.  With a ``registry`` agents are checked, else they live elsewhere."""

    def __init__(
        self,
        store: Store,
        registry: Registry | None = None,
        *,
        happenings: signals.Signals,
        told: Told = notifications.refuse,
        local: seams.Seams = seams.REAL,
    ) -> None:
        self._store = store
        self._registry = registry
        self._signals = happenings
        self._told = told
        self._local = local

    async def create(
        self,
        cron: str,
        agent: str,
        input: Any = None,  # noqa: A002 - the word that every caller looks for
        *,
        timezone: str = "UTC",
        thread: str | None = None,
        name: str = "",
        metadata: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        webhook: str | None = None,
        missed: str = Missed.SKIP,
        grace: float = GRACE,
        ends_at: float | None = None,
        passes_after: float | None = None,
        paused: bool = False,
        tenant: str = "",
        principal: str = "",
    ) -> Schedule:
        """Make a schedule: each slot of ``cron`` in ``timezone`` becomes a run, or says why not.

        ``policy`` are changes to the agent's, by name.  A slot that is noticed more than ``grace`` seconds
        late is a missed one.  There is none after ``ends_at`` (seconds since the epoch).  Without a
        ``thread`` each run has its own, which is deleted ``passes_after`` seconds after the last that happens
        on it (None: never).  Raises ``InvalidInput``, and ``NotFound`` for an agent.
        """
        now = await self._store.read(schedules.clock())
        wanted = Schedule(
            schedule_id=self._local.new_id(),
            tenant=tenant,
            name=name,
            cron=cron,
            timezone=timezone,
            agent=agent,
            thread=thread,
            input=input,
            metadata=dict(metadata or {}),
            policy=dict(policy or {}),
            webhook=webhook,
            principal=principal,
            missed=_missed(missed),
            grace=grace,
            ends_at=ends_at,
            passes_after=passes_after,
            state=Status.PAUSED if paused else Status.ACTIVE,
            seen_until=now,
            next_at=None,
            now=now,
        )
        placed = await asyncio.to_thread(self._placed, wanted, first=True)  # time zones are files
        made = await self._store.write(schedules.create(placed))
        self._store.announce(wakeup.SCHEDULES)
        return made

    async def newest(self, *, tenant: str = "", limit: int = 50, before: str | None = None) -> list[Schedule]:
        """Return up to ``limit`` schedules (1 to 1000), newest first, older than the schedule ``before``."""
        _check_limit(limit)
        names.check_name("before", before)
        return await self._store.read(schedules.listed(tenant, limit, before))

    async def show(self, schedule_id: str, *, tenant: str | None = "") -> Schedule:
        """Return one schedule; raises ``NotFound``."""
        names.check_name("schedule_id", schedule_id)
        return await self._store.read(schedules.find(schedule_id, tenant))

    async def occurrences(
        self, schedule_id: str, *, tenant: str = "", limit: int = 50, before: float | None = None
    ) -> list[Occurrence]:
        """Return what became of up to ``limit`` slots before a time, newest first; raises ``NotFound``."""
        _check_limit(limit)
        found = await self.show(schedule_id, tenant=tenant)
        bound = cron.LAST if before is None else before
        return await self._store.read(schedules.occurrences(found.schedule_id, tenant, limit, bound))

    async def next(self, schedule_id: str, *, tenant: str = "", count: int = 5) -> list[float]:
        """Return when the next ``count`` slots (1 to 1000) are; raises ``NotFound``."""
        _check_limit(count)
        return await asyncio.to_thread(following, await self.show(schedule_id, tenant=tenant), count)

    async def update(self, schedule_id: str, *, tenant: str = "", **changes: Any) -> Schedule:
        """Change some of what ``create`` takes; raises ``NotFound`` and ``InvalidInput``."""
        if "paused" in changes:
            changes["state"] = Status.PAUSED if changes.pop("paused") else Status.ACTIVE
        for field in changes:
            if field not in CHANGEABLE | {"state"}:
                raise errors.InvalidInput(f"{field} of a schedule cannot be changed.", field=field)
        if "missed" in changes:
            changes["missed"] = _missed(changes["missed"])
        return await self._change(schedule_id, tenant, changes)

    async def pause(self, schedule_id: str, *, tenant: str = "") -> Schedule:
        """Skip the slots that come from now on; raises ``NotFound``.  One that is paused stays so."""
        return await self._change(schedule_id, tenant, {"state": Status.PAUSED})

    async def resume(self, schedule_id: str, *, tenant: str = "") -> Schedule:
        """Let the slots that come from now on become runs again; raises ``NotFound``."""
        return await self._change(schedule_id, tenant, {"state": Status.ACTIVE})

    async def delete(self, schedule_id: str, *, tenant: str = "") -> None:
        """Take a schedule away, with the record of its slots; its runs stay.  Raises ``NotFound``."""
        names.check_name("schedule_id", schedule_id)
        await self._store.write(schedules.drop(schedule_id, tenant))

    async def _change(self, schedule_id: str, tenant: str, changes: Mapping[str, Any]) -> Schedule:
        for _ in range(_TRIES):
            now = await self.show(schedule_id, tenant=tenant)
            if now.due:
                await firing.move_on(self._store, now, self._local.new_id, self._signals)
                continue
            wanted = await asyncio.to_thread(self._placed, dataclasses.replace(now, **changes))
            changed = await self._store.write(schedules.change(now, wanted))
            if changed is not None:
                self._store.announce(wakeup.SCHEDULES)
                return changed
        raise errors.Conflict("Others are changing this schedule.", hint="Ask again.")

    def _placed(self, wanted: Schedule, *, first: bool = False) -> Schedule:
        """Check a schedule, and say when its first slot from now on is."""
        checked = self._checked(wanted)
        times = cron.parse(checked.cron, checked.timezone)
        since = max(checked.now, checked.seen_until)
        after = next(iter(cron.following(times, int(since))), None)
        over = after is None or (checked.ends_at is not None and after > checked.ends_at)
        if over and first:
            field = "cron" if after is None else "ends_at"
            raise errors.InvalidInput("No slot of this schedule comes before its end.", field=field)
        state = Status.ENDED if over else checked.state
        state = Status.ACTIVE if state is Status.ENDED and not over else state
        return dataclasses.replace(checked, seen_until=since, next_at=None if over else after, state=state)

    def _checked(self, wanted: Schedule) -> Schedule:
        for field in ("tenant", "name", "agent", "thread", "principal"):
            names.check_name(field, getattr(wanted, field))
        for field in ("agent", "thread"):
            if getattr(wanted, field) == "":
                raise errors.InvalidInput(f"{field} is empty.", field=field)
        _check_number("grace", wanted.grace, LONGEST_GRACE)
        if wanted.ends_at is not None:
            _check_number("ends_at", wanted.ends_at, cron.LAST)
        if wanted.passes_after is not None:
            _check_number("passes_after", wanted.passes_after, LONGEST_GRACE)
            if wanted.thread is not None:
                raise errors.InvalidInput(
                    "passes_after is for runs that have threads of their own.", field="passes_after"
                )
        known = policy.job() if self._registry is None else self._registry[wanted.agent].policy
        firing.policy_of(known, wanted.policy)
        if self._registry is not None:
            self._told(wanted.tenant, wanted.agent, wanted.webhook)
        plain = {
            field: json.loads(commands.exact(field, getattr(wanted, field)))
            for field in ("input", "metadata", "policy")
        }
        return dataclasses.replace(wanted, **plain)


def following(found: Schedule, count: int) -> list[float]:
    """Return when the next ``count`` slots of a schedule are, by the time at which it was read."""
    times = cron.parse(found.cron, found.timezone)
    coming = cron.following(times, int(max(found.now, found.seen_until)), count)
    return [float(slot) for slot in coming if found.ends_at is None or slot <= found.ends_at]


def _missed(word: str) -> Missed:
    try:
        return Missed(word)
    except ValueError:
        allowed = ", ".join(Missed)
        raise errors.InvalidInput(f"missed is one of {allowed}, not {word!r}.", field="missed") from None


def _check_number(field: str, value: object, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= most):
        raise errors.InvalidInput(f"{field} is a number of seconds from 0 to {most:.0f}.", field=field)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise errors.InvalidInput(f"limit must be between 1 and {MOST}.", field="limit")
