"""What only SQLite can get wrong: one writer, one file, several processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outlive import errors, failpoints, signals
from outlive.model import Verdict
from outlive.states import Reason, State
from outlive.store import moves, reads, retry, sqlite, writer
from outlive.store.script import Script
from outlive.store.sqlite import SqliteStore
from outlive.testing.store_checks.bench import LEASE, Bench, chunks, clock, kinds
from store import support
from store.record import Snapshot, faults

WITHIN = 20.0


@pytest.fixture
async def bench(sqlite_path: pathlib.Path) -> Any:
    factory = support.sqlite_factory(sqlite_path)
    async with factory() as one, factory() as two:
        yield Bench(one=one, two=two, backdoor=support.sqlite_backdoor(sqlite_path))


@pytest.fixture
async def store(sqlite_path: pathlib.Path) -> Any:
    async with support.opened(SqliteStore(sqlite_path)) as opened:
        yield opened


def snapshot(path: pathlib.Path) -> Snapshot:
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
        connection.row_factory = sqlite3.Row
        return Snapshot.of(lambda text: [dict(row) for row in connection.execute(text)])


@contextlib.contextmanager
def locked_by_another(path: pathlib.Path) -> Iterator[None]:
    """Somebody else's write transaction, open for the length of the block."""
    with contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def busy() -> sqlite3.OperationalError:
    """What SQLite says when it is kept waiting for too long."""
    failure = sqlite3.OperationalError("database is locked")
    failure.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return failure


# ---------------------------------------------------------------- durability


async def test_a_commit_is_on_the_disk_before_anybody_hears_of_it(store: SqliteStore) -> None:
    def settings(connection: sqlite3.Connection) -> list[Any]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await store.in_writer(settings) == ["wal", 2, 1]
    readers = await store.read_with(lambda c: c.execute("PRAGMA query_only").fetchone()[0], name="pragma")
    assert readers == 1


async def test_what_waits_at_one_moment_shares_a_commit(store: SqliteStore) -> None:
    bench, commits, gate = Bench(one=store, two=store), [], threading.Event()
    holding = asyncio.ensure_future(store.in_writer(lambda _: gate.wait(WITHIN)))
    waiting = [asyncio.ensure_future(bench.queued()) for _ in range(40)]
    await asyncio.sleep(0)
    failpoints.arm("sqlite.commit", lambda: commits.append(1))
    gate.set()
    await asyncio.gather(holding, *waiting)
    assert len(commits) <= 3


async def test_a_reader_does_not_wait_for_the_writer(store: SqliteStore) -> None:
    gate = threading.Event()
    run = await Bench(one=store, two=store).queued()
    holding = asyncio.ensure_future(store.in_writer(lambda _: gate.wait(WITHIN)))
    async with asyncio.timeout(WITHIN / 2):
        assert (await store.read(reads.run(run.run_id, None))) == run
    assert not holding.done()
    gate.set()
    assert await holding


# ---------------------------------------------------------------- failures of the writer


async def test_a_commit_that_fails_fails_all_that_shared_it_and_leaves_nothing(store: SqliteStore) -> None:
    bench = Bench(one=store, two=store)
    failpoints.arm("sqlite.commit", failpoints.fail)
    answers = await asyncio.gather(*(bench.queued() for _ in range(5)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {failpoints.FailpointReached}
    failpoints.disarm()
    assert await bench.claim() is None
    assert (await bench.queued()).pos == 1


async def test_a_connection_that_breaks_in_the_middle_is_replaced(store: SqliteStore) -> None:
    bench = Bench(one=store, two=store)
    await bench.queued()

    def break_it() -> None:
        failpoints.disarm()
        assert store._writer is not None
        assert store._writer._connection is not None
        store._writer._connection.close()

    failpoints.arm("sqlite.commit", break_it)
    with pytest.raises(sqlite3.ProgrammingError):
        await bench.queued()
    assert (await bench.queued()).pos == 1
    assert len(await store.read(reads.runs(bench.tenant, limit=10))) == 2


@pytest.mark.parametrize("point", ["sqlite.commit", "sqlite.committed"])
async def test_a_lost_reply_of_any_move_is_repeated_without_a_trace(point: str, bench: Bench) -> None:
    """The database fails before or after the commit: either way the move happens once."""

    def fail_once() -> None:
        failpoints.disarm(point)
        raise busy()

    async def lost(script: Script[Any]) -> Any:
        failpoints.arm(point, fail_once)
        with support.told(bench.one) as seen:
            value = await bench.one.write(script)
        assert [one.script for one in seen if isinstance(one, signals.StoreRetried)] == [script.name]
        return value

    made = await lost(moves.submit(bench.submission(key="k"), None))
    [run] = await lost(moves.claim([bench.offer()]))
    assert run.run_id == made.run.run_id
    appended = await lost(moves.append(run.claim, chunks("1", "2"), run.last_seq, LEASE))
    assert await lost(moves.hand_back(run.claim, chunks("3"), appended.last_seq, LEASE))
    [again] = await lost(moves.claim([bench.offer()]))
    await lost(moves.stop(run.run_id, None, Reason.REQUESTED))
    await lost(moves.settle(again.claim, Verdict(state=State.STOPPED), again.last_seq))
    assert kinds(await bench.events(run.run_id)) == ["attempt", *["chunk"] * 3, "attempt", "end"]
    new, offer = bench.submission(key="l", viewer="v"), bench.offer()
    begun = await lost(moves.begin(new, offer))
    assert (begun is None) == (point == "sqlite.committed"), (
        "a begin that finds its run made leaves the answer"
    )
    answer = begun or await bench.one.write(moves.submit(new, offer))
    assert (answer.run.run_id, answer.claimed) == (new.run_id, True)
    assert await bench.sql("SELECT count(*) FROM runs") == [(2,)]


async def test_a_programming_error_is_not_taken_for_a_database_that_is_busy(store: SqliteStore) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await store.in_writer(lambda connection: connection.execute("SELECT * FROM no_table"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await store.read_with(lambda connection: connection.execute("SELECT * FROM no_table"), name="x")
    assert isinstance(writer.translated(busy()), retry.Transient)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        raise writer.translated(sqlite3.OperationalError("attempt to write a readonly database"))


async def test_a_reader_cannot_write(store: SqliteStore) -> None:
    with pytest.raises((errors.StoreUnavailable, sqlite3.OperationalError)):
        await store.read_with(lambda c: c.execute("DELETE FROM runs"), name="x", budget=0.1)


# ---------------------------------------------------------------- other processes


async def test_S27_a_lock_within_the_budget_delays_a_write_and_fails_nothing(
    bench: Bench, sqlite_path: pathlib.Path
) -> None:
    with locked_by_another(sqlite_path):
        writing = asyncio.ensure_future(bench.queued())
        assert await bench.one.read(clock()) > 0
        await asyncio.wait({writing}, timeout=1.0)  # the fault itself: a write lock that lasts a second
        assert not writing.done()
    assert (await writing).pos == 1


async def test_S27_a_lock_beyond_the_budget_is_said_aloud_and_survived(
    sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_BUDGET", 0.1)
    async with support.opened(SqliteStore(sqlite_path)) as store:
        bench = Bench(one=store, two=store)
        run = await bench.running()
        with locked_by_another(sqlite_path), support.told(store) as seen:
            script = moves.append(run.claim, chunks("1"), run.last_seq, LEASE)
            with pytest.raises(errors.StoreUnavailable) as refusal:
                await store.write(script, budget=0.5)
            with pytest.raises(errors.StoreUnavailable):
                await bench.renew([run.claim])
        assert refusal.value.status == 503
        assert [type(one) for one in seen] == [signals.StoreRetried] * len(seen)
        assert seen != []
        assert (await store.write(script)).last_seq == 2


def test_S27_two_processes_many_runs_readers_a_lock_and_a_backup_lose_nothing(
    sqlite_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    runs, appends = 6, 40
    command = [sys.executable, str(pathlib.Path(__file__).parent / "sqlite_worker.py"), str(sqlite_path)]
    workers = [
        subprocess.Popen([*command, name, str(runs), str(appends)], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    biggest = 0
    try:
        wait_for(lambda: sqlite_path.exists() and tables(sqlite_path) > 3, workers)
        with locked_by_another(sqlite_path):
            threading.Event().wait(1.0)  # the fault itself: nobody can write for a second
        backup(sqlite_path, tmp_path / "copy.db")
        while any(worker.poll() is None for worker in workers):
            with contextlib.suppress(FileNotFoundError):  # the last to close removes it
                biggest = max(biggest, pathlib.Path(f"{sqlite_path}-wal").stat().st_size)
            backup(sqlite_path, tmp_path / "copy.db")
        reports = [json.loads(worker.communicate(timeout=50)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]
    for report in reports:
        assert (report["ended"], report["appended"]) == (runs, runs * appends)
        assert report["reads"] > 0
    now = snapshot(sqlite_path)
    assert faults(now) == []
    assert len(now.events) == 2 * runs * (appends + 2)
    assert faults(snapshot(tmp_path / "copy.db")) == []
    assert 0 < biggest < 16 * 1024 * 1024


def wait_for(condition: Any, workers: list[subprocess.Popen[str]]) -> None:
    """Wait until the workers have come so far."""
    for _ in range(2000):
        if condition():
            return
        assert all(worker.poll() is None for worker in workers), "a worker ended early"
        threading.Event().wait(0.01)
    raise AssertionError("the workers never began")


def tables(path: pathlib.Path) -> int:
    return int(support.sqlite_rows(path, "SELECT count(*) FROM sqlite_master")[0][0])


def backup(path: pathlib.Path, to: pathlib.Path) -> None:
    """Copy a live database a few pages at a time, as a backup does."""
    to.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as live, contextlib.closing(sqlite3.connect(to)) as copy:
        live.backup(copy, pages=64)


# ---------------------------------------------------------------- opening and closing


async def test_a_file_that_cannot_be_opened_is_refused_and_leaves_no_thread(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, though it is long enough to be looked at " * 20)
    cases = {
        tmp_path / "nowhere" / "outlive.db": errors.StoreUnavailable,
        tmp_path / "text.db": errors.Misconfigured,
        tmp_path: errors.StoreUnavailable,
    }
    for path, kind in cases.items():
        store = SqliteStore(path)
        with pytest.raises(kind) as refusal:
            await store.open()
        assert str(tmp_path) not in str(refusal.value)
        assert not any(thread.name == "outlive-write" for thread in threading.enumerate())
        await store.close()
        with pytest.raises(errors.NotReady):
            await store.write(clock())


async def test_closing_commits_what_is_queued_and_refuses_the_rest(sqlite_path: pathlib.Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    bench, gate = Bench(one=store, two=store), threading.Event()
    holding = asyncio.ensure_future(store.in_writer(lambda _: gate.wait(WITHIN)))
    waiting = [asyncio.ensure_future(bench.queued()) for _ in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(holding, closing)
    assert [(await run).pos for run in waiting] == [1] * 5
    with pytest.raises(errors.NotReady):
        await bench.queued()
    await store.close()
    assert not any(thread.name.startswith("outlive-") for thread in threading.enumerate())


async def test_a_store_can_be_opened_again(sqlite_path: pathlib.Path) -> None:
    store = SqliteStore(sqlite_path)
    for expected in (1, 2):
        await store.open()
        bench = Bench(one=store, two=store, tenant="t")
        assert (await bench.queued(thread="t")).pos == expected
        await store.close()


async def test_a_database_in_memory_works_alone() -> None:
    async with support.opened(SqliteStore(":memory:")) as one, support.opened(SqliteStore(":memory:")) as two:
        run = await Bench(one=one, two=one).queued()
        with pytest.raises(errors.NotFound):
            await two.read(reads.run(run.run_id, None))
        assert await one.dead(["somebody"]) == set()
