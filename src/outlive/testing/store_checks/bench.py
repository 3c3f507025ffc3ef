"""What one check of a store works with: two stores on one database, short words, and waits with a bound.

Decides how a check makes runs, loses leases and looks at the record.  What must hold is in the modules of
checks beside this one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outlive import errors, policy, seams
from outlive.model import (
    Appended,
    Claim,
    Event,
    EventKind,
    NewEvent,
    Offer,
    Renewed,
    Run,
    Submission,
    Submitted,
    Suspect,
    Verdict,
)
from outlive.states import Guard, Move, Reason, State
from outlive.store import Store, moves, reads
from outlive.store.script import Script, Statement, Steps, script, statement

T = TypeVar("T")
E = TypeVar("E", bound=errors.OutliveError)

Factory = Callable[[], AbstractAsyncContextManager[Store]]
"""Gives an open store, and closes it; every store that it gives uses one and the same database."""
Backdoor = Callable[[str], Awaitable[list[tuple[Any, ...]]]]
"""Runs one SQL text on the stores' database, behind their backs, and returns its rows."""

LEASE = 30.0
SHORT = 0.05
WITHIN = 20.0
"""Seconds that a check may wait for something: a bound for a broken store, not a claim about speed."""


class Skip(Exception):
    """This check needs something that this store, or this call, does not have."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: a sentence, and the code that tries to break it.

    ``guards`` names the pairs of move and guard whose condition the check violates.
    """

    name: str
    sentence: str
    run: Callable[[Bench], Awaitable[None]]
    guards: frozenset[tuple[Move, Guard]]

    def __str__(self) -> str:
        return self.name


CHECKS: list[Check] = []


def check(
    *guards: tuple[Move, Guard],
) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
    """Make a coroutine function a check; its docstring is the promise, its name the check's name."""

    def register(run: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
        sentence = (run.__doc__ or "").strip().splitlines()[0]
        CHECKS.append(Check(getattr(run, "__name__", ""), sentence, run, frozenset(guards)))
        return run

    return register


@dataclass(kw_only=True, slots=True)
class Bench:
    """Two stores, and names that no other check uses, so that one database serves many checks."""

    one: Store
    two: Store
    backdoor: Backdoor | None = None
    agent: str = field(default_factory=lambda: f"agent-{seams.new_id()}")
    tenant: str = field(default_factory=lambda: f"tenant-{seams.new_id()}")
    worker: str = field(default_factory=seams.new_id)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # ------------------------------------------------------------ making runs

    def submission(self, **changes: Any) -> Submission:
        """A submit of this check's own, with some fields changed."""
        plain = Submission(
            run_id=seams.new_id(),
            tenant=self.tenant,
            agent=self.agent,
            input="{}",
            fingerprint="same",
            policy=policy.chat(),
        )
        return replace(plain, **changes)

    def offer(self, **changes: Any) -> Offer:
        """A free slot for this check's agent."""
        plain = Offer(worker=self.worker, claim_token=seams.new_id(), lease=LEASE, agents=(self.agent,))
        return replace(plain, **changes)

    async def submit(self, offer: Offer | None = None, **changes: Any) -> Submitted:
        """Submit through the first store."""
        return await self.one.write(moves.submit(self.submission(**changes), offer))

    async def queued(self, **changes: Any) -> Run:
        """A run that waits."""
        return (await self.submit(**changes)).run

    async def claim(self, store: Store | None = None, **changes: Any) -> Run | None:
        """Claim the next run of this check's agent, if there is one."""
        taken = await (store or self.one).write(moves.claim([self.offer(**changes)]))
        return taken[0] if taken else None

    async def running(self, **changes: Any) -> Run:
        """A run that this check holds."""
        run = await self.queued(**changes)
        taken = await self.claim()
        assert taken is not None, "the only queued run was not claimed"
        assert taken.run_id == run.run_id, "another run was claimed"
        return taken

    async def expired(self, **changes: Any) -> Run:
        """A run whose holder's lease is over by the database's clock."""
        run = await self.queued(**changes)
        taken = await self.claim_and_expire()
        assert taken.run_id == run.run_id, "another run was claimed"
        return taken

    async def claim_and_expire(self) -> Run:
        """Claim the next run and wait until its lease is over."""
        taken = None
        async with asyncio.timeout(WITHIN):
            while taken is None:
                try:
                    taken = await self.claim(lease=SHORT)
                except errors.Fenced:
                    continue  # the machine stood still for longer than the lease
        assert taken.lease_until is not None
        await self.until(taken.lease_until)
        return taken

    # ------------------------------------------------------------ moving them

    async def append(self, run: Run, *payloads: str, store: Store | None = None) -> Appended:
        """Append chunks after the last event that ``run`` knew of."""
        batch = chunks(*payloads)
        return await (store or self.one).write(moves.append(run.claim, batch, run.last_seq, LEASE))

    async def settle(
        self, run: Run, state: State = State.SUCCEEDED, *, at: int | None = None, reason: Reason | None = None
    ) -> None:
        """Record a verdict after event ``at`` (default: the last that ``run`` knew of)."""
        expected = run.last_seq if at is None else at
        await self.one.write(moves.settle(run.claim, Verdict(state=state, reason=reason), expected))

    async def stop(self, run: Run, reason: Reason = Reason.REQUESTED) -> None:
        """Ask a run to stop."""
        await self.one.write(moves.stop(run.run_id, self.tenant, reason))

    async def renew(self, claims: Sequence[Claim], lease: float = LEASE) -> list[Renewed]:
        """Renew from a thread, as the keeper of leases does."""
        return await asyncio.to_thread(self.one.renew, claims, lease)

    # ------------------------------------------------------------ looking

    async def run(self, run_id: str, store: Store | None = None) -> Run:
        """The run as it is now."""
        return await (store or self.one).read(reads.run(run_id, None))

    async def events(self, run_id: str) -> list[Event]:
        """Every event of a run, read through the other store."""
        return await self.two.read(reads.events(run_id, 0, 100_000))

    async def suspect(self, run: Run) -> Suspect:
        """The sweeper's view of a running run."""
        found = await self.one.read(reads.suspects(0, 1000))
        return next(one for one in found if one.run_id == run.run_id)

    async def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run SQL behind the stores' backs; skips the check where there is no way to."""
        if self.backdoor is None:
            raise Skip("needs a backdoor to the database")
        return await self.backdoor(text)

    async def spoil(self, run: Run, columns: str) -> None:
        """Set columns of a run's row to what no move would: ``name = literal``."""
        await self.sql(f"UPDATE runs SET {columns} WHERE run_id = '{run.run_id}'")  # noqa: S608

    async def clock(self) -> float:
        """The database's clock."""
        return await self.one.read(clock())

    async def until(self, moment: float) -> None:
        """Wait until the database's clock is past ``moment``."""
        async with asyncio.timeout(WITHIN):
            while await self.clock() <= moment + 0.001:  # noqa: ASYNC110 - a clock raises no event
                await asyncio.sleep(0.002)

    def distinct(self) -> None:
        """Skip a check that makes sense only where two stores are two processes' views of one file."""
        if self.one is self.two:
            raise Skip("this database belongs to one store alone")


@script(reads=True)
def clock() -> Steps[float]:
    """Read the database's clock, in seconds."""
    rows = yield statement("clock")
    return float(rows[0]["now_ms"]) / 1000


def chunks(*payloads: str) -> tuple[NewEvent, ...]:
    """Events on their way into a log."""
    return tuple(NewEvent(kind=EventKind.CHUNK, payload=payload) for payload in payloads)


def traced(original: Script[T], names: list[str]) -> Script[T]:
    """The same script, noting the name of each statement that it runs."""

    def start() -> Generator[Statement, list[Any], T]:
        names.clear()  # a store may begin again
        steps = original.start()
        try:
            step = next(steps)
            while True:
                names.append(step.name)
                step = steps.send((yield step))
        except StopIteration as end:
            value: T = end.value
            return value

    return Script(original.name, start, original.single, original.reads)


def other(claim: Claim, **changes: Any) -> Claim:
    """A claim that differs from the holder's."""
    return replace(claim, **changes)


async def refused(kind: type[E], attempt: Awaitable[object]) -> E:
    """Expect an error of this kind and return it."""
    try:
        value = await attempt
    except kind as expected:
        return expected
    raise AssertionError(f"expected {kind.__name__}, got {value!r}")


def kinds(events: Sequence[Event]) -> list[str]:
    """What happened, in order."""
    return [event.kind.value for event in events]


def assert_whole(events: Sequence[Event], state: State) -> None:
    """A finished run's log has no hole, no repeat, one end, and the end is last and tells the state."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "a hole or a repeat in seq"
    assert kinds(events).count("end") == 1, f"expected one end event in {kinds(events)}"
    assert events[-1].kind is EventKind.END, "something follows the end event"
    assert events[-1].data["state"] == state, f"the end event says {events[-1].data}"
