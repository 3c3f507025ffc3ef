"""The service that is probed: started by us with the recorder inside, or running already at a URL."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from outlive.probe import servers
from outlive.probe.client import Call, Client
from outlive.probe.inject.canary import HELLO
from outlive.probe.inject.install import OWNER_VARIABLE
from outlive.probe.inject.wrap import CLIENT_HEADER
from outlive.probe.plan import PlanError, Target
from outlive.probe.tape import Tape

#: The recorder's package name inside the service.
INJECTED = "outlive_probe_inject"

#: Seconds for a server to die after SIGKILL, and to answer a first request.
DYING, ANSWERING = 60.0, 1.0

#: So many lines of what a server wrote are told.
LAST = 15

#: Somebody may take a free port before the server does: so often another one is tried.
PORTS = 3

_SITECUSTOMIZE = f"""\
import importlib, sys
import {INJECTED}.install
{INJECTED}.install.everything()
here = __file__.rpartition("/")[0]
rest = [entry for entry in sys.path if entry != here]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


class Running:
    """A service at a URL that somebody else runs: no recorder, no signals."""

    tape: Tape | None = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.server = "running service"

    def alive(self) -> bool:
        return True


class Started:
    """A service in a process group of ours."""

    def __init__(self, target: Target, directory: pathlib.Path) -> None:
        self._target = target
        self._directory = directory
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.server = target.server.value
        self.tape: Tape | None = Tape(directory / "tape.jsonl")
        self._log = directory / "server.log"
        _inject(directory)

    @property
    def recorder(self) -> Tape:
        assert self.tape is not None
        return self.tape

    def start(self) -> None:
        """Start (again, on the same port) and wait until it serves. `PlanError` has the server's words."""
        if not servers.installed(self._target.server) and self._target.python is None:
            raise PlanError(f"The server {self._target.server.value} is not installed here: pip install it.")
        for attempt in range(PORTS):
            if not self._port or attempt:
                self._port = _free_port()
                self.url = f"http://127.0.0.1:{self._port}"
            if self._try_to_start(last=attempt == PORTS - 1):
                return

    def _try_to_start(self, *, last: bool) -> bool:
        """Whether it serves; False: somebody else has taken the port meanwhile."""
        mark = self.recorder.mark()
        self._launch()
        try:
            self._wait_until_it_serves(mark)
        except PlanError:
            if last or "address already in use" not in self.log().lower():
                raise
            return False
        return True

    def _launch(self) -> None:
        interpreter = self._target.python or sys.executable
        arguments = servers.command(self._target.server, f"{INJECTED}.app:app", self._port)
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [interpreter, *arguments, *self._target.arguments],
                    cwd=self._target.directory.resolve(),
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as exc:
                raise PlanError(
                    f"{self.server} cannot be started in {self._target.directory}: {exc}."
                ) from exc

    def alive(self) -> bool:
        """Whether the server's first process still runs."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """SIGTERM goes to the first process, as a supervisor sends it; SIGKILL to all of the group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def wait_for_exit(self, seconds: float) -> bool:
        """Whether the server's first process ended in time."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """End the whole process group."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait(DYING)

    def _environment(self) -> dict[str, str]:
        known = {**os.environ, **self._target.environment}
        paths = [str(self._directory), str(self._target.directory.resolve()), known.get("PYTHONPATH", "")]
        return {
            **known,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "OUTLIVE_PROBE_TAPE": str(self.recorder.path),
            "OUTLIVE_PROBE_APP": self._target.app or "",
            OWNER_VARIABLE: str(os.getpid()),
        }

    def _wait_until_it_serves(self, mark: int) -> None:
        until = time.monotonic() + self._target.start_within
        while not (self._loaded(mark) and _listens(self._port) and self._answers(mark)):
            if not self.alive():
                self.stop()
                raise PlanError(self._not_started("it ended"))
            if time.monotonic() > until:
                self.stop()
                raise PlanError(self._not_started(f"it did not serve within {self._target.start_within:g} s"))
            time.sleep(0.02)

    def _not_started(self, why: str) -> str:
        words = self.log().splitlines()
        if not words:
            return f"{self.server} did not start {self._target.app}: {why} and wrote nothing."
        last = words[-1].strip()
        hint = (
            "\nName the directory that it is imported from: --directory." if "No module named" in last else ""
        )
        said = "\n".join(words)
        return f"{self.server} did not start {self._target.app}: {why}. {last}{hint}\nIts words:\n{said}"

    def _answers(self, mark: int) -> bool:
        """Whether it is our service that listens there, and not one that took the port before it."""
        name = f"hello-{self._port}-{mark}"
        call = Call(url=self.url + HELLO, method="GET", headers={CLIENT_HEADER.decode(): name}, body=b"")
        with contextlib.suppress(PlanError):
            client = Client(call, name)
            try:
                client.send()
                client.read(seconds=ANSWERING)
            finally:
                client.close()
        return any(h.kind == "request.start" and h["client"] == name for h in self.recorder.since(mark))

    def _loaded(self, mark: int) -> bool:
        # Some servers listen before a worker has imported the application.
        return any(h.kind == "app.loaded" for h in self.recorder.since(mark))

    def log(self) -> str:
        """The last lines that the server wrote since it was started."""
        if not self._log.exists():
            return ""
        lines = self._log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
        return "\n".join(line[:500] for line in lines[-LAST:])


@contextlib.contextmanager
def opened(target: Target) -> Iterator[Started | Running]:
    """The target, started if need be, and ended afterwards if we started it."""
    if target.url is not None:
        yield Running(target.url)
        return
    with tempfile.TemporaryDirectory(prefix="outlive-probe-", ignore_cleanup_errors=True) as directory:
        started = Started(target, pathlib.Path(directory))
        try:
            started.start()
            yield started
        finally:
            started.stop()


def _inject(directory: pathlib.Path) -> None:
    source = pathlib.Path(__file__).parent / "inject"
    shutil.copytree(source, directory / INJECTED, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
