"""Processes of the benchmark, and the processor time that they take."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent
BOUND = 60.0
"""Seconds that anything here is waited for: a bound for a broken program, no claim about speed."""
TICK = os.sysconf("SC_CLK_TCK")


class BrokenError(Exception):
    """The benchmark itself failed: what it wanted to measure is not known."""


class Child:
    """A Python module in a process of its own, and the lines that it says."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.name = " ".join((module, *arguments))
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self.process
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(15):
                await process.wait()
        except TimeoutError:
            self.kill()
            await process.wait()

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process, which must have been started."""
        if self._process is None:
            raise BrokenError(f"{self.name} was not started.")
        return self._process

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process.returncode is None:
            self.process.kill()

    async def says(self, prefix: str) -> str:
        """Wait for a line that begins with ``prefix``; returns the rest of it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(prefix):
                    return line.removeprefix(prefix).strip()
        raise BrokenError(f"{self.name} ended before it said {prefix!r}.")

    def cpu(self) -> Cpu:
        """What it has taken so far."""
        return Cpu.of(self.process.pid)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """Seconds of processor time: of the main thread, which is the event loop's, and of the others."""

    loop: float
    threads: float

    @property
    def total(self) -> float:
        """Of all threads."""
        return self.loop + self.threads

    def __sub__(self, before: Cpu) -> Cpu:
        return Cpu(loop=self.loop - before.loop, threads=self.threads - before.threads)

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(loop=self.loop + other.loop, threads=self.threads + other.threads)

    def per(self, count: int) -> Cpu:
        """The share of each of ``count`` runs."""
        return Cpu(loop=self.loop / count, threads=self.threads / count)

    @classmethod
    def of(cls, pid: int) -> Cpu:
        """Read it of a process."""
        loop = _nanoseconds(Path(f"/proc/{pid}/task/{pid}/schedstat"))
        return cls(loop=loop, threads=_seconds(Path(f"/proc/{pid}/stat")) - loop)


NOTHING = Cpu(loop=0.0, threads=0.0)


def _nanoseconds(path: Path) -> float:
    return int(path.read_text(encoding="ascii").split()[0]) / 1e9


def _seconds(path: Path) -> float:
    # The name of a program may hold spaces and brackets; what follows it does not.
    fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def cpu_of_children(pid: int) -> float:
    """Seconds that the children of a process have taken, ended ones included: a database's sessions."""
    ended = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    total = (int(ended[13]) + int(ended[14])) / TICK
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        try:
            total += _seconds(Path(f"/proc/{child}/stat"))
        except OSError:
            continue  # it has just ended
    return total
