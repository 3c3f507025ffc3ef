"""What the tests of the HTTP interface share: one service per kind of store, one tenant per test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import native_service
import pytest

from outlive import runtime
from outlive.testing.postgres import PostgresServer

_names = itertools.count(1)


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def lasting_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a migrated database for the whole session, once in each kind of store."""
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
async def lasting_service(lasting_database: str) -> AsyncIterator[native_service.Service]:
    """A service that serves a whole module."""
    async with native_service.serving(lasting_database) as served:
        yield served


@pytest.fixture
async def service(lasting_service: native_service.Service) -> AsyncIterator[native_service.Service]:
    """The module's service for a tenant of which nobody has heard yet."""
    async with lasting_service.as_tenant(f"tenant-{next(_names)}") as served:
        yield served
