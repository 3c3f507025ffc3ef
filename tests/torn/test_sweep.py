"""Threads that somebody's handlers left part-way are found, told of by their provider, and seen to once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import outlive
from cli.support import Done, Here
from outlive import runtime
from outlive.agents import langgraph
from outlive.agents.position import stands
from outlive.states import Position
from outlive.torn import Apply, applying, foreign
from torn import shop

TARGET = "torn.shop:graph"
WITHIN = 30.0


class Service:
    """Somebody's database of checkpoints, and handlers that write it without us."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self._patch = monkeypatch

    @contextlib.asynccontextmanager
    async def saver(self) -> AsyncIterator[Any]:
        """Their own saver."""
        if self.url.startswith("postgresql"):
            async with AsyncPostgresSaver.from_conn_string(self.url) as saver:
                await saver.setup()
                yield saver
        else:
            async with AsyncSqliteSaver.from_conn_string(self.url.removeprefix("sqlite:///")) as saver:
                yield saver

    def handle(self, thread: str, given: Any, *, cut: str = "", builder: Any = None, **compiled: Any) -> None:
        """Handle a message on a thread; ``cut`` says where its process dies."""
        with self._patch.context() as patch:
            if cut:
                patch.setenv("SHOP_CUT", cut)
            asyncio.run(self._handle(thread, given, builder or shop.built(*shop.NAMES), compiled))

    async def _handle(self, thread: str, given: Any, builder: Any, compiled: dict[str, Any]) -> None:
        async with self.saver() as saver:
            graph = builder.compile(checkpointer=saver, **compiled)
            config: Any = {"configurable": {"thread_id": thread}}
            with contextlib.suppress(shop.Cut):
                await graph.ainvoke(given, config, durability="sync")

    def stands(self, thread: str) -> tuple[Position, dict[str, Any]]:
        """Where a thread stands, and its values."""

        async def look() -> tuple[Position, dict[str, Any]]:
            async with self.saver() as saver:
                graph = shop.built(*shop.NAMES).compile(checkpointer=saver)
                position, state = await stands(graph, {"configurable": {"thread_id": thread}})
                return position, state.values

        return asyncio.run(look())

    def rows(self) -> list[Any]:
        """Everything in their tables."""
        if self.url.startswith("postgresql"):
            with psycopg.connect(self.url) as connection:
                tables = (b"checkpoints", b"checkpoint_writes", b"checkpoint_blobs")
                return [
                    row
                    for one in tables
                    for row in connection.execute(b"SELECT * FROM " + one + b" ORDER BY 1, 2, 3, 4")
                ]
        with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file:
            query = "SELECT * FROM {} ORDER BY 1, 2, 3, 4"
            return [row for one in ("checkpoints", "writes") for row in file.execute(query.format(one))]


@pytest.fixture(params=["sqlite", "postgresql"])
def service(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Service:
    """The service of somebody who has never heard of us."""
    monkeypatch.setenv("SHOP_PROVIDER", str(tmp_path / "provider"))
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_dsn")
    return Service(url, monkeypatch)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> Any:
    """Runs the command; our own database is a file beside theirs."""
    database = f"sqlite:///{tmp_path / 'ours.db'}"
    runtime.migrate(database)
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1])
    monkeypatch.setenv("COLUMNS", "200")
    ran = Here(monkeypatch, capsys)

    def sweep(service: Service, *arguments: str) -> Done:
        options = ("--checkpoints", service.url, "-d", database, "--older-than", "0s", *arguments)
        return ran("sweep", TARGET, *options)

    return sweep


def found(done: Done) -> dict[str, Any]:
    """What a program reads."""
    assert done.out, done.err
    read: dict[str, Any] = json.loads(done.out)
    return read


def test_a_look_says_what_the_provider_executed_and_no_checkpoint_tells_and_changes_nothing(
    service: Service, here: Any
) -> None:
    service.handle("finished", {"booking": "b0"})
    service.handle("charged", {"booking": "b1"}, cut="after")
    service.handle("uncharged", {"booking": "b2"}, cut="before")
    service.handle("recorded", {"booking": "b3"}, cut="notify")
    before = service.rows()
    report = found(here(service, "--json"))
    told = {one["thread"]: [effect["said"] for effect in one["effects"]] for one in report["torn"]}
    assert told == {
        "charged": ["executed at the provider, not in the checkpoint"],
        "uncharged": ["not executed"],
        "recorded": ["executed, and in the checkpoint"],
    }
    assert report["left_out"]["clean"] == 1
    assert report["done"] == []
    people = here(service)
    assert "charge b1: executed at the provider, not in the checkpoint" in people.out
    assert "Nothing was done." in people.out
    assert service.rows() == before
    assert shop.did() == ["charge:b0", "notify:b0", "charge:b1", "charge:b3"]


def test_threads_that_wait_or_are_young_are_left_out(
    service: Service, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = shop.built("plan", "ask", "charge")
    service.handle("asks", {"booking": "b4"}, builder=waiting)
    service.handle("torn", {"booking": "b1"}, cut="after", builder=waiting)
    service.handle("stands", {"booking": "b5"}, builder=waiting, interrupt_before=["ask"])
    monkeypatch.setattr(shop, "graph", waiting.compile(interrupt_before=["ask"]))
    report = found(here(service, "--json"))
    assert [one["thread"] for one in report["torn"]] == []
    assert report["left_out"] == {"waiting": 3}, "the one that was to be cut asks first as well"
    service.handle("charged", {"booking": "b6"}, cut="after")
    monkeypatch.setattr(shop, "graph", shop.built(*shop.NAMES).compile())
    young = found(here(service, "--json", "--older-than", "10m"))
    assert (young["torn"], young["left_out"]) == ([], {"younger": 4})
    assert here(service, "--older-than", "soon").code == 2


def test_what_was_left_runs_once_and_what_was_executed_is_never_executed_again(
    service: Service, here: Any
) -> None:
    service.handle("charged", {"booking": "b1"}, cut="after")
    service.handle("recorded", {"booking": "b3"}, cut="notify")
    done = here(service, "--apply", "resume", "--json")
    said = {one["thread"]: (one["done"], one["said"]) for one in found(done)["done"]}
    assert said == {
        "charged": (False, "its next node would execute again what is executed: charge"),
        "recorded": (True, "resumed: clean"),
    }
    assert done.code == 1
    assert shop.did() == ["charge:b1", "charge:b3", "notify:b3"]
    assert service.stands("recorded") == (
        Position.CLEAN,
        {"booking": "b3", "steps": ["plan", "charge", "notify"]},
    )
    assert [one["thread"] for one in found(here(service, "--json"))["torn"]] == ["charged"]


def test_taking_back_makes_an_older_checkpoint_the_newest_and_deletes_nothing(
    service: Service, here: Any
) -> None:
    service.handle("t", {"booking": "b0"})
    service.handle("t", {"booking": "b1"}, cut="after")
    service.handle("first", {"booking": "b2"}, cut="before")
    before = service.rows()
    done = here(service, "--apply", "rollback")
    assert done.code == 0, done.out
    assert "done: t: taken back" in done.out
    assert service.stands("t") == (
        Position.CLEAN,
        {"booking": "b0", "steps": ["plan", "charge", "notify"]},
    )
    assert service.stands("first") == (Position.CLEAN, {"steps": []})
    after = service.rows()
    assert len(after) == len(before) + 2
    assert all(row in after for row in before)
    service.handle("t", {"booking": "b9"})
    assert service.stands("t")[1]["steps"] == ["plan", "charge", "notify"] * 2
    assert shop.did().count("refund:b1") == 0


def test_what_a_turn_executed_is_undone_and_the_thread_taken_back(service: Service, here: Any) -> None:
    service.handle("t", {"booking": "b0"})
    service.handle("t", {"booking": "b1"}, cut="after")
    service.handle("u", {"booking": "b2"}, cut="before")
    done = found(here(service, "--apply", "compensate", "--json"))["done"]
    assert {one["thread"]: one["said"] for one in done} == {
        "t": "undone: charge; taken back",
        "u": "undone: nothing; taken back",
    }
    assert shop.did() == ["charge:b0", "notify:b0", "charge:b1", "refund:b1"]
    assert service.stands("t")[0] is service.stands("u")[0] is Position.CLEAN
    again = found(here(service, "--apply", "compensate", "--json"))
    assert (again["torn"], again["done"]) == ([], [])


def test_nothing_is_done_where_the_provider_does_not_tell(
    service: Service, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.handle("t", {"booking": "b1"}, cut="after")
    before = service.rows()
    monkeypatch.setenv("SHOP_SILENT", "1")
    for wanted in ("resume", "compensate"):
        done = found(here(service, "--apply", wanted, "--json"))
        assert [one["said"] for one in done["done"]] == ["nobody knows what became of: charge"]
        assert done["torn"][0]["effects"][0]["said"] == "its provider did not tell: ConnectionError"
    assert service.rows() == before


def test_two_sweepers_with_databases_of_their_own_never_both_see_to_a_thread(
    service: Service, here: Any, tmp_path: pathlib.Path
) -> None:
    """The first holds the thread in theirs, and there the second finds that out."""
    service.handle("t", {"booking": "b1"}, cut="notify")

    async def while_held() -> Done:
        async with foreign.worked_on(service.url, "t") as first:
            assert first.held
            async with foreign.worked_on(service.url, "t") as second:
                assert not second.held
            return await asyncio.to_thread(_sweep_elsewhere, service.url, tmp_path)

    done = asyncio.run(while_held())
    assert [one["said"] for one in json.loads(done.out)["done"]] == ["somebody else is at it"]
    assert shop.did() == ["charge:b1"]
    assert here(service, "--apply", "resume").code == 0
    assert shop.did() == ["charge:b1", "notify:b1"]


def test_two_sweeps_at_once_run_what_is_left_once(
    service: Service, here: Any, tmp_path: pathlib.Path
) -> None:
    """Processes of their own, each with a database of its own."""
    threads = [f"t{number}" for number in range(4)]
    for thread in threads:
        service.handle(thread, {"booking": thread}, cut="notify")

    async def both() -> list[Done]:
        sweeps = [asyncio.to_thread(_sweep_elsewhere, service.url, tmp_path, name) for name in ("a", "b")]
        return list(await asyncio.gather(*sweeps))

    said = [one for done in asyncio.run(both()) for one in json.loads(done.out)["done"]]
    assert {one["said"] for one in said} <= {
        "resumed: clean",
        "somebody else is at it",
        "it has moved on",
    }
    assert here(service, "--apply", "resume").code == 0  # what each left to the other, if anything
    assert sorted(shop.did()) == sorted(
        [f"charge:{thread}" for thread in threads] + [f"notify:{thread}" for thread in threads]
    )


def _sweep_elsewhere(url: str, tmp_path: pathlib.Path, name: str = "second") -> Done:
    database = f"sqlite:///{tmp_path / name}.db"
    runtime.migrate(database)
    tests = str(pathlib.Path(__file__).parents[1])
    command = [sys.executable, "-m", "outlive", "sweep", TARGET, "--checkpoints", url, "-d", database]
    ran = subprocess.run(
        [*command, "--older-than", "0s", "--apply", "resume", "--json"],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    return Done(ran.returncode, ran.stdout, ran.stderr)


def test_a_thread_that_moved_on_since_it_was_looked_at_is_left_alone(
    service: Service, tmp_path: pathlib.Path
) -> None:
    service.handle("t", {"booking": "b1"}, cut="notify")
    database = f"sqlite:///{tmp_path / 'ours.db'}"
    runtime.migrate(database)

    async def late() -> Any:
        agent = applying.Sweep(service.url, shop.graph, {})
        async with outlive.Outlive(database, [agent]) as ours:
            order = {"thread": "t", "head": "an older one", "apply": Apply.RESUME.value}
            made = await ours.submit(agent.name, order, thread=agent.thread("t"))
            return (await ours.result(made.run.run_id)).public()["output"]

    assert asyncio.run(late())["said"] == "it has moved on"
    assert shop.did() == ["charge:b1"]


def test_a_database_without_checkpoints_or_a_target_without_a_graph_is_refused(
    here: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "empty.db")) as file:
        file.execute("CREATE TABLE other (x)")
    empty = Service(f"sqlite:///{tmp_path / 'empty.db'}", monkeypatch)
    assert "no checkpoints of LangGraph's" in here(empty).err
    assert here(empty).code == 2
    nowhere = Service(f"sqlite:///{tmp_path / 'nowhere.db'}", monkeypatch)
    assert here(nowhere).code == 2


def test_an_undoing_that_was_cut_before_the_thread_was_taken_back_is_not_made_twice(
    service: Service, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the provider still shows the charge that it has refunded: the ledger knows."""
    service.handle("t", {"booking": "b1"}, cut="after")
    monkeypatch.setenv("SHOP_FORGETS_REFUNDS", "1")

    async def die(self: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(applying._Work, "take_back", die)
        first = found(here(service, "--apply", "compensate", "--json"))["done"]
    assert [one["done"] for one in first] == [False]
    assert shop.did() == ["charge:b1", "refund:b1"]
    again = found(here(service, "--apply", "compensate", "--json"))["done"]
    assert [one["said"] for one in again] == ["undone: charge; taken back"]
    assert shop.did() == ["charge:b1", "refund:b1"]
    assert service.stands("t")[0] is Position.CLEAN


# ---------------------------------------------------------------- a database of ours


def test_torn_threads_of_our_own_database_are_seen_to_by_runs_of_their_agent(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("SHOP_PROVIDER", str(tmp_path / "provider"))
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1])
    agent = langgraph.LangGraphAgent("graph", shop.graph, policy=outlive.job())

    async def cut(threads: tuple[str, ...]) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("SHOP_CUT", "notify")
            async with outlive.Outlive(database, [agent]) as ours:
                for thread in threads:
                    made = await ours.submit("graph", {"booking": thread}, thread=thread)
                    await ours.result(made.run.run_id)

    asyncio.run(cut(("one", "two")))
    ran = Here(monkeypatch, capsys)
    look = ran("sweep", TARGET, "-d", database, "--older-than", "0s", "--json")
    torn = json.loads(look.out)["torn"]
    assert {one["thread"]: one["next"] for one in torn} == {"one": ["notify"], "two": ["notify"]}
    assert ran("sweep", TARGET, "-d", database, "--json").out.count("booking") == 0
    done = ran("sweep", TARGET, "-d", database, "--older-than", "0s", "--apply", "resume", "--thread", "one")
    assert done.code == 0, done.out + done.err
    taken = ran("sweep", TARGET, "-d", database, "--older-than", "0s", "--apply", "rollback", "--json")
    assert [one["done"] for one in json.loads(taken.out)["done"]] == [True]
    assert shop.did() == ["charge:one", "charge:two", "notify:one"]
    assert json.loads(ran("sweep", TARGET, "-d", database, "--older-than", "0s", "--json").out)["torn"] == []
