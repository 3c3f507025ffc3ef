"""The commands that look at threads and delete them."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import outlive
from cli import served, support
from outlive.agents import langgraph

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


# ------------------------------------------------------------ checkpoints


async def _run_graph(database: str) -> None:
    agent = langgraph.LangGraphAgent("graph", _graph(), policy=outlive.job())
    async with outlive.Outlive(database, [agent]) as runtime:
        made = await runtime.submit("graph", {"done": []}, thread="t")
        await runtime.result(made.run.run_id)
        older = (await runtime.history("t"))[1]
        await runtime.update_state("t", {"done": ["by hand"]}, as_node="first", place=older.parent)


class _Done(TypedDict):
    done: list[str]


def _graph() -> Any:
    async def first(state: _Done) -> dict[str, Any]:
        return {"done": ["first"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(_Done)
    builder.add_node("first", first)
    builder.add_node("second", first)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile()


def test_a_threads_checkpoints_are_listed_drawn_and_copied(here: Here, database: str) -> None:
    asyncio.run(_run_graph(database))
    drawn = here("threads", "tree", "t", "-d", database)
    assert drawn.out.splitlines()[0].startswith("t: torn, left by ")
    assert [line[0] for line in drawn.out.splitlines()[3:]] == ["├", "│", "└"]
    [graph] = json.loads(here("threads", "tree", "t", "-d", database, "--json").out)["graphs"]
    listed = json.loads(here("threads", "history", "t", "-d", database, "--json").out)
    assert [one["checkpoint_id"] for one in listed] == [one["checkpoint_id"] for one in graph["checkpoints"]]
    assert (listed[0]["source"], listed[0]["head"]) == ("update", True)
    shown = here("threads", "history", "t", "-d", database, "--limit", "2").out.splitlines()
    assert len(shown) == 3
    assert "newest" in shown[1]
    copied = here("threads", "copy", "t", "u", "-d", database)
    assert (copied.code, copied.out) == (0, "copied: t to u\n")
    again = here("threads", "tree", "u", "-d", database).out.splitlines()
    assert again[0] == "u: torn, copied from t"
    assert len(again) == len(drawn.out.splitlines())
    assert here("threads", "copy", "t", "u", "-d", database).code == 1
