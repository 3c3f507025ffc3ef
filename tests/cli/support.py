"""Commands in this process and in their own, and gates at which served agents wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple

import pytest

from outlive import cli

WITHIN = 30.0
HERE = pathlib.Path(__file__).parent
PATH = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
"""Where processes find what they serve."""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Here:
    """Runs commands in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        """Run one to its end."""
        self._monkeypatch.setattr(sys, "argv", ["outlive", *arguments])
        self._capsys.readouterr()
        code: str | int | None = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        assert not isinstance(code, str)
        return Done(code or 0, out, err)


class NoEnd:
    """Runs a server like any coroutine: this process is the tests' own, and nobody must end it."""

    def __init__(self, drain: float) -> None:
        del drain

    def begin(self) -> None:
        """Be told of the end."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it to its end."""
        asyncio.run(work)


class Process:
    """A command in a process of its own, and what it said."""

    def __init__(self, *arguments: str) -> None:
        environment = os.environ | {"PYTHONPATH": PATH, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outlive", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    @property
    def said(self) -> str:
        """Everything so far."""
        with self._changed:
            return "".join(self._lines)

    def says(self, pattern: str) -> str:
        """Wait for a line with the pattern and return its first group."""
        with self._changed:
            heard = self._changed.wait_for(lambda: re.search(pattern, "".join(self._lines)), WITHIN)
        found = re.search(pattern, self.said)
        assert heard, f"waited for {pattern!r}; it said:\n{self.said}"
        assert found is not None
        return found[found.re.groups and 1]

    def signal(self, number: signal.Signals) -> None:
        """Send it one."""
        self._process.send_signal(number)

    def ended(self, within: float = WITHIN) -> int:
        """Wait for its end, and return its exit code."""
        code = self._process.wait(within)
        self._reading.join(WITHIN)
        return code

    def close(self) -> None:
        """End it whatever it does."""
        self._process.kill()
        self._process.wait(WITHIN)
        self._reading.join(WITHIN)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Process]:
    """A command in a process of its own while this lasts."""
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.close()


class Gate:
    """Where served agents wait: each that arrives is a connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(WITHIN)
        self.port: int = self._listener.getsockname()[1]
        self._waiting: list[socket.socket] = []

    def arrive(self, count: int = 1) -> None:
        """Wait until so many more agents wait here."""
        for _ in range(count):
            waiting, _ = self._listener.accept()
            waiting.settimeout(WITHIN)
            self._waiting.append(waiting)

    def left(self) -> bool:
        """Wait until those who wait here have all gone away without being let through."""
        return all(waiting.recv(1) == b"" for waiting in self._waiting)

    def open(self) -> None:
        """Let through whoever waits here."""
        for waiting in self._waiting:
            with contextlib.suppress(OSError):
                waiting.sendall(b"!")

    def close(self) -> None:
        """Cut them all off."""
        for one in (*self._waiting, self._listener):
            one.close()
