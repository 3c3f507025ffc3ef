"""The receiver of the page about webhooks: it hears of each end once, and believes nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import re
import socket
import sqlite3
import time
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import httpx
import pytest
import uvicorn

from core import support as core
from outlive import notifications, signals
from outlive.notifications import Audience
from outlive.webhooks import signed
from webhooks import support

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "webhooks.md"


def example() -> fastapi.FastAPI:
    """The application of the page, made of its code."""
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), namespace)  # noqa: S102 - it is what readers copy
    made: fastapi.FastAPI = namespace["app"]
    return made


@contextlib.asynccontextmanager
async def listening(app: fastapi.FastAPI) -> AsyncIterator[str]:
    """Serve an application on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        finally:
            server.should_exit = True
            await serving


@pytest.mark.invariant("I10")
async def test_S24_the_receiver_of_the_page_hears_of_each_end_once(
    sqlite_url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = str(tmp_path / "receiver.db")
    hooks = support.webhooks(secrets=(support.OTHER, support.SECRET))
    old = support.webhooks(secrets=(support.SECRET,)).secrets_of("", Audience.TENANT)[0]
    monkeypatch.setenv("RECEIVER_DATABASE", books)
    monkeypatch.setenv("RECEIVER_SECRET", old)
    async with listening(example()) as url, support.serving(sqlite_url, webhooks=hooks) as served:
        heard = core.heard(served)
        runs = [(await served.submit("agent", webhook=url)).run.run_id for _ in range(3)]
        await heard.of(signals.NotificationDelivered, count=3)
        for run_id in runs:
            [row] = await served.notifications.of_run(run_id)
            await served.notifications.resend(row.notification_id)
        await heard.of(signals.NotificationDelivered, count=6)
        async with httpx.AsyncClient(verify=False) as client:
            mine = signed("made-up", "{}", [support.SECRET])
            assert (await client.post(url, content="{}", headers=mine)).status_code == 401
            assert (await client.post(url, content="{}")).status_code == 401
            late = signed("late", "{}", [old]) | {"webhook-timestamp": str(int(time.time()) - 600)}
            assert (await client.post(url, content="{}", headers=late)).status_code == 401
    with contextlib.closing(sqlite3.connect(books)) as found:
        assert sorted(found.execute("SELECT * FROM invoices")) == sorted((run, "succeeded") for run in runs)


def test_the_body_on_the_page_has_every_field() -> None:
    [shown] = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    data = json.loads(shown)["data"]
    composed = {*notifications._TOLD, "error", "effects", "artifacts", "follows", "url"}
    assert set(data) == composed
