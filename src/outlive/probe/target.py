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
from outlive.probe.plan import PlanError, Target
from outlive.probe.tape import Tape

#: The recorder's package name inside the service.
INJECTED = "outlive_probe_inject"

#: Seconds for a server to listen, and to die after SIGKILL.
START_BUDGET = 60.0

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
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.server = target.server.value
        self.tape: Tape | None = Tape(directory / "tape.jsonl")
        self._log = directory / "server.log"
        _inject(directory)

    @property
    def recorder(self) -> Tape:
        assert self.tape is not None
        return self.tape

    def start(self) -> None:
        """Start (again) on the same port and wait until it serves. `PlanError` has the server's words."""
        if not servers.installed(self._target.server) and self._target.python is None:
            raise PlanError(f"The server {self._target.server.value} is not installed here: pip install it.")
        mark = self.recorder.mark()
        interpreter = self._target.python or sys.executable
        arguments = servers.command(self._target.server, f"{INJECTED}.app:app", self._port)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [interpreter, *arguments, *self._target.arguments],
                cwd=self._target.directory.resolve(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_serves(mark)

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
            self._process.wait(START_BUDGET)

    def _environment(self) -> dict[str, str]:
        paths = [
            str(self._directory),
            str(self._target.directory.resolve()),
            os.environ.get("PYTHONPATH", ""),
        ]
        return {
            **os.environ,
            **self._target.environment,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "OUTLIVE_PROBE_TAPE": str(self.recorder.path),
            "OUTLIVE_PROBE_APP": self._target.app or "",
        }

    def _wait_until_it_serves(self, mark: int) -> None:
        until = time.monotonic() + START_BUDGET
        while not (self._loaded(mark) and _listens(self._port)):
            if not self.alive() or time.monotonic() > until:
                self.stop()
                raise PlanError(f"{self.server} did not start {self._target.app}:\n{self.log()}")
            time.sleep(0.02)

    def _loaded(self, mark: int) -> bool:
        # Some servers listen before a worker has imported the application.
        return any(h.kind == "app.loaded" for h in self.recorder.since(mark))

    def log(self) -> str:
        """The last lines that the server wrote."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]


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
