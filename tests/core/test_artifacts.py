"""Files that agents make: each attempt's apart, and the run's own only by its verdict."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import outlive
from core import support
from outlive import artifacts, errors, policy, signals
from outlive.agents import Agent
from outlive.states import State
from outlive.store.script import Steps, script, statement


def everything(root: pathlib.Path) -> list[str]:
    """Every file under the root, by its name alone."""
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def folders(root: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Every directory of that name under the root."""
    return list(root.rglob(name))


def write(path: pathlib.Path, text: str) -> None:
    """Write a file."""
    path.write_text(text)


async def ended(served: outlive.Outlive, name: str = "agent", **more: Any) -> outlive.Run:
    """Make a run and wait for its end."""
    run_id = (await served.submit(name, **more)).run.run_id
    await support.story(served, run_id)
    return await served.run(run_id)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of a service."""
    return tmp_path / "artifacts"


async def test_what_an_agent_wrote_is_the_runs_with_its_verdict(database: str, root: pathlib.Path) -> None:
    written, go_on = asyncio.Event(), asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        path = context.artifact("report (1).txt")
        assert path == artifacts.file("report (1).txt")
        await asyncio.to_thread(write, path, "hello")
        written.set()
        await go_on.wait()
        yield 1

    async with support.serving(database, agent, artifacts=root) as served:
        run_id = (await served.submit("agent")).run.run_id
        await asyncio.wait_for(written.wait(), support.WITHIN)
        assert await served.artifacts(run_id) == []
        go_on.set()
        events = await support.story(served, run_id)
        (found,) = await served.artifacts(run_id)
        assert (found.name, found.size) == ("report (1).txt", 5)
        assert events[-1].data["artifacts"] == [found.entry()]
        assert served.artifact_root is not None
        assert await asyncio.to_thread(served.artifact_root.find(run_id, found).read_text) == "hello"
        with pytest.raises(errors.NotFound):
            await served.artifacts(run_id, tenant="other")


@pytest.mark.parametrize("how", ["failed", "stopped"])
async def test_partial_work_is_kept_with_a_run_that_did_not_succeed(
    database: str, root: pathlib.Path, how: str
) -> None:
    @support.job(run_timeout=0.3 if how == "stopped" else None)
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(write, context.artifact("part"), "x")
        yield 1
        if how == "failed":
            raise LookupError
        await asyncio.Event().wait()

    async with support.serving(database, agent, artifacts=root) as served:
        run = await ended(served)
        assert run.state.value == how
        assert [found.name for found in await served.artifacts(run.run_id)] == ["part"]


async def test_a_run_that_made_nothing_leaves_nothing(database: str, root: pathlib.Path) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    async with support.serving(database, agent, artifacts=root) as served:
        run = await ended(served)
        assert await served.artifacts(run.run_id) == []
        last = await served.events(run.run_id)
        assert "artifacts" not in last[-1].data
    assert everything(root) == []
    assert folders(root, run.run_id) == []


@pytest.mark.invariant("I2")
async def test_files_of_an_attempt_that_was_replaced_are_never_the_runs(
    database: str, root: pathlib.Path
) -> None:
    """The first holder loses its lease while it is at work, and finishes long after the second one."""
    late, first_wrote = asyncio.Event(), asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(write, context.artifact("result"), f"of attempt {context.attempt}")
        if context.attempt == 1:
            await asyncio.to_thread(write, context.artifact("only of the first"), "x")
            first_wrote.set()
            try:
                await late.wait()
            finally:
                await asyncio.to_thread(write, context.artifact("later still"), "x")
        yield context.attempt

    async with support.serving(database, agent, artifacts=root, slots=0) as other:
        async with support.serving(database, agent, artifacts=root) as served:
            run_id = (await served.submit("agent")).run.run_id
            await asyncio.wait_for(first_wrote.wait(), support.WITHIN)
            run = await served.run(run_id)
            await served.store.write(taken_from(run_id))
            events = await support.story(served, run_id)
            assert events[-1].data["state"] == "succeeded"
            assert events[-1].epoch > run.epoch
            (found,) = await served.artifacts(run_id)
            late.set()
            await support.until(lambda: not served._worker.driving)
        assert [one.name for one in await other.artifacts(run_id)] == ["result"]
        assert other.artifact_root is not None
        path = other.artifact_root.find(run_id, found)
        assert await asyncio.to_thread(path.read_text) == "of attempt 2"
    assert everything(root) == ["result"]


def taken_from(run_id: str) -> Any:
    """Take a run from its holder, as the sweeper does with one whose lease is over."""

    @script()
    def take() -> Steps[None]:
        rows = yield statement("run", run_id=run_id, tenant=None)
        yield statement("lock_thread", thread_id=rows[0]["thread_id"])
        yield statement("requeue_lost", run_id=run_id, epoch=rows[0]["epoch"])

    return take()


async def test_a_run_that_was_handed_back_leaves_nothing_of_the_attempt(
    database: str, root: pathlib.Path
) -> None:
    wrote = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(write, context.artifact("half"), "x")
        wrote.set()
        await asyncio.Event().wait()
        yield 1

    async with support.serving(database, agent, artifacts=root) as served:
        run_id = (await served.submit("agent")).run.run_id
        await asyncio.wait_for(wrote.wait(), support.WITHIN)
    async with support.serving(database, agent, artifacts=root, slots=0) as served:
        assert (await served.run(run_id)).state is State.QUEUED
    assert everything(root) == []


async def test_what_is_no_plain_file_of_that_name_is_not_linked(database: str, root: pathlib.Path) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        folder = context.artifact("good").parent

        def make() -> None:
            write(folder / "good", "x")
            write(folder / ".hidden", "x")
            write(folder / "new\nline", "x")
            (folder / "folder").mkdir()
            (folder / "link").symlink_to("/etc/hostname")
            os.mkfifo(folder / "pipe")

        await asyncio.to_thread(make)
        yield 1

    async with support.serving(database, agent, artifacts=root) as served:
        run = await ended(served)
        assert [found.name for found in await served.artifacts(run.run_id)] == ["good"]


@pytest.mark.parametrize(
    "name", ["", "..", ".x", "a/b", "/etc/passwd", "a\\b", "a\0b", "a\nb", "x" * 129, "é"]
)
def test_no_name_leads_out_of_the_directory(name: str, tmp_path: pathlib.Path) -> None:
    attempt = artifacts.Root(tmp_path).attempt("0" * 32, 1)
    with pytest.raises(errors.InvalidInput, match="named by letters"):
        attempt.file(name)
    for place in ("..", "1-../..", "1-" + "0" * 15):
        forged = artifacts.Artifact(name="x", size=1, place=place)
        with pytest.raises(errors.NotFound):
            artifacts.Root(tmp_path).find("0" * 32, forged)
    for run_id in ("../..", "a/b", "", "."):
        with pytest.raises(errors.InvalidInput):
            artifacts.Root(tmp_path).attempt(run_id, 1)


async def test_without_a_directory_an_agent_is_told_so(database: str) -> None:
    with pytest.raises(errors.Misconfigured, match="no directory for artifacts"):
        artifacts.file("x")

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        context.artifact("x")
        yield 1

    async with support.serving(database, agent) as served:
        run = await ended(served)
        assert (run.state, "Misconfigured" in (run.error or "")) == (State.FAILED, True)


@pytest.mark.invariant("I15")
async def test_files_that_cannot_be_kept_are_no_success(
    database: str, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(write, context.artifact("result"), "x")
        yield 1

    def full(_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts, "_synced", full)
    async with support.serving(database, agent, artifacts=root) as served:
        run = await ended(served)
        assert (run.state, "artifacts_lost" in (run.error or "")) == (State.FAILED, True)
    assert everything(root) == []


async def test_a_verdict_whose_reply_was_lost_keeps_its_files(database: str, root: pathlib.Path) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(write, context.artifact("result"), "x")
        yield 1

    async with support.serving(database, agent, artifacts=root) as served:
        commit = served.store.write

        async def lose(script: Any, **more: Any) -> Any:
            answer = await commit(script, **more)
            if script.name == "settle":
                raise errors.StoreUnavailable
            return answer

        served.store.write = lose  # type: ignore[method-assign]
        heard = support.heard(served)
        run_id = (await served.submit("agent")).run.run_id
        await heard.of(signals.FinalisationFailed, run_id=run_id)
        await support.until(lambda: not served._worker.driving)
        assert [found.name for found in await served.artifacts(run_id)] == ["result"]
    assert everything(root) == ["result"]


class _State(TypedDict):
    n: int


async def test_a_node_and_a_tool_in_a_thread_write_files_too(database: str, root: pathlib.Path) -> None:
    async def node(state: _State) -> _State:
        await asyncio.to_thread(lambda: write(artifacts.file("from a thread"), "x"))
        path = artifacts.file("from a node")
        await asyncio.to_thread(write, path, "x")
        return {"n": state["n"] + 1}

    builder = StateGraph(_State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    graph: Agent = outlive.LangGraphAgent("graph", builder.compile(), policy=policy.job())
    async with support.serving(database, graph, artifacts=root) as served:
        run = await ended(served, "graph", input={"n": 1})
        found = await served.artifacts(run.run_id)
    assert [one.name for one in found] == ["from a node", "from a thread"]
