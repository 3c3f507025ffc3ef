"""A service that speaks the LangGraph protocol, behind a real server, over each kind of store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import fastapi
import httpx
import psycopg
import pytest
from fastapi import Request
from langgraph_sdk import client as sdk

import outlive
from langgraph_server import graphs
from outlive import policy, runtime
from outlive.agents.langgraph import LangGraphAgent
from outlive.http.langgraph import routes
from outlive.testing.asgi import WITHIN, listening
from outlive.testing.postgres import PostgresServer

_names = itertools.count(1)
POLICY = policy.chat(on_disconnect="continue")


@dataclass(kw_only=True)
class Service:
    """What a test holds: the SDK's client of one tenant, a plain one, and the service itself."""

    outlive: outlive.Outlive
    url: str
    tenant: str
    sdk: sdk.LangGraphClient
    http: httpx.AsyncClient


async def _tenant(request: Request) -> str:
    """Tell callers apart by the header that this protocol's clients send."""
    return request.headers.get("x-api-key", "nobody")


@contextlib.asynccontextmanager
async def serving(
    database: str, *, kept: float = routes.KEPT_SECONDS, webhooks: outlive.Webhooks | None = None
) -> AsyncIterator[tuple[outlive.Outlive, str]]:
    """The graphs behind a real server; its end leaves no viewer and no run behind."""
    agents = [
        LangGraphAgent("chat", graphs.chat(), policy=POLICY),
        LangGraphAgent("steps", graphs.steps(), policy=POLICY),
        LangGraphAgent("memory", graphs.memory(), policy=POLICY),
        LangGraphAgent("nested", graphs.nested(), policy=POLICY),
    ]
    served = outlive.Outlive(database, agents, webhooks=webhooks)
    app = fastapi.FastAPI()
    app.include_router(routes.router(served, principal=_tenant, kept=kept))
    async with served, listening(app) as port:
        yield served, f"http://127.0.0.1:{port}"
        for gate in graphs.gates.values():
            gate.set()
    assert served.presence._viewers == {}
    assert served._worker.driving == {}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lasting_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a migrated database for the whole module, once in each kind of store."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('served')}/outlive.db"
        runtime.migrate(url)
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    runtime.migrate(url)
    yield url
    server.drop_database(url)


@pytest.fixture(scope="module")
async def lasting_service(lasting_database: str) -> AsyncIterator[tuple[outlive.Outlive, str]]:
    """A service that serves a whole module."""
    async with serving(lasting_database) as served:
        yield served


@contextlib.asynccontextmanager
async def as_tenant(served: outlive.Outlive, url: str, tenant: str) -> AsyncIterator[Service]:
    """The clients of one tenant."""
    async with (
        sdk.get_client(url=url, api_key=tenant) as client,
        httpx.AsyncClient(base_url=url, headers={"x-api-key": tenant}, timeout=WITHIN) as http,
    ):
        yield Service(outlive=served, url=url, tenant=tenant, sdk=client, http=http)


@pytest.fixture
async def service(lasting_service: tuple[outlive.Outlive, str]) -> AsyncIterator[Service]:
    """The module's service for a tenant of which nobody has heard yet."""
    async with as_tenant(*lasting_service, f"tenant-{next(_names)}") as found:
        yield found


@pytest.fixture
async def stranger(lasting_service: tuple[outlive.Outlive, str]) -> AsyncIterator[Service]:
    """The same service for somebody else."""
    async with as_tenant(*lasting_service, f"stranger-{next(_names)}") as found:
        yield found


async def asked(url: str, text: str) -> list[tuple[Any, ...]]:
    """What the database itself says."""
    if url.startswith("sqlite"):

        def ask() -> list[tuple[Any, ...]]:
            with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                rows = connection.execute(text).fetchall()
                connection.commit()
                return rows

        return await asyncio.to_thread(ask)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        found = await connection.execute(text.encode())
        return await found.fetchall() if found.description else []
