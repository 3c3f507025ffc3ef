"""What every test gets: asyncio, real databases, and an error for a call that blocks the loop."""

from __future__ import annotations

import inspect
import os
import pathlib
from collections.abc import Iterator

import blockbuster
import hypothesis
import psycopg
import pytest
from psycopg import sql

from outlive import runtime
from outlive.testing import postgres

# A developer's own tracing settings must not make LangGraph send what the tests do to a server.
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

# A deadline would assert the machine's speed; a database of examples needs a writable checkout.
hypothesis.settings.register_profile("outlive", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("outlive")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The only backend there is."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """One server for the whole session. A test that kills or freezes a server starts its own."""
    with postgres.PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """The address of an empty database that only this test uses; its end cuts who is still connected."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture(scope="session")
def _migrated_database(postgres_server: postgres.PostgresServer) -> str:
    """A database with the schema in place, emptied between tests: making one costs more than most tests."""
    dsn = postgres_server.create_database()
    runtime.migrate(dsn)
    return dsn


@pytest.fixture
def migrated_postgres_dsn(_migrated_database: str) -> Iterator[str]:
    """Like `postgres_dsn`, with the schema in place."""
    yield _migrated_database
    with psycopg.connect(_migrated_database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        tables = (
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE '%migrations'"
        )
        names = [row[0] for row in connection.execute(tables)]
        connection.execute("SET session_replication_role = replica")  # delete in any order of the references
        for name in names:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))


@pytest.fixture
def sqlite_path(tmp_path: pathlib.Path) -> pathlib.Path:
    """The path of a database file that does not exist yet."""
    return tmp_path / "outlive.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database that only this test uses: once in each kind of store."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("migrated_postgres_dsn"))
    path = request.getfixturevalue("sqlite_path")
    runtime.migrate(f"sqlite:///{path}")
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def _block_detector() -> blockbuster.BlockBuster:
    return blockbuster.BlockBuster("outlive", excluded_modules=["outlive.testing"])


@pytest.fixture(autouse=True)
def _no_blocking_call_on_the_loop(
    request: pytest.FixtureRequest, _block_detector: blockbuster.BlockBuster
) -> Iterator[None]:
    """Fail an async test when Outlive's own code blocks the loop; what only the test calls may block."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    _block_detector.activate()
    yield
    _block_detector.deactivate()
