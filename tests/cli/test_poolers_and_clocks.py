"""A database behind a real transaction pooler, and processes whose clock is wrong: the doctor alone minds."""

from __future__ import annotations

import glob
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator

import psycopg
import psycopg.conninfo
import pytest

from cli import support
from cli.test_serving import serving

POOLER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SHIFTED = sorted(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1"))
pooled = pytest.mark.skipif(POOLER is None, reason="pgbouncer is not installed (Debian: pgbouncer)")
shifting = pytest.mark.skipif(not SHIFTED, reason="libfaketime is not installed (Debian: faketime)")
SETTINGS = """\
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
logfile =
"""


@pytest.fixture
def bouncer(migrated_postgres_dsn: str) -> Iterator[str]:
    """The address of the database through a pooler of this test's own, four connections for everybody."""
    parts = psycopg.conninfo.conninfo_to_dict(migrated_postgres_dsn)
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="outlive-pooler-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        file = folder / "pgbouncer.ini"
        file.write_text(SETTINGS.format(host=parts["host"], port=parts["port"], user=parts["user"], own=own))
        as_nobody = ["-u", "nobody"] if os.geteuid() == 0 else []
        assert POOLER is not None
        with subprocess.Popen([POOLER, *as_nobody, str(file)], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if "process up" in line:
                        break
                assert process.poll() is None
                yield f"postgresql://{parts['user']}@127.0.0.1:{own}/{parts['dbname']}"
            finally:
                process.terminate()


@pooled
@pytest.mark.parametrize("direct", [True, False])
def test_runs_go_through_a_transaction_pooler_and_what_is_off_is_said(
    here: support.Here, gate: support.Gate, bouncer: str, migrated_postgres_dsn: str, direct: bool
) -> None:
    options = ("--direct-database", migrated_postgres_dsn) if direct else ()
    with (
        serving(bouncer, "served:gated", *options) as (first, one),
        serving(bouncer, "served:gated", *options) as (second, other),
    ):
        made = [one.create("gated", gate.port) for _ in range(20)]
        gate.arrive(20)
        gate.open()
        for run in made:
            with other.follow(run["run_id"]) as stream:
                assert stream.rest()[-1].data["state"] == "succeeded"
        assert ("WakeupsDegraded" in first.said + second.said) is not direct
    found = here("doctor", "--json", "-d", bouncer, *options)
    listening = next(one for one in json.loads(found.out) if one["check"] == "LISTEN")
    assert listening["level"] == ("ok" if direct else "warn")


def _older_than_a_lease(dsn: str, run_id: str) -> None:
    """Wait, by the database's clock, until a run is older than two leases: by then it would be taken."""
    older = (
        "SELECT extract(epoch FROM clock_timestamp()) * 1000 - started_at > 4000 FROM runs WHERE run_id = %s"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(older, (run_id,)).fetchone() == (False,):
            connection.execute("SELECT pg_sleep(0.1)")


@shifting
@pytest.mark.parametrize("shift", ["+3600", "-3600"])
def test_a_process_whose_clock_is_an_hour_wrong_keeps_its_runs_and_takes_nobodys(
    here: support.Here,
    gate: support.Gate,
    migrated_postgres_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    shift: str,
) -> None:
    lease = ("--lease", "2")
    with serving(migrated_postgres_dsn, "served:gated", *lease) as (_, right):
        mine = right.create("gated", gate.port)
        gate.arrive()
        with monkeypatch.context() as shifted:
            shifted.setenv("LD_PRELOAD", SHIFTED[0])
            shifted.setenv("FAKETIME", shift)
            shifted.setenv("DONT_FAKE_MONOTONIC", "1")
            other = serving(migrated_postgres_dsn, "served:gated", *lease)
            _, wrong = other.__enter__()
            doctor = support.Process("doctor", "--json", "-d", migrated_postgres_dsn)
        try:
            theirs = wrong.create("gated", gate.port)
            gate.arrive()
            for _ in range(
                4
            ):  # one run after another that is lost at once if anybody goes by the wrong clock
                with right.follow(theirs["run_id"]) as stream:
                    assert [event.kind for event in stream.next(2)] == ["attempt", "chunk"]
            doctor.ended()
            gate.open()
            for run in (mine, theirs):
                with wrong.follow(run["run_id"]) as stream:
                    events = stream.rest()
                assert events[-1].data["state"] == "succeeded"
                assert [event.data for event in events if event.kind == "chunk"] == [
                    ["before", 1],
                    ["after", 1],
                ]
        finally:
            other.__exit__(None, None, None)
    found = next(one for one in json.loads(doctor.said) if one["check"] == "clock")
    assert found["level"] == "warn"
    assert f"{-int(shift):+d}" in found["found"]
    doctor.close()
