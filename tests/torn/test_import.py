"""Threads of an existing checkpoint database come here with everything they have, and go on here."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest

import outlive
from cli.support import Done, Here
from outlive import runtime
from outlive.agents import langgraph
from outlive.states import Position, State
from outlive.torn import importing
from torn import shop
from torn.test_sweep import TARGET, Service, service

__all__ = ["service"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1])
    monkeypatch.setenv("COLUMNS", "200")
    ran = Here(monkeypatch, capsys)

    def bring(of: Service, database: str, *arguments: str) -> Done:
        return ran("import", TARGET, "--checkpoints", of.url, "-d", database, *arguments)

    return bring


@pytest.fixture(params=["sqlite", "postgresql"])
def ours(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """A database of ours, of either kind, whichever theirs is."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("migrated_postgres_dsn"))
    database = f"sqlite:///{tmp_path / 'ours.db'}"
    runtime.migrate(database)
    return database


def serving(database: str) -> outlive.Outlive:
    """Our service with their graph."""
    agent = langgraph.LangGraphAgent("graph", shop.graph, policy=outlive.job(on_busy="enqueue"))
    return outlive.Outlive(database, [agent])


def test_threads_are_brought_with_their_checkpoints_and_go_on_here(
    service: Service,
    here: Any,
    ours: str,
) -> None:
    service.handle("finished", {"booking": "b0"})
    service.handle("finished", {"booking": "b0"})
    service.handle("torn", {"booking": "b1"}, cut="notify")
    before = service.rows()
    done = json.loads(here(service, ours, "--json").out)
    assert [(one["thread"], one["said"], one["position"]) for one in done] == [
        ("finished", "brought", "clean"),
        ("torn", "brought", "torn"),
    ]
    assert service.rows() == before

    async def used() -> None:
        async with serving(ours) as served:
            history = await served.history("finished", limit=100)
            assert len(history) == done[0]["checkpoints"] == 10
            assert history[0].values["steps"] == ["plan", "charge", "notify"] * 2
            assert (await served.thread("torn")).position is Position.TORN
            made = await served.submit("graph", {"booking": "b2"}, thread="torn")
            run = await served.result(made.run.run_id)
            assert run.state is State.SUCCEEDED
            assert run.public()["output"]["steps"] == ["plan", "charge", "notify"] * 2

    asyncio.run(used())
    assert shop.did()[-4:] == ["charge:b1", "notify:b1", "charge:b2", "notify:b2"], "what was left ran first"


def test_what_is_here_already_stays_and_what_was_cut_off_is_brought_again(
    service: Service,
    here: Any,
    ours: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service.handle("one", {"booking": "b0"})
    service.handle("two", {"booking": "b1"})
    assert here(service, ours, "--thread", "one").out.endswith("1 of 1 threads brought\n")
    write = importing._write

    async def fail(agent: Any, run: Any, found: Any) -> None:
        await write(agent, run, found[:2])
        raise RuntimeError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_write", fail)
        failed = json.loads(here(service, ours, "--json").out)
    assert [one["said"] for one in failed] == ["is here already", "cannot be brought: RuntimeError"]
    again = json.loads(here(service, ours, "--json").out)
    assert [one["said"] for one in again] == ["is here already", "brought"]


def test_an_import_that_died_is_gone_on_with(
    service: Service,
    here: Any,
    ours: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It leaves a thread that only it has been on, with a part of the checkpoints."""
    service.handle("one", {"booking": "b0"})
    write = importing._write

    async def die(agent: Any, run: Any, found: Any) -> None:
        await write(agent, run, found[:2])
        raise RuntimeError("killed")

    async def nothing(*_: Any, **__: Any) -> None:
        return

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_write", die)
        patch.setattr(outlive.Outlive, "delete_thread", nothing)
        assert "cannot be brought" in here(service, ours).out
    assert [one["said"] for one in json.loads(here(service, ours, "--json").out)] == ["brought"]

    async def used() -> None:
        async with serving(ours) as served:
            state = await served.state("one")
            assert (state.position, state.values["steps"]) == (Position.CLEAN, ["plan", "charge", "notify"])
            assert len((await served.tree("one")).graphs[""]) == 5

    asyncio.run(used())
