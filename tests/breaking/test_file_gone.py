"""A SQLite file that is deleted, moved or replaced while it is open keeps nothing, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from collections.abc import AsyncIterator

import pytest

from core import record
from outlive import errors, policy
from outlive.model import Submission, Submitted
from outlive.store import moves, reads, sqlite

GONE = [pytest.param("", id="the file"), pytest.param("-wal", id="its log")]


@contextlib.asynccontextmanager
async def opened(path: pathlib.Path) -> AsyncIterator[sqlite.SqliteStore]:
    """A store that has one run."""
    store = sqlite.SqliteStore(path)
    await store.open()
    try:
        await submit(store, "first")
        yield store
    finally:
        await store.close()


def delete(path: pathlib.Path, part: str = "") -> None:
    """As somebody does who tidies up."""
    pathlib.Path(f"{path}{part}").unlink()


def move(path: pathlib.Path, to: pathlib.Path) -> None:
    """As somebody does who restores a copy."""
    path.rename(to)


async def submit(store: sqlite.SqliteStore, run_id: str) -> Submitted:
    """Make a run, with hardly any patience."""
    new = Submission(
        run_id=run_id, tenant="", agent="agent", input="null", fingerprint="", policy=policy.job()
    )
    return await store.write(moves.submit(new, None), budget=0.01)


@pytest.mark.invariant("I15")
@pytest.mark.parametrize("part", GONE)
async def test_nothing_is_accepted_into_a_file_that_is_gone(sqlite_path: pathlib.Path, part: str) -> None:
    async with opened(sqlite_path) as store:
        delete(sqlite_path, part)
        with pytest.raises(errors.StoreUnavailable):
            await submit(store, "second")


async def test_no_new_file_is_made_where_the_database_was(sqlite_path: pathlib.Path) -> None:
    async with opened(sqlite_path) as store:
        delete(sqlite_path)
        with pytest.raises(errors.StoreUnavailable):
            await store.read(reads.run("first", ""), budget=0.01)
        assert store._writer is not None
        store._writer._drop()  # as after an error that only a new connection is known to cure
        with pytest.raises(errors.StoreUnavailable):
            await submit(store, "second")
        assert sqlite_path.name not in os.listdir(sqlite_path.parent)


async def test_another_file_in_its_place_is_not_taken_for_it(sqlite_path: pathlib.Path) -> None:
    async with opened(sqlite_path) as store:
        move(sqlite_path, sqlite_path.with_suffix(".old"))
        await asyncio.to_thread(sqlite.migrate_file, str(sqlite_path))
        with pytest.raises(errors.StoreUnavailable):
            await submit(store, "second")
        with pytest.raises(errors.StoreUnavailable):
            await store.read(reads.run("first", ""), budget=0.01)
        assert record.rows(f"sqlite:///{sqlite_path}", "SELECT run_id FROM runs") == []


async def test_a_file_that_is_moved_back_is_the_same_again(sqlite_path: pathlib.Path) -> None:
    elsewhere = sqlite_path.with_suffix(".moved")
    async with opened(sqlite_path) as store:
        move(sqlite_path, elsewhere)
        with pytest.raises(errors.StoreUnavailable):
            await submit(store, "second")
        move(elsewhere, sqlite_path)
        await submit(store, "third")
        assert (await store.read(reads.run("first", ""))).run_id == "first"
