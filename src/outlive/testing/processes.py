"""Real processes that serve runs, to be killed, frozen, thawed and told to end.

Decides how a test starts one, hears what happens in it, and opens gates at which its agents wait.  Run as a
program it is such a process.  What its agents do is the test's own module.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import signal
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from outlive import failpoints, lease, notifications, presence, runtime, signals
from outlive.testing import process_tree
from outlive.testing.hearing import WITHIN

Line = dict[str, Any]
STARTING = 60.0
"""Seconds for which a start is waited for: importing everything takes its time on a busy machine."""
_gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


# ---------------------------------------------------------------- in the process itself


def gate(name: str) -> asyncio.Event:
    """The gate of this process with this name; ``Process.open`` sets it.  For agents that must wait."""
    return _gates[name]


def say(**fields: Any) -> None:
    """Tell the test something, at once: what was said survives the death of this process."""
    os.write(1, (json.dumps(fields) + "\n").encode())


def main() -> None:
    """Serve as the JSON in the first argument says, until SIGTERM or the end of the standard input."""
    asyncio.run(_serve(json.loads(sys.argv[1])))


async def _serve(config: Mapping[str, Any]) -> None:
    freeze = functools.partial(_freeze_between_writes, config["database"])
    failpoints.arm_from(config["failpoints"], freeze=freeze)
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    served = runtime.Outlive(
        config["database"],
        _named(config["agents"]),
        slots=config["slots"],
        timing=lease.Timing(**config["timing"]),
        drain=config["drain"],
        webhooks=notifications.Webhooks(**config["webhooks"]) if config["webhooks"] else None,
    )
    served.signals.listen(_report)
    obeying = loop.create_task(_obey(ending))
    async with served:
        served.presence._lease = config["presence_lease"]
        say(heard="Ready", worker=served._worker.id)
        also = loop.create_task(_named(config["also"])(served)) if config["also"] else None
        await ending.wait()
    for task in filter(None, (also, obeying)):
        task.cancel()


def _freeze_between_writes(database: str) -> None:
    """Freeze, but not in the middle of a write: SQLite's one lock would freeze everybody else, too."""
    if database.startswith("sqlite:///"):
        path = database.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
    failpoints.freeze()


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _report(happening: signals.Happening) -> None:
    say(heard=type(happening).__name__, **dataclasses.asdict(happening))


async def _obey(ending: asyncio.Event) -> None:
    """Open the gates that the test names, a line each; its end is the end of this process."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        gate(line.decode().strip()).set()
    ending.set()


# ---------------------------------------------------------------- in the test


class Process:
    """A process that serves the agents ``agents`` ("module:iterable of agents", importable from ``path``).

    ``points`` arms failpoints in it (see ``outlive.failpoints``; one that freezes it does so between two
    writes); ``also`` names a coroutine function that is called with the runtime beside the agents' work;
    ``webhooks`` are the fields of ``outlive.Webhooks``; ``log`` is a file for its standard error.  With
    ``slots`` 0 it only submits and observes.  Seconds everywhere.  An async context manager, which at its end
    kills what still runs.
    """

    def __init__(
        self,
        database: str,
        agents: str,
        *,
        path: Sequence[pathlib.Path] = (),
        slots: int = 4,
        timing: Mapping[str, float] | None = None,
        presence_lease: float = presence.LEASE,
        drain: float = runtime.DRAIN_BUDGET,
        points: str = "",
        also: str = "",
        webhooks: Mapping[str, Any] | None = None,
        log: pathlib.Path | None = None,
    ) -> None:
        self.worker = ""
        self._log = log
        self._config = {
            "database": database,
            "agents": agents,
            "slots": slots,
            "timing": dict(timing or {}),
            "presence_lease": presence_lease,
            "drain": drain,
            "also": also,
            "failpoints": points,
            "webhooks": dict(webhooks or {}),
        }
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]),
        }
        self._lines: list[Line] = []
        self._changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start it and wait until it serves."""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._log.open("ab")) if self._log else None
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, json.dumps(self._config)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                limit=2**24,
            )
        self._reading = asyncio.get_running_loop().create_task(self._read())
        try:
            self.worker = (await self.heard("Ready", within=STARTING))["worker"]
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if it still runs, frozen or not."""
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        assert self._reading is not None
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await self._reading

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def said(self, **fields: Any) -> list[Line]:
        """What it said so far with these fields, in order."""
        return [line for line in self._lines if fields.items() <= line.items()]

    async def heard(self, happening: str, *, within: float = WITHIN, **fields: Any) -> Line:
        """Return the first happening of that name with these fields, waiting for it.

        Raises ``TimeoutError`` after ``within`` seconds.
        """
        return await self.line(within=within, heard=happening, **fields)

    async def line(self, *, within: float = WITHIN, **fields: Any) -> Line:
        """Return the first line with these fields, waiting for it; raises ``TimeoutError``."""
        try:
            async with asyncio.timeout(within):
                while not (found := self.said(**fields)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            known = "\n".join(map(str, self._lines))
            raise TimeoutError(f"Waited {within} s for {fields}; it said:\n{known}") from None
        return found[0]

    def open(self, name: str) -> None:
        """Open a gate in it, for good."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n".encode())

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: it hands its work back and ends."""
        os.kill(self.pid, signal.SIGTERM)

    async def frozen(self, *, within: float = WITHIN) -> None:
        """Wait until it is stopped, as by a failpoint that freezes it; raises ``TimeoutError``."""
        async with asyncio.timeout(within):
            while not process_tree.is_stopped(self.pid):  # noqa: ASYNC110 - the kernel sets no event
                await asyncio.sleep(0.005)

    async def ended(self, *, within: float = WITHIN) -> int:
        """Wait until it ends and return its exit status, negative for a signal; raises ``TimeoutError``."""
        assert self._process is not None
        async with asyncio.timeout(within):
            return await self._process.wait()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._lines.append(json.loads(line))
            self._changed.set()


if __name__ == "__main__":
    # Agents import this module by its name: let that be the module that runs, with its gates.
    sys.modules["outlive.testing.processes"] = sys.modules["__main__"]
    main()
