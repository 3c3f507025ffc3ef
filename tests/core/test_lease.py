"""The right to drive a run is kept through what is harmless, and given up when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

import outlive
from core import record, support
from outlive import Reason, errors, lease, seams, signals
from outlive.model import Claim, EventKind, NewEvent, Renewed, Verdict
from outlive.store import moves, wakeup

STOLEN = (
    "UPDATE runs SET state = 'queued', epoch = epoch + 1, losses = losses + 1,"
    " claim_token = NULL, worker = NULL, lease_until = NULL, renewed_at = NULL"
)
"""What a sweeper does to a run whose holder it takes for lost."""


def block_the_loop_until(condition: Callable[[], bool]) -> None:
    """Hold the event loop as a node with a blocking call does: only other threads run."""
    deadline = time.monotonic() + support.WITHIN
    while not condition():
        select.select([], [], [], 0.005)
        assert time.monotonic() < deadline


def two_attempts(first: Callable[[], None] | None = None) -> Any:
    """The first attempt does something and never ends; the second ends at once."""

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.attempt
        if context.attempt == 1:
            if first is not None:
                first()
            await asyncio.Event().wait()

    return agent


# ---------------------------------------------------------------- a loop that does not turn


async def test_a_node_that_blocks_the_loop_costs_no_lease_and_is_named(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = 0
    margins: list[float] = []

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        before = renewals
        yield 1
        await asyncio.sleep(0)
        block_the_loop_until(lambda: renewals > before + 25)  # twice as long as the lease

    async with support.serving(database, agent, timing=support.QUICK) as served:
        listening = support.heard(served)
        renew = served.store.renew

        def counted(claims: Any, seconds: float) -> list[Renewed]:
            nonlocal renewals
            (run,) = record.rows(database, "SELECT lease_until FROM runs")
            margins.append(run["lease_until"] / 1000 - time.time() if run["lease_until"] else 1.0)
            renewals += 1
            return renew(claims, seconds)

        monkeypatch.setattr(served.store, "renew", counted)
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert support.end(events)["state"] == "succeeded"
    assert (run.epoch, run.losses) == (1, 0)
    assert min(margins) > 0  # it never ran out, not even for a moment
    (stalled,) = listening.all(signals.LoopStalled)
    assert "block_the_loop_until" in stalled.where


@pytest.mark.invariant("I2")
async def test_a_loop_that_stands_still_for_too_long_is_no_longer_vouched_for(database: str) -> None:
    timing = lease.Timing(lease=0.9, renew_every=0.05, margin=0.1, stall_after=0.1, stall_limit=0.3)
    expired = threading.Event()

    def watch_it_expire() -> None:
        while not expired.wait(0.02):
            (run,) = record.rows(database, "SELECT lease_until FROM runs")
            if run["lease_until"] / 1000 < time.time():
                expired.set()

    def stand_still() -> None:
        thread = threading.Thread(target=watch_it_expire)
        thread.start()
        block_the_loop_until(expired.is_set)
        thread.join()

    async with support.serving(database, two_attempts(stand_still), timing=timing) as served:
        listening = support.heard(served)
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
        await listening.of(signals.LeaseLost)
    assert listening.all(signals.RunSwept, early=False)
    assert set(support.refused(listening)) <= {signals.Write.EVENT}  # what it had yielded before
    assert support.data(events) == [2]
    assert (support.end(events)["state"], run.losses) == ("succeeded", 1)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def stepped(database: str) -> AsyncIterator[tuple[outlive.Outlive, lease.Keeper, Clock]]:
    """A keeper without a thread and with a clock of its own, to be called step by step."""
    clock = Clock()
    async with support.serving(database, two_attempts()) as served:
        local = seams.Seams(monotonic=clock)
        keeper = lease.Keeper(served.store, timing=lease.Timing(), happenings=served.signals, local=local)
        keeper._loop = asyncio.get_running_loop()
        yield served, keeper, clock


async def test_a_renewal_that_took_long_is_not_taken_for_a_loop_that_stands_still(
    sqlite_url: str,
) -> None:
    async with stepped(sqlite_url) as (served, keeper, clock):
        listening = support.heard(served)
        for _ in range(3):
            keeper.watch_loop()
            await asyncio.sleep(0)  # the loop answers
            clock.now += keeper.timing.stall_limit * 2  # and the database does not
        assert listening.all(signals.LoopStalled) == []
        assert not keeper._given_up(clock.now)


async def test_a_loop_that_stands_still_is_reported_once_until_it_turns_again(
    sqlite_url: str,
) -> None:
    async with stepped(sqlite_url) as (served, keeper, clock):
        listening = support.heard(served)
        for stalls in (1, 2):
            keeper.watch_loop()
            for _ in range(4):
                clock.now += keeper.timing.stall_after
                keeper.watch_loop()
            assert len(listening.all(signals.LoopStalled)) == stalls
            await asyncio.sleep(0)


def test_a_lease_too_short_for_its_renewals_is_refused() -> None:
    with pytest.raises(errors.Misconfigured):
        lease.Timing(lease=1.0, renew_every=0.4, margin=0.2)


# ---------------------------------------------------------------- a lease that is gone


@pytest.mark.invariant("I2")
async def test_S08_an_executor_whose_run_was_taken_ends_itself_and_writes_nothing_more(database: str) -> None:
    ended = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.attempt
        if context.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async with support.serving(database, agent) as served:
        listening = support.heard(served)
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        record.execute(database, STOLEN)
        events = await support.story(served, run_id)
        await listening.of(signals.LeaseLost, epoch=1)
        assert ended.is_set()
    assert set(support.refused(listening)) <= {signals.Write.RENEWAL}  # a look may come before the renewal
    assert [(event.kind.value, event.epoch) for event in events] == [
        ("attempt", 1),
        ("chunk", 1),
        ("attempt", 3),
        ("chunk", 3),
        ("end", 3),
    ]


@pytest.mark.invariant("I2")
@pytest.mark.parametrize(
    ("script", "write"),
    [("append", signals.Write.EVENT), ("settle", signals.Write.VERDICT)],
)
async def test_S08_a_late_write_is_refused_and_counted_once(
    script: str, write: signals.Write, database: str
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        if script == "append" or context.attempt > 1:
            yield context.attempt
        if script == "append" and context.attempt == 1:
            await asyncio.Event().wait()

    async with support.serving(database, agent) as served:
        listening = support.heard(served)
        with support.held_script(served, script) as writing:
            run_id = (await served.submit("agent")).run.run_id
            await writing.arrival()
            record.execute(database, STOLEN)
        events = await support.story(served, run_id)
        await listening.of(signals.StaleWriteRefused, write=write)
    assert support.refused(listening).count(write) == 1
    assert support.data(events) == [2]
    assert support.end(events)["state"] == "succeeded"


@pytest.mark.invariant("I2")
async def test_S08_a_late_hand_back_is_refused_and_counted(database: str) -> None:
    async with support.serving(database, two_attempts(), slots=0) as api:
        async with support.serving(database, two_attempts()) as going:
            listening = support.heard(going)
            run_id = (await going.submit("agent")).run.run_id
            await support.seen(going, run_id, 1)
            with support.held_script(going, "hand_back") as handing:
                closing = asyncio.create_task(going.close())
                await handing.arrival()
                record.execute(database, STOLEN)
            await closing
        run = await api.run(run_id)
        await api.stop(run_id)
    assert support.refused(listening) == [signals.Write.HAND_BACK]
    assert (run.epoch, run.losses) == (2, 1)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("trusted", [True, False])
async def test_S08_a_late_renewal_is_refused_and_counted_once(trusted: bool, database: str) -> None:
    """While it is trusted the first miss may be a lock; past its trust nothing is put down to one."""
    async with stepped(database) as (served, keeper, clock):
        listening = support.heard(served)
        held = keeper.hold(support.CLAIM, clock.now)
        if not trusted:
            clock.now += keeper.timing.lease
        rounds = 2 if trusted else 1
        for round_ in range(rounds):
            assert (round_, keeper._doubted) == (round_, {})
            await asyncio.to_thread(keeper.renew_once)
        for _ in range(2):
            await keeper.look_for_stops()
    assert support.refused(listening) == [signals.Write.RENEWAL]
    assert held.halt is lease.Halt.LOST


async def test_a_renewal_that_misses_a_run_whose_verdict_is_on_its_way_says_nothing(sqlite_url: str) -> None:
    async with stepped(sqlite_url) as (served, keeper, clock):
        listening = support.heard(served)
        keeper.hold(support.CLAIM, clock.now).ending = True
        for _ in range(3):
            await asyncio.to_thread(keeper.renew_once)
            await keeper.look_for_stops()
    assert support.refused(listening) == []


@pytest.mark.invariant("I2")
async def test_S08_every_write_with_an_old_claim_is_refused(database: str) -> None:
    late = (NewEvent(kind=EventKind.CHUNK, payload="1"),)
    verdict = Verdict(state=outlive.State.SUCCEEDED)
    async with support.serving(database, two_attempts()) as served:
        run = (await served.submit("agent")).run
        await support.seen(served, run.run_id, 1)
        current = run.claim
        last = (await served.run(run.run_id)).last_seq
        stale = [
            Claim(run_id=run.run_id, thread_id=run.thread_id, epoch=epoch, claim_token=token)
            for epoch, token in ((0, current.claim_token), (1, "another"), (2, current.claim_token))
        ]
        for claim in stale:
            for script in (
                moves.append(claim, late, last, 60.0),
                moves.settle(claim, verdict, last),
                moves.settle(claim, verdict, last, raise_epoch=True),
                moves.hand_back(claim, late, last, 60.0),
                moves.hand_back(claim, (), last, 60.0),
            ):
                with pytest.raises(errors.Fenced):
                    await served.store.write(script)
            assert await asyncio.to_thread(served.store.renew, [claim], 60.0) == []
        after = await served.run(run.run_id)
        assert (after.state, after.epoch, after.last_seq) == (outlive.State.RUNNING, 1, last)
        await served.stop(run.run_id)
        await support.story(served, run.run_id)


class BadDatabase:
    """Renewals that fail, or that do not return, until it is back."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._back = threading.Event()

    def renew(self, claims: Any, seconds: float) -> list[Renewed]:
        if self._how == "freezes":
            self._back.wait(support.WITHIN)
        raise errors.StoreUnavailable("The leases could not be renewed.")

    def back(self) -> None:
        self._back.set()


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("how", ["refuses", "freezes"])
async def test_an_executor_that_cannot_renew_ends_itself_before_its_lease_does(
    how: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []
    bad = BadDatabase(how)

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.attempt
        if context.attempt > 1:
            return
        monkeypatch.setattr(served.store, "renew", bad.renew)
        try:
            await asyncio.Event().wait()
        finally:
            (run,) = await asyncio.to_thread(record.rows, database, "SELECT lease_until FROM runs")
            left.append(run["lease_until"] / 1000 - time.time())
            monkeypatch.undo()
            bad.back()

    timing = lease.Timing(lease=3.5, renew_every=0.1, margin=2.0)
    async with support.serving(database, agent, timing=timing) as served:
        listening = support.heard(served)
        run_id = (await served.submit("agent")).run.run_id
        await listening.of(signals.LeaseLost, run_id=run_id, epoch=1)
        events = await support.story(served, run_id)
    assert support.data(events)[0] == 1
    assert support.data(events)[1] > 1
    assert support.end(events)["state"] == "succeeded"
    assert left[0] > 0


async def test_a_row_that_others_keep_locked_is_skipped_and_costs_nothing(
    migrated_postgres_dsn: str,
) -> None:
    go_on = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await go_on.wait()

    timing = lease.Timing(lease=20.0, renew_every=0.05, margin=1.0)
    async with support.serving(migrated_postgres_dsn, agent, timing=timing) as served:
        listening = support.heard(served)
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        looks, look = 0, served._keeper.look_for_stops
        looked_often = asyncio.Event()

        async def counted() -> None:
            nonlocal looks
            await look()
            looks += 1
            if looks == 5:
                looked_often.set()

        served._keeper.look_for_stops = counted  # type: ignore[method-assign]
        async with await psycopg.AsyncConnection.connect(migrated_postgres_dsn) as other:
            await other.execute("SELECT run_id FROM runs FOR UPDATE")
            async with asyncio.timeout(support.WITHIN):
                await looked_often.wait()
        go_on.set()
        events = await support.story(served, run_id)
    assert support.end(events)["state"] == "succeeded"
    assert support.refused(listening) == []
    assert listening.all(signals.LeaseLost) == []


@pytest.mark.parametrize("stopped", [False, True])
async def test_S07_a_running_row_without_a_lease_is_swept_like_any_other(
    stopped: bool, database: str
) -> None:
    """As a version without leases, or somebody's hand, may leave it: no look-out may depend on having one."""
    async with support.serving(database, two_attempts(), slots=0) as api:
        run_id = (await api.submit("agent", thread="t")).run.run_id
        record.execute(database, "UPDATE runs SET state = 'running', epoch = 1")
        if stopped:
            await api.stop(run_id)
            assert support.end(await support.story(api, run_id))["state"] == "stopped"
        async with support.serving(database, two_attempts()) as worker:
            if not stopped:
                events = await support.story(worker, run_id)
                assert [event.epoch for event in events] == [3, 3, 3]
            next_one = (await worker.submit("agent", thread="t")).run.run_id
            await support.seen(worker, next_one, 1)
            await worker.stop(next_one)
            await support.story(worker, next_one)


# ---------------------------------------------------------------- duties that must not die


async def test_stops_are_heard_and_leases_renewed_after_what_nobody_expected(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with support.serving(database, two_attempts(), timing=support.QUICK) as served:
        listening = support.heard(served)
        keeper, look, renew = served._keeper, served._keeper.look_for_stops, served.store.renew

        async def broken_look() -> None:
            keeper.look_for_stops = look  # type: ignore[method-assign]
            raise RuntimeError("unforeseen")

        def broken_renew(claims: Any, seconds: float) -> list[Renewed]:
            monkeypatch.setattr(served.store, "renew", renew)
            raise RuntimeError("unforeseen")

        run_id = (await served.submit("agent")).run.run_id
        keeper.look_for_stops = broken_look  # type: ignore[method-assign]
        monkeypatch.setattr(served.store, "renew", broken_renew)
        served.store.hub.wake((wakeup.STOP,))
        await listening.of(signals.BackgroundFailed, duty="stop requests")
        await listening.of(signals.BackgroundFailed, duty="renewal")
        await served.stop(run_id)
        events = await support.story(served, run_id)
    assert support.end(events)["reason"] == Reason.REQUESTED.value


@pytest.mark.parametrize(
    ("duty", "where", "method"),
    [
        ("claiming", "_worker", "claim_once"),
        ("sweeping", "_sweeper", "sweep_once"),
        ("disconnect", "_disconnect", "look_once"),
    ],
)
async def test_a_duty_goes_on_after_what_nobody_expected(
    duty: str, where: str, method: str, sqlite_url: str
) -> None:
    async with support.serving(sqlite_url, two_attempts()) as served:
        listening = support.heard(served)
        part = getattr(served, where)
        good = getattr(part, method)
        worked = asyncio.Event()

        async def watched() -> Any:
            worked.set()
            return await good()

        async def broken() -> Any:
            setattr(part, method, watched)
            raise RuntimeError("unforeseen")

        setattr(part, method, broken)
        served.store.hub.wake((wakeup.QUEUE, wakeup.VIEWERS))
        await listening.of(signals.BackgroundFailed, duty=duty)
        async with asyncio.timeout(support.WITHIN):
            await worked.wait()
        assert served.ready
