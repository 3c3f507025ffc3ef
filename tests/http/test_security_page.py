"""The code on the page about security runs and does what the page says."""

from __future__ import annotations

import asyncio
import pathlib
import re
import sys
import types
from collections.abc import AsyncGenerator
from typing import Any

import fastapi
import httpx
import native_service
import pytest

import outlive

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "security.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class Session:
    """Somebody who logged in."""

    company, user, logged_out = "acme", "ann", False


SESSION = Session()


async def session(request: fastapi.Request) -> Session:
    """Of a cookie."""
    if request.cookies.get("session") != "1":
        raise fastapi.HTTPException(401, "Who are you?")
    return SESSION


@outlive.agent("assistant", policy=outlive.job())
async def assistant(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Never ends by itself."""
    yield context.input
    await asyncio.Event().wait()


@pytest.fixture
def yours(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """The application's own module, in a directory of its own."""
    module = types.ModuleType("yours")
    module.__dict__.update(session=session, assistant=assistant)
    monkeypatch.setitem(sys.modules, "yours", module)
    monkeypatch.chdir(tmp_path)
    SESSION.logged_out = False


def ran(code: str) -> dict[str, Any]:
    """What the code defines."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "security.md", "exec"), names)  # noqa: S102 - it is what the page shows
    return names


async def test_an_application_that_brings_its_own_authentication_throws_out_who_logs_out(
    yours: None,
) -> None:
    app = (await asyncio.to_thread(ran, CODE[0]))["app"]
    async with (
        native_service.listening(app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=native_service.WITHIN) as client,
    ):
        assert (await client.get("/runs")).status_code == 401
        client.cookies.set("session", "1")
        body = {"agent": "assistant", "input": 1}
        async with client.stream("POST", "/runs", json=body, headers=native_service.STREAM) as answer:
            SESSION.logged_out = True
            lines = [line async for line in answer.aiter_lines()]
        assert "retry: 250" in lines
        assert not any(line.startswith("event: end") for line in lines)


async def test_an_agent_writes_the_file_that_the_page_says(yours: None, tmp_path: pathlib.Path) -> None:
    report = (await asyncio.to_thread(ran, CODE[1]))["report"]
    database = f"sqlite:///{tmp_path}/outlive.db"
    async with outlive.Outlive(database, [report], artifacts=tmp_path / "files") as runs:
        made = await runs.submit("report")
        await runs.result(made.run.run_id)
        assert [found.name for found in await runs.artifacts(made.run.run_id)] == ["report.txt"]


def test_every_name_of_the_application_on_the_page_is_public() -> None:
    for name in set(re.findall(r"\boutlive\.(\w+)\(", PAGE)):
        assert name in outlive.__all__
