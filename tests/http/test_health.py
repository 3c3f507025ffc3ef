"""Alive and ready: for whoever decides where requests go.  Not ready means: send them elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import keyed_service
import native_service
import pytest
from keyed_service import Keyed

from outlive import runtime
from outlive.http import health
from outlive.testing.postgres import PostgresServer


async def soon(keyed: Keyed, client: httpx.AsyncClient, status: int) -> httpx.Response:
    """Ask until the answer has this status."""
    async with asyncio.timeout(native_service.WITHIN):
        while (answer := await client.get("/ready")).status_code != status:
            assert (await client.get("/health")).status_code == 200
    return answer


async def test_a_process_whose_database_is_away_is_alive_and_not_ready_until_it_is_back() -> None:
    with PostgresServer() as server:
        database = server.create_database()
        await asyncio.to_thread(runtime.migrate, database)
        async with keyed_service.serving(database) as keyed, keyed.client(None) as client:
            assert (await client.get("/ready")).status_code == 200
            await asyncio.to_thread(server.stop)
            refused = await soon(keyed, client, 503)
            assert native_service.refused(refused, 503, "store_unavailable")
            assert refused.headers["retry-after"] == "1"
            await asyncio.to_thread(server.start)
            await soon(keyed, client, 200)


async def test_a_database_that_was_taken_away_is_noticed(sqlite_path: pathlib.Path) -> None:
    async with keyed_service.serving(f"sqlite:///{sqlite_path}") as keyed, keyed.client(None) as client:
        assert (await client.get("/ready")).status_code == 200
        await asyncio.to_thread(sqlite_path.unlink)
        await soon(keyed, client, 503)


@contextlib.asynccontextmanager
async def counted(database: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[float]]]:
    """A service, a client, and the budgets of the looks that it took at its database."""
    async with keyed_service.serving(database) as keyed, keyed.client(None) as client:
        read, looks = keyed.outlive.store.read, []

        async def counting(script: Any, **more: Any) -> Any:
            if script.name == "migrations":
                looks.append(more["budget"])
            return await read(script, **more)

        keyed.outlive.store.read = counting  # type: ignore[method-assign]
        yield client, looks


async def test_asking_often_asks_the_database_seldom_and_never_for_long(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(database) as (client, looks):
        for _ in range(3):
            answers = await asyncio.gather(*(client.get("/ready") for _ in range(50)))
            assert {answer.status_code for answer in answers} == {200}
        few = len(looks)
        assert few < 20  # 150 were asked, and at most one look a second was taken
        monkeypatch.setattr(health, "LOOKS_EVERY", 0.0)
        await client.get("/ready")
        assert len(looks) == few + 1
        assert set(looks) == {health.PATIENCE}


async def test_being_ready_never_asks_who_asks_and_says_nothing_of_anybody(database: str) -> None:
    async with keyed_service.serving(database) as keyed, keyed.client("nonsense") as client:
        assert (await client.get("/ready")).json() == {"status": "ready", "agents": ["gated", "writing"]}
        assert (await client.get("/health")).json() == {"status": "ok"}
        for path in ("/ready", "/health"):
            head = await client.head(path)
            assert (head.status_code, head.content) == (200, b"")


async def test_a_process_that_ends_is_not_ready_although_its_database_is(database: str) -> None:
    async with keyed_service.serving(database) as keyed, keyed.client(None) as client:
        assert (await client.get("/ready")).status_code == 200
        keyed.outlive.shutdown.set()
        native_service.refused(await client.get("/ready"), 503, "not_ready")
        assert (await client.get("/health")).status_code == 200


async def test_a_drip_comes_in_pieces_with_the_headers_of_a_stream(database: str) -> None:
    async with (
        keyed_service.serving(database) as keyed,
        keyed.client(None) as client,
        client.stream("GET", "/health/drip") as answer,
    ):
        pieces = [piece async for piece in answer.aiter_raw()]
    assert b"".join(pieces) == b"".join(b"data: %d\n\n" % number for number in range(health.DROPS))
    assert len(pieces) >= 2
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["content-type"].startswith("text/event-stream")
