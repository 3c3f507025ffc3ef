"""What the tests of the stores get besides what every test gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlive import failpoints
from outlive.store import postgres
from outlive.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def shared_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated database for tests that use names of their own and leave others' rows alone."""
    dsn = postgres_server.create_database()
    postgres.migrate_database(dsn)
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture
def empty_dsn(postgres_dsn: str) -> str:
    """A migrated database that only this test uses."""
    postgres.migrate_database(postgres_dsn)
    return postgres_dsn


@pytest.fixture(autouse=True)
def _nothing_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()
