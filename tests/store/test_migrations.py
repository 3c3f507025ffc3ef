"""The schema: the same however it came to be, refused when another, changed by one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import re
import sqlite3
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from outlive import errors, signals
from outlive.model import Verdict
from outlive.states import State
from outlive.store import migrate, moves, postgres, reads, sqlite
from outlive.store.postgres import PostgresStore
from outlive.store.sqlite import SqliteStore
from outlive.testing.store_checks.bench import LEASE, Bench, chunks
from store import support

KNOWN = migrate.known()
NAMES = [migration.name for migration in KNOWN]
COMMAND = "outlive migrate --database"


def sqlite_schema(path: pathlib.Path) -> set[tuple[Any, ...]]:
    return set(support.sqlite_rows(path, "SELECT type, name, tbl_name, sql FROM sqlite_master"))


COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
WHERE table_schema = 'public'"""
INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
CHECKS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid > 0"""


def postgres_schema(dsn: str) -> set[tuple[Any, ...]]:
    rows = [row for query in (COLUMNS, INDEXES, CHECKS) for row in support.postgres_rows(dsn, query)]
    return {row for row in rows if not str(row[0]).startswith(("pg_", "information_schema"))}


def no_migration(monkeypatch: pytest.MonkeyPatch, *made: migrate.Migration) -> None:
    """Let the code know these migrations and no others."""
    monkeypatch.setattr(migrate, "known", lambda: list(made))


# ---------------------------------------------------------------- the files


def test_migrations_have_each_a_number_of_their_own_and_say_when_they_may_run() -> None:
    assert all(re.fullmatch(r"\d{4}_[a-z_]+_(pre|post)", name) for name in NAMES)
    assert len({name[:4] for name in NAMES}) == len(NAMES)


def test_both_databases_get_the_same_tables_columns_and_indexes(
    sqlite_path: pathlib.Path, postgres_dsn: str
) -> None:
    sqlite.migrate_file(str(sqlite_path))
    postgres.migrate_database(postgres_dsn)
    tables = {
        name
        for kind, name, *_ in sqlite_schema(sqlite_path)
        if kind == "table" and not name.startswith("sqlite_")
    }
    lite = {
        (table, column[1], bool(column[3]) or bool(column[5]))
        for table in tables
        for column in support.sqlite_rows(sqlite_path, f"PRAGMA table_info({table})")
    }
    post = {(row[0], row[1], row[3] == "NO") for row in support.postgres_rows(postgres_dsn, COLUMNS)}
    assert lite == post
    ours = {
        (table, name) for kind, name, table, text in sqlite_schema(sqlite_path) if kind == "index" and text
    }
    theirs = {(row[0], row[1]) for row in support.postgres_rows(postgres_dsn, INDEXES)}
    assert ours == {one for one in theirs if not one[1].endswith(("_pkey", "_key"))}


def test_the_indexes_behind_the_invariants_are_unique_and_partial_in_both(
    sqlite_path: pathlib.Path, postgres_dsn: str
) -> None:
    sqlite.migrate_file(str(sqlite_path))
    postgres.migrate_database(postgres_dsn)
    lite = {name: text for kind, name, _, text in sqlite_schema(sqlite_path) if kind == "index"}
    post = {name: text for _, name, text in support.postgres_rows(postgres_dsn, INDEXES)}
    for name, condition in {
        "one_running_run_per_thread": "running",
        "one_end_per_run": "end",
        "one_run_per_claim": "running",
    }.items():
        for text in (lite[name], post[name]):
            assert text.startswith("CREATE UNIQUE INDEX")
            assert re.search(rf"WHERE .*'{condition}'", text)


# ---------------------------------------------------------------- fresh, older, newer


async def test_a_fresh_file_has_the_schema_that_all_migrations_make(
    sqlite_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    migrated = tmp_path / "migrated.db"
    assert await asyncio.to_thread(sqlite.migrate_file, str(migrated)) == NAMES
    assert await asyncio.to_thread(sqlite.migrate_file, str(migrated)) == []
    async with support.opened(SqliteStore(sqlite_path)):
        pass
    assert sqlite_schema(sqlite_path) == sqlite_schema(migrated)


def test_migrating_step_by_step_makes_the_same_schema_as_all_at_once(
    postgres_dsn: str, empty_dsn: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert empty_dsn == postgres_dsn  # migrated at once by its fixture
    at_once, everything = postgres_schema(empty_dsn), KNOWN
    whole, stepped = tmp_path / "whole.db", tmp_path / "stepped.db"
    sqlite.migrate_file(str(whole))
    support.postgres_rows(postgres_dsn, "DROP SCHEMA public CASCADE")
    support.postgres_rows(postgres_dsn, "CREATE SCHEMA public")
    for count in range(1, len(everything) + 1):
        no_migration(monkeypatch, *everything[:count])
        assert postgres.migrate_database(postgres_dsn) == [everything[count - 1].name]
        assert sqlite.migrate_file(str(stepped)) == [everything[count - 1].name]
    assert postgres_schema(postgres_dsn) == at_once
    assert sqlite_schema(stepped) == sqlite_schema(whole)


async def refused(store: SqliteStore | PostgresStore) -> errors.SchemaMismatch:
    before = asyncio.all_tasks()
    with pytest.raises(errors.SchemaMismatch) as refusal:
        await store.open()
    assert asyncio.all_tasks() <= before
    return refusal.value


async def test_a_database_that_was_never_migrated_is_refused_with_the_command(postgres_dsn: str) -> None:
    refusal = await refused(PostgresStore(postgres_dsn))
    assert COMMAND in str(refusal)
    assert NAMES[0] in str(refusal)


async def test_an_older_schema_is_refused_with_the_command(
    empty_dsn: str, sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(sqlite.migrate_file, str(sqlite_path))
    newer = migrate.Migration(name="9999_of_tomorrow_pre", sql="CREATE TABLE tomorrow (x TEXT)")
    no_migration(monkeypatch, *KNOWN, newer)
    for store in (PostgresStore(empty_dsn), SqliteStore(sqlite_path)):
        refusal = await refused(store)
        assert COMMAND in str(refusal)
        assert "9999_of_tomorrow_pre" in str(refusal)
    await asyncio.to_thread(postgres.migrate_database, empty_dsn)
    await asyncio.to_thread(sqlite.migrate_file, str(sqlite_path))
    for store in (PostgresStore(empty_dsn), SqliteStore(sqlite_path)):
        async with support.opened(store):
            pass


async def test_a_newer_schema_is_refused_with_advice(empty_dsn: str, sqlite_path: pathlib.Path) -> None:
    await asyncio.to_thread(sqlite.migrate_file, str(sqlite_path))
    add = "INSERT INTO migrations VALUES ('9999_of_tomorrow_pre', 'now')"
    support.sqlite_rows(sqlite_path, add)
    support.postgres_rows(empty_dsn, add)
    for store in (PostgresStore(empty_dsn), SqliteStore(sqlite_path)):
        refusal = await refused(store)
        assert "newer version (9999_of_tomorrow_pre)" in str(refusal)
        assert COMMAND not in str(refusal)


async def test_a_file_with_somebody_elses_tables_is_refused_until_it_is_migrated(
    sqlite_path: pathlib.Path,
) -> None:
    support.sqlite_rows(sqlite_path, "CREATE TABLE notes (x TEXT)")
    assert COMMAND in str(await refused(SqliteStore(sqlite_path)))
    assert {name for _, name, *_ in sqlite_schema(sqlite_path)} == {"notes"}
    await asyncio.to_thread(sqlite.migrate_file, str(sqlite_path))
    async with support.opened(SqliteStore(sqlite_path)) as store:
        assert (await Bench(one=store, two=store).queued()).pos == 1
    assert ("table", "notes", "notes", "CREATE TABLE notes (x TEXT)") in sqlite_schema(sqlite_path)


# ---------------------------------------------------------------- applying


def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_dsn: str, sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = migrate.Migration(
        name="9999_broken_pre", sql="CREATE TABLE half (x TEXT); CREATE TABLE half (x TEXT)"
    )
    no_migration(monkeypatch, *KNOWN, broken)
    with pytest.raises(psycopg.errors.DuplicateTable):
        postgres.migrate_database(postgres_dsn)
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        sqlite.migrate_file(str(sqlite_path))
    assert postgres_schema(postgres_dsn) == set()
    assert sqlite_schema(sqlite_path) == set()


def test_a_post_migration_waits_until_the_old_code_is_gone(
    postgres_dsn: str, sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = migrate.Migration(name="9999_later_post", sql="-- why\nCREATE TABLE later (x TEXT);\n")
    no_migration(monkeypatch, *KNOWN, post)
    for apply, where in ((postgres.migrate_database, postgres_dsn), (sqlite.migrate_file, str(sqlite_path))):
        assert apply(where, include_post=False) == NAMES
        assert apply(where, include_post=False) == []
        migrate.check(set(NAMES))  # the new code may start before
        assert apply(where) == ["9999_later_post"]
        migrate.check({*NAMES, "9999_later_post"})


MIGRATE = "import sys; from outlive.store import postgres; print(postgres.migrate_database(sys.argv[1]))"
OPEN = """
import asyncio, sys
from outlive.store.sqlite import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await store.close()
asyncio.run(main())
"""


def all_at_once(code: str, where: str, count: int) -> list[str]:
    """Run this code in several processes that start together; returns what they print."""
    begin = [sys.executable, "-c", f"import sys; sys.stdin.readline()\n{code}", where]
    processes = [
        subprocess.Popen(
            begin, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=40) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [(process.returncode, text[1]) for process, text in zip(processes, outputs, strict=True)] == [
        (0, "")
    ] * count
    return [text[0].strip() for text in outputs]


def test_several_processes_migrate_postgresql_at_once_and_one_does_it(postgres_dsn: str) -> None:
    outputs = all_at_once(MIGRATE, postgres_dsn, 3)
    assert sorted(outputs) == sorted([str(NAMES), "[]", "[]"])


def test_several_processes_open_a_new_file_at_once_and_all_can(sqlite_path: pathlib.Path) -> None:
    all_at_once(OPEN, str(sqlite_path), 4)
    assert support.sqlite_rows(sqlite_path, "SELECT name FROM migrations") == [(name,) for name in NAMES]


async def test_a_column_may_be_added_under_the_feet_of_a_serving_process(
    empty_dsn: str, sqlite_path: pathlib.Path
) -> None:
    """A *pre* migration runs while the old code serves, with its statements prepared."""
    for store in (PostgresStore(empty_dsn, pool_size=1), SqliteStore(sqlite_path)):
        async with support.opened(store):
            await serve(store)
            for table in ("runs", "threads", "events", "run_keys", "presence"):
                add = f"ALTER TABLE {table} ADD COLUMN of_tomorrow TEXT"
                if isinstance(store, PostgresStore):
                    support.postgres_rows(empty_dsn, add)
                else:
                    support.sqlite_rows(sqlite_path, add)
            with support.told(store) as seen:
                await serve(store)
            assert [one for one in seen if isinstance(one, signals.StoreRetried)] == []


async def serve(store: Any) -> None:
    """Every kind of statement, often enough for psycopg to prepare it."""
    bench = Bench(one=store, two=store)
    for number in range(7):
        run = await bench.running(thread="t", key=f"k{number}", viewer=f"{bench.tenant}{number}")
        assert (await bench.submit(key=f"k{number}", thread="t")).run.run_id == run.run_id
        appended = await bench.append(run, "1")
        await bench.one.write(moves.hand_back(run.claim, chunks("2"), appended.last_seq, LEASE))
        again = await bench.claim()
        assert again is not None
        await bench.one.write(moves.settle(again.claim, Verdict(state=State.SUCCEEDED), again.last_seq))
        await bench.suspect(await bench.running())
        await bench.two.read(reads.runs(bench.tenant, limit=5))
        await bench.two.read(reads.thread("t", bench.tenant))
        assert len(await bench.events(run.run_id)) == 5


async def test_migrating_what_is_not_there_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.StoreUnavailable) as refusal:
        await asyncio.to_thread(postgres.migrate_database, "postgresql://nobody@127.0.0.1:1/none")
    assert "Start it" in str(refusal.value)
    with contextlib.suppress(sqlite3.OperationalError), pytest.raises(errors.OutliveError):
        await asyncio.to_thread(sqlite.migrate_file, str(tmp_path / "nowhere" / "x.db"))
