"""The commands that look at threads and delete them."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

import outlive
from cli import served, support

Here = support.Here


async def _history(database: str, files: pathlib.Path) -> list[str]:
    plain = outlive.agent("plain", policy=outlive.job())(served.plain)
    async with outlive.Outlive(database, [plain], artifacts=files) as runtime:
        ids = []
        for thread in ("one", "two [/red]"):
            made = await runtime.submit("plain", 1, thread=thread)
            await runtime.result(made.run.run_id)
            ids.append(made.run.run_id)
    return ids


@pytest.fixture
def history(database: str, tmp_path: pathlib.Path) -> tuple[str, list[str]]:
    """A database with two threads, and the ids of their runs."""
    return database, asyncio.run(_history(database, tmp_path / "files"))


def test_threads_are_listed_and_shown(here: Here, history: tuple[str, list[str]]) -> None:
    database, ids = history
    listed = here("threads", "list", "-d", database)
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["two", "one"]
    programs = json.loads(here("threads", "list", "-d", database, "--json").out)
    assert [thread["thread"] for thread in programs] == ["two [/red]", "one"]
    shown = json.loads(here("threads", "show", "one", "-d", database, "--json").out)
    assert [run["run_id"] for run in shown["runs"]] == [ids[0]]
    assert (shown["live"], shown["effects"]) == ([], [])
    assert ids[0] in here("threads", "show", "one", "-d", database).out


def test_a_thread_is_deleted_and_the_second_time_there_is_none(
    here: Here, history: tuple[str, list[str]], tmp_path: pathlib.Path
) -> None:
    database, ids = history
    done = here("threads", "delete", "one", "-d", database, "--artifacts", str(tmp_path / "files"))
    assert (done.code, done.out) == (0, "deleted: one, 1 runs; 0 effects stay in the ledger\n")
    again = here("threads", "delete", "one", "-d", database, "--json")
    assert again.code == 4
    assert "There is no thread 'one'." in again.err
    assert here("runs", "show", ids[0], "-d", database).code == 4
    gone = here("threads", "delete", "two [/red]", "-d", database, "--json")
    assert json.loads(gone.out)["runs"] == 1
    assert json.loads(here("threads", "list", "-d", database, "--json").out) == []
