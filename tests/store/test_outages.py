"""PostgreSQL down, killed, frozen, cut off, read-only: loud within the budget, and nothing twice after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outlive import errors, seams, signals
from outlive.model import Verdict
from outlive.states import Reason, State
from outlive.store import moves, notify, postgres, retry
from outlive.store.postgres import PostgresStore
from outlive.store.script import Script, Steps, script, statement
from outlive.testing.postgres import PostgresServer
from outlive.testing.store_checks.bench import LEASE, Bench, chunks, clock, kinds
from store import support
from store.record import Snapshot, faults
from store.wire import Cut, wire_to

WITHIN = 40.0


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that these tests may kill and freeze."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_dsn(own_server: PostgresServer) -> Iterator[str]:
    dsn = own_server.create_database()
    postgres.migrate_database(dsn)
    yield dsn
    own_server.drop_database(dsn)


def snapshot(dsn: str) -> Snapshot:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        return Snapshot.of(lambda text: connection.execute(text.encode()).fetchall())


async def refused(store: PostgresStore, kind: type[errors.OutliveError]) -> errors.OutliveError:
    """Opening fails in this way, and leaves no task and no thread."""
    tasks = asyncio.all_tasks()
    with pytest.raises(kind) as refusal:
        await store.open()
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - tasks if not task.done()} == set()
    assert not any(thread.name.startswith("outlive-") for thread in threading.enumerate())
    return refusal.value


# ---------------------------------------------------------------- at the start


async def test_a_server_that_is_down_is_said_at_start_and_leaves_nothing(empty_dsn: str) -> None:
    down = "postgresql://postgres@127.0.0.1:1/nothing"
    refusal = await refused(PostgresStore(down), errors.StoreUnavailable)
    assert "Start it, or correct the database URL" in str(refusal)
    assert "127.0.0.1" not in str(refusal)
    await refused(PostgresStore(empty_dsn + "_missing"), errors.StoreUnavailable)
    await refused(PostgresStore(empty_dsn, direct_dsn=down), errors.StoreUnavailable)


async def test_a_url_that_is_none_is_a_mistake_of_the_configuration(empty_dsn: str) -> None:
    await refused(PostgresStore(f"{empty_dsn}?no_such_option=1"), errors.Misconfigured)


async def test_a_user_without_rights_is_told_what_to_grant(empty_dsn: str) -> None:
    role = f"guest_{seams.new_id()[-8:]}"
    support.postgres_rows(empty_dsn, f"CREATE ROLE {role} LOGIN")
    try:
        guest = empty_dsn.replace("postgres@", f"{role}@")
        refusal = await refused(PostgresStore(guest), errors.Misconfigured)
        assert "grant" in str(refusal)
    finally:
        support.postgres_rows(empty_dsn, f"DROP ROLE {role}")


async def test_a_store_that_never_opened_refuses_work_and_closes_twice(empty_dsn: str) -> None:
    store = PostgresStore(empty_dsn)
    with pytest.raises(errors.NotReady):
        await store.write(clock())
    await store.close()
    await store.close()


# ---------------------------------------------------------------- replies lost on the wire


@pytest.mark.parametrize("when", list(Cut))
async def test_a_connection_cut_around_a_commit_loses_and_repeats_nothing(when: Cut, empty_dsn: str) -> None:
    async with wire_to(empty_dsn) as wire:
        store = PostgresStore(wire.dsn, direct_dsn=empty_dsn, pool_size=2)
        async with support.opened(store):
            bench = Bench(one=store, two=store)

            async def cut_at(word: bytes, script: Script[Any]) -> Any:
                wire.cut(word, when)
                cuts = wire.cuts
                with support.told(store) as seen:
                    value = await store.write(script)
                assert wire.cuts == cuts + 1
                assert [one.script for one in seen if isinstance(one, signals.StoreRetried)] == [script.name]
                return value

            made = await cut_at(b"COMMIT", moves.submit(bench.submission(key="k"), None))
            [run] = await cut_at(b"COMMIT", moves.claim([bench.offer()]))
            assert run.run_id == made.run.run_id
            append = moves.append(run.claim, chunks("1", "2"), run.last_seq, LEASE)
            appended = await cut_at(b"MATERIALIZED", append)
            back = moves.hand_back(run.claim, chunks("3"), appended.last_seq, LEASE)
            assert await cut_at(b"COMMIT", back)
            [again] = await cut_at(b"COMMIT", moves.claim([bench.offer()]))
            await cut_at(b"COMMIT", moves.stop(run.run_id, None, Reason.REQUESTED))
            settle = moves.settle(again.claim, Verdict(state=State.STOPPED), again.last_seq)
            await cut_at(b"MATERIALIZED", settle)
            assert kinds(await bench.events(run.run_id)) == ["attempt", *["chunk"] * 3, "attempt", "end"]
            new, offer = bench.submission(key="l", viewer="v"), bench.offer()
            begun = await cut_at(b"MATERIALIZED", moves.begin(new, offer))
            assert (begun is None) == (when is Cut.AFTER), "a begin that finds its run made leaves the answer"
            answer = begun or await store.write(moves.submit(new, offer))
            assert (answer.run.run_id, answer.claimed) == (new.run_id, True)
    now = snapshot(empty_dsn)
    assert faults(now) == []
    assert len(now.runs) == 2


async def test_a_reader_whose_connection_is_cut_reads_again(empty_dsn: str) -> None:
    async with wire_to(empty_dsn) as wire:
        store = PostgresStore(wire.dsn, direct_dsn=empty_dsn, pool_size=1)
        async with support.opened(store):
            run = await Bench(one=store, two=store).queued()
            for when in Cut:
                wire.cut(b"external_id", when)
                assert await Bench(one=store, two=store).run(run.run_id) == run
            assert wire.cuts == 2


# ---------------------------------------------------------------- killed and restarted


async def test_a_server_killed_and_restarted_within_the_budget_costs_nothing(
    own_server: PostgresServer, own_dsn: str
) -> None:
    store = PostgresStore(own_dsn, pool_size=6)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        await store.hold_token("worker")
        writing = [asyncio.create_task(_work(bench, number)) for number in range(6)]
        while not await bench.one.read(_appended(bench)):
            pass
        with support.told(store) as seen:
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
            async with asyncio.timeout(WITHIN):
                await asyncio.gather(*writing)
                while not store._direct.listening:  # noqa: ASYNC110 - reconnects in its own time
                    await asyncio.sleep(0)
        assert any(isinstance(one, signals.StoreRetried) for one in seen), "the kill met no write"
        assert await store.dead(["worker", "nobody"]) == {"nobody"}
    now = snapshot(own_dsn)
    assert faults(now) == []
    assert [run["state"] for run in now.runs.values()] == ["succeeded"] * 6
    for run_id in now.runs:
        payloads = [event["payload"] for event in now.log(run_id) if event["kind"] == "chunk"]
        assert payloads == [str(number) for number in range(60)]


@script(reads=True)
def _appended(bench: Bench) -> Steps[bool]:
    rows = yield statement("list_runs", tenant=bench.tenant, limit=10, before=None, agent=None, state=None)
    return any(row["last_seq"] > 5 for row in rows)


async def _work(bench: Bench, number: int) -> None:
    """Submit, claim, sixty appends, settle; each with a budget that outlasts a restart."""
    new = bench.submission(key=f"k{number}", agent=f"{bench.agent}-{number}")
    await bench.one.write(moves.submit(new, None), budget=WITHIN)
    offer = bench.offer(agents=(new.agent,), lease=600.0)
    [run] = await bench.one.write(moves.claim([offer]), budget=WITHIN)
    seq = run.last_seq
    for text in range(60):
        append = moves.append(run.claim, chunks(str(text)), seq, 600.0)
        seq = (await bench.one.write(append, budget=WITHIN)).last_seq
    await bench.one.write(moves.settle(run.claim, Verdict(state=State.SUCCEEDED), seq), budget=WITHIN)


async def test_a_write_while_the_server_is_down_is_refused_within_its_budget(
    own_server: PostgresServer, own_dsn: str
) -> None:
    store = PostgresStore(own_dsn, pool_size=2)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        run = await bench.running()
        await asyncio.to_thread(own_server.stop)
        try:
            with support.told(store) as seen, pytest.raises(errors.StoreUnavailable) as refusal:
                await store.write(moves.append(run.claim, chunks("1"), run.last_seq, LEASE), budget=0.5)
            with pytest.raises(errors.StoreUnavailable):
                await bench.renew([run.claim])
            assert await store.dead(["nobody"]) == set()
        finally:
            await asyncio.to_thread(own_server.start)
        assert refusal.value.status == 503
        assert any(isinstance(one, signals.StoreRetried) for one in seen)
        assert (
            await store.write(moves.append(run.claim, chunks("1"), run.last_seq, LEASE), budget=WITHIN)
        ).last_seq == 2
        assert [one.run_id for one in await bench.renew([run.claim])] == [run.run_id]


# ---------------------------------------------------------------- frozen


async def test_a_frozen_server_costs_the_budget_and_thaws_without_harm(
    own_server: PostgresServer, own_dsn: str
) -> None:
    store = PostgresStore(own_dsn, pool_size=2)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        run = await bench.running()
        await asyncio.to_thread(own_server.pause)
        try:
            script = moves.append(run.claim, chunks("1"), run.last_seq, LEASE)
            async with asyncio.timeout(postgres.STATEMENT_BUDGET / 2):  # less than one try alone would take
                with pytest.raises(errors.StoreUnavailable):
                    await store.write(script, budget=0.5)
            renewing = asyncio.create_task(bench.renew([run.claim]))
        finally:
            await asyncio.to_thread(own_server.resume)
        assert [one.run_id for one in await renewing] == [run.run_id]
        assert (await store.write(script, budget=WITHIN)).last_seq == 2, "the abandoned try was read back"
        assert kinds(await bench.events(run.run_id)) == ["attempt", "chunk"]


# ---------------------------------------------------------------- connections


KILL_ALL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""


async def test_connections_that_died_while_idle_cost_a_retry_and_no_error(empty_dsn: str) -> None:
    store = PostgresStore(empty_dsn, pool_size=8)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        await asyncio.gather(*(bench.queued() for _ in range(8)))
        support.postgres_rows(empty_dsn, KILL_ALL)
        runs = await asyncio.gather(*(bench.queued() for _ in range(8)))
        assert len({run.run_id for run in runs}) == 8


async def test_a_pool_that_is_used_up_is_said_within_the_budget(empty_dsn: str) -> None:
    store = PostgresStore(empty_dsn, pool_size=1)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        async with store.connection():
            with pytest.raises(errors.StoreUnavailable):
                await store.write(moves.submit(bench.submission(), None), budget=0.1)
        assert (await bench.queued()).pos == 1


async def test_a_server_that_became_a_standby_is_tried_again(empty_dsn: str) -> None:
    store = PostgresStore(empty_dsn, pool_size=1)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        async with store.connection() as connection:
            await connection.execute("SET default_transaction_read_only = on")
        with support.told(store) as seen, pytest.raises(errors.StoreUnavailable):
            await store.write(moves.submit(bench.submission(), None), budget=0.2)
        assert {one.error for one in seen if isinstance(one, signals.StoreRetried)} <= {
            "ReadOnlySqlTransaction",
            "no answer within the budget",
        }
        async with store.connection() as connection:
            await connection.execute("SET default_transaction_read_only = off")
        assert (await bench.queued()).pos == 1


@script()
def lock_both(first: str, second: str) -> Steps[str]:
    """Two threads in one transaction, in an order that no move uses."""
    yield statement("lock_thread", thread_id=first)
    yield statement("lock_thread", thread_id=second)
    return first


async def test_a_deadlock_is_repeated_and_ends(empty_dsn: str) -> None:
    name = empty_dsn.rpartition("/")[2]
    support.postgres_rows(empty_dsn, f"ALTER DATABASE {name} SET deadlock_timeout = '10ms'")
    store = PostgresStore(empty_dsn, pool_size=4)
    async with support.opened(store):
        bench = Bench(one=store, two=store)
        one, two = await bench.queued(), await bench.queued()
        with support.told(store) as seen:
            for _ in range(200):
                pair = (lock_both(one.thread_id, two.thread_id), lock_both(two.thread_id, one.thread_id))
                assert await asyncio.gather(*map(store.write, pair)) == [one.thread_id, two.thread_id]
                if seen:
                    break
        assert [one.error for one in seen if isinstance(one, signals.StoreRetried)][:1] == [
            "DeadlockDetected"
        ]


# ---------------------------------------------------------------- the patience itself


class FakeClock:
    """Time that passes only when somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.3
        return self.now


async def test_patience_ends_with_the_budget_and_says_each_try() -> None:
    tries = 0

    async def attempt() -> None:
        nonlocal tries
        tries += 1
        raise retry.Transient("gone")

    happenings = signals.Signals()
    local = seams.Seams(monotonic=FakeClock(), random=lambda: 0.0)
    with (
        happenings.recording() as seen,
        pytest.raises(errors.StoreUnavailable, match="name_of_script") as refusal,
    ):
        await retry.until(attempt, name="name_of_script", budget=2.0, local=local, happenings=happenings)
    assert 1 < tries <= 4
    assert seen == [signals.StoreRetried(script="name_of_script", error="gone")] * tries
    assert isinstance(refusal.value.__cause__, retry.Transient)


async def test_patience_does_not_cover_other_errors() -> None:
    async def attempt() -> None:
        raise errors.Fenced

    happenings = signals.Signals()
    with happenings.recording() as seen, pytest.raises(errors.Fenced):
        await retry.until(attempt, name="x", budget=2.0, local=seams.REAL, happenings=happenings)
    assert seen == []


async def test_a_try_that_hangs_is_left_alone_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "SHORTEST_TRY", 0.01)
    with pytest.raises(errors.StoreUnavailable):
        await retry.until(
            asyncio.Event().wait, name="x", budget=0.0, local=seams.REAL, happenings=signals.Signals()
        )


def test_a_workers_token_fits_an_advisory_lock_whatever_its_id() -> None:
    ids = [seams.new_id(), "", "legacy-worker", "ü", "\ud800"]
    tokens = [notify.token_of(one) for one in ids]
    assert all(0 <= token < 2**63 for token in tokens)
    assert len(set(tokens)) == len(ids)


@pytest.mark.invariant("I13")
async def test_a_statement_that_is_still_being_sent_when_the_server_dies_fails_and_frees_its_connection(
    own_server: PostgresServer,
) -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    connection = await postgres.connect(own_server.dsn())
    try:
        own_server.pause()  # it reads nothing, so the statement stays on its way
        text = "SELECT length(%(long)s) AS length"
        asked = loop.create_task(connection.fetch(text, {"long": "x" * 20_000_000}, WITHIN))
        await asyncio.sleep(0)
        own_server.kill()
        async with asyncio.timeout(WITHIN / 2):
            with pytest.raises(psycopg.OperationalError):
                await asked
    finally:
        own_server.start()
        await connection.close()
    assert connection.free
    assert complaints == []
