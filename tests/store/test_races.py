"""Races, stepped through by hand where the order matters and run for real where it must not."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from outlive import errors, signals
from outlive.model import Admitted, Run, StopOutcome, Swept, Verdict
from outlive.states import Reason, State
from outlive.store import moves, reads, steps
from outlive.store.postgres import PostgresStore
from outlive.store.script import Steps, script
from outlive.testing import conformance
from outlive.testing.store_checks.bench import LEASE, Backdoor, Bench, Factory, chunks
from store import support
from store.stepping import Stepping, blocked, stepping

DONE = Verdict(state=State.SUCCEEDED)


@pytest.fixture
async def bench(empty_dsn: str) -> Any:
    factory = support.postgres_factory(empty_dsn)
    async with factory() as one, factory() as two:
        yield Bench(one=one, two=two, backdoor=support.postgres_backdoor(empty_dsn))


@script()
def claim_without_a_lock(run: Run, bench: Bench) -> Steps[bool]:
    """What a claim would be if it trusted its own query."""
    return (yield from steps.claim_one(run.run_id, run.thread_id, bench.offer()))


@contextlib.asynccontextmanager
async def two_claims_that_both_looked(
    dsn: str, bench: Bench
) -> AsyncIterator[tuple[Stepping[bool], Stepping[bool]]]:
    """One claim has written, uncommitted; the other has not, and what it will read says that it may."""
    first = await bench.queued(thread="t", not_before=4e9)
    second = await bench.queued(thread="t")
    async with (
        stepping(dsn, claim_without_a_lock(second, bench)) as one,
        stepping(dsn, claim_without_a_lock(first, bench)) as two,
    ):
        await one.after("claim")
        await bench.spoil(first, "not_before = 1")
        yield one, two


async def test_I3_without_the_unique_index_two_runs_of_one_thread_run_at_once(
    bench: Bench, empty_dsn: str
) -> None:
    await bench.sql("DROP INDEX one_running_run_per_thread")
    async with two_claims_that_both_looked(empty_dsn, bench) as (one, two):
        await two.after("claim")
        await one.commit()
        await two.commit()
    assert await bench.sql("SELECT count(*) FROM runs WHERE state = 'running'") == [(2,)]


async def test_I3_with_the_unique_index_the_second_claim_is_refused(bench: Bench, empty_dsn: str) -> None:
    async with two_claims_that_both_looked(empty_dsn, bench) as (one, two):
        late = await blocked(empty_dsn, two.after("claim"))
        await one.commit()
        with pytest.raises(psycopg.errors.UniqueViolation, match="one_running_run_per_thread"):
            await late
    assert await bench.sql("SELECT count(*) FROM runs WHERE state = 'running'") == [(1,)]


async def test_I3_two_hundred_times_two_processes_claim_one_thread_and_one_wins(bench: Bench) -> None:
    await asyncio.gather(*(bench.queued(thread="t") for _ in range(200)))
    order = []
    for _ in range(200):
        answers = await asyncio.gather(
            *(store.write(moves.claim([bench.offer(), bench.offer()])) for store in (bench.one, bench.two))
        )
        [run] = [run for answer in answers for run in answer]
        order.append(run.pos)
        await bench.settle(run)
    assert order == list(range(1, 201))


async def test_a_claim_does_not_wait_for_another_claim_of_the_thread(bench: Bench, empty_dsn: str) -> None:
    run, elsewhere = await bench.queued(thread="t"), await bench.queued(thread="u")
    async with stepping(empty_dsn, moves.claim([bench.offer()])) as first:
        await first.after("claim")
        taken = await bench.two.write(moves.claim([bench.offer(), bench.offer()]))
        assert [one.run_id for one in taken] == [elsewhere.run_id]
        assert [one.run_id for one in await first.finish()] == [run.run_id]


@pytest.mark.parametrize("commits", [True, False])
async def test_S21_the_second_submit_of_a_key_waits_for_the_first(
    commits: bool, bench: Bench, empty_dsn: str
) -> None:
    async with stepping(empty_dsn, moves.submit(bench.submission(key="k"), None)) as first:
        made = await first.rest()
        second = await blocked(empty_dsn, bench.submit(key="k"))
        await first.connection.execute("COMMIT" if commits else "ROLLBACK")
    answer = await second
    if commits:
        assert (answer.admitted, answer.run.run_id) == (Admitted.ATTACHED, made.run.run_id)
    else:
        assert answer.admitted is Admitted.CREATED
    assert await bench.sql("SELECT count(*) FROM runs") == [(1,)]


async def test_S10_a_stop_that_saw_a_running_run_does_not_overwrite_its_success(
    bench: Bench, empty_dsn: str
) -> None:
    run = await bench.running()
    async with stepping(empty_dsn, moves.stop(run.run_id, None, Reason.REQUESTED)) as stop:
        await stop.before("lock_thread")  # it has read the status
        await bench.settle(run)
        answer = await stop.finish()
    assert (answer.outcome, answer.run.state) == (StopOutcome.ALREADY, State.SUCCEEDED)
    assert (await bench.run(run.run_id)).state is State.SUCCEEDED


async def test_S10_a_success_after_a_stop_request_keeps_both_facts(bench: Bench, empty_dsn: str) -> None:
    run = await bench.running()
    async with stepping(empty_dsn, moves.stop(run.run_id, None, Reason.REQUESTED)) as stop:
        await stop.after("request_stop")
        settling = await blocked(empty_dsn, bench.settle(run))
        assert (await stop.finish()).outcome is StopOutcome.REQUESTED
    await settling
    ended = await bench.run(run.run_id)
    assert (ended.state, ended.stop_reason) == (State.SUCCEEDED, Reason.REQUESTED)


async def test_a_write_that_waited_out_a_sweep_is_refused(bench: Bench, empty_dsn: str) -> None:
    for late in ("append", "settle", "hand_back"):
        run = await bench.running()
        script = {
            "append": moves.append(run.claim, chunks("1"), run.last_seq, LEASE),
            "settle": moves.settle(run.claim, DONE, run.last_seq),
            "hand_back": moves.hand_back(run.claim, (), run.last_seq, LEASE),
        }[late]
        async with stepping(empty_dsn, moves.sweep(await bench.suspect(run), early=True)) as sweep:
            await sweep.after("requeue_lost")
            writing = await blocked(empty_dsn, bench.two.write(script))
            assert await sweep.finish() is Swept.REQUEUED
        with pytest.raises(errors.Fenced):
            await writing
        assert [event.kind for event in await bench.events(run.run_id)] == ["attempt"]
        await bench.stop(run)


async def test_an_append_waits_for_a_submit_on_its_thread_and_then_goes_on(
    bench: Bench, empty_dsn: str
) -> None:
    run = await bench.running(thread="t")
    async with stepping(empty_dsn, moves.submit(bench.submission(thread="t"), None)) as submit:
        await submit.rest()
        appending = await blocked(empty_dsn, bench.append(run, "1", "2"))
        await submit.commit()
    assert (await appending).last_seq == 3
    assert [event.thread_seq for event in await bench.events(run.run_id)] == [1, 2, 3]


@pytest.mark.parametrize("move", ["append", "settle"])
async def test_a_write_takes_the_threads_row_before_the_runs(move: str, bench: Bench, empty_dsn: str) -> None:
    """The other way round, it and a stop would wait for each other."""
    run = await bench.running()
    script = (
        moves.append(run.claim, chunks("1"), run.last_seq, LEASE)
        if move == "append"
        else moves.settle(run.claim, DONE, run.last_seq)
    )
    async with stepping(empty_dsn, moves.stop(run.run_id, None, Reason.REQUESTED)) as stop:
        await stop.after("lock_thread")
        writing = await blocked(empty_dsn, bench.one.write(script))
        async with stepping(empty_dsn, moves.claim([])) as other:
            await other.connection.execute("SELECT 1 FROM runs FOR NO KEY UPDATE NOWAIT")
        await stop.finish()
    await writing


async def hold_row(run: Run, stepped: Stepping[Any]) -> None:
    await stepped.connection.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", (run.run_id,))


async def test_a_renewal_skips_a_locked_row_and_renews_the_others(bench: Bench, empty_dsn: str) -> None:
    locked, free = await bench.running(), await bench.running()
    async with stepping(empty_dsn, moves.claim([])) as other:
        await hold_row(locked, other)
        async with asyncio.timeout(20):
            renewed = await bench.renew([locked.claim, free.claim])
        assert [one.run_id for one in renewed] == [free.run_id]
        found = await bench.two.read(reads.held([locked.claim, free.claim]))
        assert {one.run_id for one in found} == {locked.run_id, free.run_id}
    assert {one.run_id for one in await bench.renew([locked.claim])} == {locked.run_id}


async def test_what_is_read_after_a_lock_is_new_whatever_the_database_defaults_to(empty_dsn: str) -> None:
    name = empty_dsn.rpartition("/")[2]
    support.postgres_rows(
        empty_dsn, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"
    )
    checks = [check for check in conformance.CHECKS if check.name in {
        "S21_one_key_sent_many_times_at_once_makes_one_run",
        "one_key_sent_many_times_at_once_continues_once",
        "S10_of_many_who_end_a_run_one_wins",
        "numbers_have_no_hole_while_others_write_to_the_thread",
    }]  # fmt: skip
    assert len(checks) == 4
    factory = support.postgres_factory(empty_dsn)
    async with factory() as one, factory() as two:
        with support.told(one) as seen, support.told(two) as seen_too:
            for check in checks:
                (await conformance.run_check(check, one, two)).raise_for_failure()
    retried = {each.script for each in (*seen, *seen_too) if isinstance(each, signals.StoreRetried)}
    assert retried <= {"append", "settle", "begin"}, "only single statements run at the database's own level"


# ---------------------------------------------------------------- cancelled callers (I13)


ACTIVITY = """
SELECT pid, state, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND state <> 'idle'"""
LOCKS = """
SELECT l.locktype, l.mode FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE d.datname = current_database() AND l.pid <> pg_backend_pid() AND l.locktype <> 'virtualxid'"""


async def settled(store: PostgresStore) -> None:
    """Wait until nothing runs in the store any more."""
    while store._running:
        await asyncio.wait(set(store._running), timeout=20)
    assert store._pool is not None
    async with asyncio.timeout(20):
        while not store._pool.whole:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)


async def test_I13_cancelled_callers_leave_no_connection_lock_or_task(empty_dsn: str) -> None:
    store = PostgresStore(empty_dsn, pool_size=3)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        before = asyncio.all_tasks()
        for turns in range(100):
            run_script = moves.submit(bench.submission(thread=f"t{turns % 3}", key=f"k{turns % 7}"), None)
            task = asyncio.get_running_loop().create_task(store.write(run_script))
            for _ in range(turns % 25):
                await asyncio.sleep(0)
            task.cancel()
        await settled(store)
        await asyncio.sleep(0)
        assert support.postgres_rows(empty_dsn, ACTIVITY) == []
        assert support.postgres_rows(empty_dsn, LOCKS) == []
        left = {t for t in asyncio.all_tasks() - before if not t.done()}
        assert [t for t in left if "pool" not in t.get_name()] == []
        assert (await bench.queued(thread="t0")).pos >= 1


async def test_I13_a_caller_cancelled_while_waiting_for_a_lock_still_commits_whole(
    bench: Bench, empty_dsn: str
) -> None:
    run = await bench.running(thread="t")
    async with stepping(empty_dsn, moves.submit(bench.submission(thread="t"), None)) as holder:
        await holder.rest()
        waiting = await blocked(empty_dsn, bench.append(run, "1", "2"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await holder.commit()
    await bench.stop(run)  # queues behind the abandoned write
    assert (await bench.run(run.run_id)).last_seq == 3


# ---------------------------------------------------------------- the indexes themselves


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> tuple[Factory, Backdoor]:
    """Each kind of database, and a way behind its stores' backs."""
    if request.param == "sqlite":
        path = request.getfixturevalue("sqlite_path")
        return support.sqlite_factory(path), support.sqlite_backdoor(path)
    dsn = request.getfixturevalue("empty_dsn")
    return support.postgres_factory(dsn), support.postgres_backdoor(dsn)


async def test_the_indexes_refuse_what_the_invariants_forbid(place: tuple[Factory, Backdoor]) -> None:
    factory, door = place
    async with factory() as store:
        bench = Bench(one=store, two=store, backdoor=door)
        run, other = await bench.running(thread="t"), await bench.queued(thread="t")
        ended = await bench.running(thread="u")
        await bench.settle(ended)
        await bench.queued(key="k")
        columns = "run_id, {seq}, thread_id, {at}, epoch, kind, mode, payload, 0"
        copy = f"INSERT INTO events SELECT {columns} FROM events WHERE run_id = "
        for invariant, forbidden in {
            "I1 a second end": f"{copy.format(seq=99, at=99)} '{ended.run_id}' AND kind = 'end'",
            "I3 a second running run": f"UPDATE runs SET state = 'running' WHERE run_id = '{other.run_id}'",
            "I4 a repeated seq": f"{copy.format(seq='seq', at=98)} '{run.run_id}'",
            "I4 a repeated place": f"{copy.format(seq=97, at='thread_seq')} '{run.run_id}'",
            "I8 a key taken twice": "INSERT INTO run_keys SELECT * FROM run_keys",
            "a place taken twice": f"UPDATE runs SET pos = {run.pos} WHERE run_id = '{other.run_id}'",
            "an unknown state": f"UPDATE runs SET state = 'paused' WHERE run_id = '{other.run_id}'",
        }.items():
            with pytest.raises((sqlite3.IntegrityError, psycopg.errors.IntegrityError)) as refusal:
                await bench.sql(forbidden)
            assert "unique" in str(refusal.value).lower() or "check" in str(refusal.value).lower(), invariant
