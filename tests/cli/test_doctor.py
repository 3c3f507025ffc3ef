"""What the doctor finds, says and advises; the proxies and servers that it looks at are real."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import http.server
import json
import pathlib
import resource
import socket
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cli import support
from cli.test_serving import LISTENS
from outlive import settings
from outlive.cli import checks
from outlive.cli.checks import serving as served
from outlive.probe import servers
from outlive.probe.plan import Server
from outlive.store import filesystem, notify


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in settings.Settings.model_fields:
        monkeypatch.delenv(f"OUTLIVE_{name.upper()}", raising=False)
    monkeypatch.setattr(served, "server", lambda which: checks.ok("ASGI server", which.value))


def examined(here: support.Here, *options: str, code: int = 0) -> dict[str, dict[str, str]]:
    """The findings by name; ``code`` is the exit code."""
    done = here("doctor", "--json", *options)
    assert done.code == code, done
    return {finding["check"]: finding for finding in json.loads(done.out)}


def levels(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """How bad each is."""
    return {name: finding["level"] for name, finding in found.items()}


def test_all_is_well_where_all_is_well(here: support.Here, database: str) -> None:
    found = examined(here, "-d", database)
    assert set(levels(found).values()) <= {"ok", "skip"}, found
    expected = {
        "settings",
        "ulimit",
        "auth",
        "database",
        "migrations",
        "LISTEN",
        "clock",
        "ASGI server",
        "proxy",
    }
    assert expected <= set(found)
    assert ("SQLite" in found) == database.startswith("sqlite")
    assert found["proxy"]["level"] == "skip"
    assert all(finding["do"] == "" for finding in found.values())
    for_people = here("doctor", "-d", database)
    assert for_people.code == 0
    assert len(for_people.out.splitlines()) == len(found)


def test_nothing_is_made_by_looking(here: support.Here, sqlite_path: pathlib.Path) -> None:
    found = examined(here, "-d", f"sqlite:///{sqlite_path}")
    assert found["database"]["level"] == "skip"
    assert not sqlite_path.exists()


def test_a_database_that_is_down_fails(here: support.Here) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://ann:s3cret@127.0.0.1:{nobody.getsockname()[1]}/x"
        found = examined(here, "-d", url, code=1)
    assert found["database"] == {
        "check": "database",
        "level": "fail",
        "found": "The database cannot be reached.",
        "do": "Start it, or correct the database URL.",
    }
    assert "s3cret" not in json.dumps(found)


def test_an_older_schema_fails_with_the_command_that_helps(
    here: support.Here, sqlite_path: pathlib.Path
) -> None:
    url = f"sqlite:///{sqlite_path}"
    here("migrate", "-d", url)
    with contextlib.closing(sqlite3.connect(sqlite_path)) as connection, connection:
        connection.execute("DELETE FROM migrations WHERE name = '0003_keys_pre'")
    found = examined(here, "-d", url, code=1)
    assert found["migrations"]["level"] == "fail"
    assert "0003_keys_pre" in found["migrations"]["found"]
    assert "outlive migrate" in found["migrations"]["do"]


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs"])
def test_S27_a_network_file_system_fails(
    here: support.Here, sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts = sqlite_path.parent / "mounts"
    mounts.write_text(f"/dev/vda1 / ext4 rw 0 0\nserver:/x {sqlite_path.parent} {kind} rw 0 0\n")
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)
    found = examined(here, "-d", f"sqlite:///{sqlite_path}", code=1)
    assert kind in found["file system"]["found"]


@pytest.mark.parametrize(("soft", "level"), [(256, "fail"), (1024, "warn"), (65536, "ok"), (-1, "ok")])
def test_few_open_files_are_few_viewers(
    here: support.Here, sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, soft: int, level: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, -1))
    found = examined(here, "-d", f"sqlite:///{sqlite_path}", code=int(level == "fail"))
    assert found["ulimit"]["level"] == level
    assert ("ulimit -n" in found["ulimit"]["do"]) == (level != "ok")


def test_hints_that_do_not_arrive_are_said(
    here: support.Here, migrated_postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> bool:
        return False

    monkeypatch.setattr(notify.Direct, "_probe", never)  # as through a transaction pooler
    found = examined(here, "-d", migrated_postgres_dsn)
    assert found["LISTEN"]["level"] == "warn"
    assert "direct_database" in found["LISTEN"]["do"]


def test_clocks_that_differ_are_said(
    here: support.Here, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examined(here, "-d", database)
    assert found["clock"]["level"] == "ok"
    real = checks.database.time.time  # type: ignore[attr-defined]
    monkeypatch.setattr(checks.database.time, "time", lambda: real() - 60)  # type: ignore[attr-defined]
    found = examined(here, "-d", database)
    assert (found["clock"]["level"], "+60" in found["clock"]["found"]) == ("warn", True)


def test_what_is_set_is_looked_at(here: support.Here, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIVE_SLOT", "1")
    found = examined(here, "-d", database, "--auth", "keys", "--lease", "4")
    assert (found["settings"]["level"], found["keys"]["level"]) == ("warn", "warn")
    assert "OUTLIVE_SLOT" in found["settings"]["found"]
    assert "outlive keys create" in found["keys"]["do"]
    if database.startswith("sqlite"):
        assert found["lease"]["level"] == "warn"
    here("keys", "create", "-d", database, "--tenant", "a", "--name", "b")
    assert examined(here, "-d", database, "--auth", "keys")["keys"]["level"] == "ok"
    assert examined(here, "-d", database, "--allow-anyone")["auth"]["level"] == "warn"
    assert examined(here, "-d", database, "--auth", "jwt", code=1)["auth"]["level"] == "fail"


def test_a_directory_for_artifacts_must_be_one(
    here: support.Here, database: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").touch()
    assert examined(here, "-d", database, "--artifacts", str(tmp_path / "new"))["artifacts"]["level"] == "ok"
    wrong = examined(here, "-d", database, "--artifacts", str(tmp_path / "file"), code=1)
    assert wrong["artifacts"]["level"] == "fail"
    assert not (tmp_path / "new").exists()


# ------------------------------------------------------------ proxies


class _Holding(http.server.BaseHTTPRequestHandler):
    """A proxy that hands a body on when it has all of it, compressed or not."""

    behind = 0
    compress = False

    def do_GET(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.behind)
        connection.request("GET", self.path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.send_response(answer.status)
        if self.compress:
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def holding(port: int, *, compress: bool) -> Iterator[str]:
    """Such a proxy while this lasts."""
    handler = type("Handler", (_Holding,), {"behind": port, "compress": compress})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(support.WITHIN)


def test_a_proxy_that_holds_a_stream_back_is_found(here: support.Here, sqlite_path: pathlib.Path) -> None:
    database = f"sqlite:///{sqlite_path}"
    with support.running("serve", "served:both", "-d", database, "--port", "0") as process:
        url = process.says(LISTENS)
        port = int(url.rpartition(":")[2])
        assert examined(here, "-d", database, "--url", url)["proxy"]["level"] == "ok"
        with holding(port, compress=False) as proxy:
            found = examined(here, "-d", database, "--url", proxy, code=1)
        assert found["proxy"]["level"] == "fail"
        assert "proxy_buffering off" in found["proxy"]["do"]
        with holding(port, compress=True) as proxy:
            assert examined(here, "-d", database, "--url", f"{proxy}/")["proxy"]["level"] == "warn"
        wrong = examined(here, "-d", database, "--url", f"{url}/nowhere", code=1)
        assert "answers 404" in wrong["proxy"]["found"]


# ------------------------------------------------------------ servers


@pytest.mark.parametrize("which", list(Server))
def test_what_a_server_does_when_a_client_leaves_is_seen(
    monkeypatch: pytest.MonkeyPatch, which: Server
) -> None:
    monkeypatch.undo()
    found = served.server(which)
    assert found.level is checks.Level.OK, found
    assert "announces ASGI 2." in found.found
    assert "says so after" in found.found


def test_a_server_that_never_says_so_fails() -> None:
    found = served._judged("ASGI server x", "1", 0.0, {"spec_version": "2.4"})
    assert found.level is checks.Level.FAIL
    assert "did not say" in found.found


def test_a_server_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(servers, "installed", lambda _: False)
    assert served.server(Server.GRANIAN).level is checks.Level.SKIP
