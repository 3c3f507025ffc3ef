"""The processes of the demonstration: started, listened to, frozen, killed, and ended without a trace.

Decides how they are handled; what they are for is ``scenarios``'s to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from demo import guard

ROOT = Path(__file__).parent.parent
CHARGING = '{"charge": 0.15}'
"""What the provider takes for a charge: so many seconds to its effect, and again from there to the answer."""
BOUND = 40.0
"""Seconds that anything here is waited for: a bound for a broken program, no claim about speed."""


class StageError(Exception):
    """The demonstration itself failed: nothing is known about what it wanted to show."""


class Child:
    """A process, and what it has said on its standard error, which is also its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.url = ""
        self.pid = process.pid
        self._process = process
        self._log = log
        self._lines: list[str] = []
        self._silent = False
        self._changed = asyncio.Condition()
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._log.open("ab", buffering=0) as log:
            while line := await self._process.stderr.readline():
                log.write(line)
                async with self._changed:
                    self._lines.append(line.decode(errors="replace"))
                    self._changed.notify_all()
        async with self._changed:
            self._silent = True
            self._changed.notify_all()

    async def says(self, pattern: str) -> str:
        """Wait for a line that ``pattern`` is found in, and return it; raises ``StageError``."""
        try:
            async with asyncio.timeout(BOUND), self._changed:
                while not (found := [line for line in self._lines if re.search(pattern, line)]):
                    if self._silent:
                        raise StageError(f"{self.name} ended before it said {pattern!r}:\n{self._tail()}")
                    await self._changed.wait()
        except TimeoutError:
            raise StageError(f"{self.name} did not say {pattern!r} in {BOUND:g} s:\n{self._tail()}") from None
        return found[0]

    def _tail(self) -> str:
        return "".join(self._lines[-8:])

    async def listens(self) -> str:
        """Wait until it listens; returns its URL."""
        self.url = (await self.says("listening on ")).split()[-1]
        return self.url

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still lives."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self, within: float) -> int:
        """Wait for its end and return its exit code; raises ``TimeoutError``."""
        async with asyncio.timeout(within):
            code = await self._process.wait()
            await self.listening
        return code


class Stage:
    """Every process, over one folder in which their database and their logs are.

    ``alterations`` are names that ``demo.launch`` understands; without one the real command is started.
    """

    def __init__(self, folder: Path, alterations: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.database = folder / "record.db"
        self._alterations = alterations
        self._children: list[Child] = []
        self._environment = dict(os.environ)

    async def __aenter__(self) -> Self:
        """Begin; on leaving, every process is ended."""
        self._guard = guard.Guard(str(self.folder))
        (self.folder / "logs").mkdir()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = {asyncio.create_task(self._end(child)) for child in self._children}
        while any(not task.done() for task in ending):
            with contextlib.suppress(asyncio.CancelledError):  # a second Ctrl-C must not leave them behind
                await asyncio.wait(ending)
        self._guard.close()
        for task in ending:
            task.result()

    async def _end(self, child: Child) -> None:
        child.send(signal.SIGCONT)
        child.send(signal.SIGTERM)
        try:
            await child.ended(within=8)
        except TimeoutError:
            child.send(signal.SIGKILL)
            await child.ended(within=8)
        self._guard.forget(child.pid)

    # ------------------------------------------------------------ starting

    async def migrate(self) -> None:
        """Make the database, so that the servers do not race for it."""
        child = await self._start("migrate", *self._outlive(), "migrate", "--database", self._url())
        if code := await child.ended(within=BOUND):
            raise StageError(f"The database could not be made: exit code {code}.")

    async def provider(self, *options: str) -> Child:
        """Start the provider and let the servers know where it listens."""
        log = str(self.folder / "provider.jsonl")
        command = [sys.executable, "-m", "outlive.testing.provider", "--log", log, "--work", CHARGING]
        child = await self._start("provider", *command, *options)
        self._environment["DEMO_PROVIDER"] = await child.listens()
        return child

    async def serve(
        self, name: str, *, slots: int = 32, lease: float | None = None, alteration: str = ""
    ) -> Child:
        """Start ``outlive serve`` and wait until it listens."""
        command = [*self._outlive(alteration), "serve", "demo.booking:served", "--database", self._url()]
        command += ["--port", "0", "--slots", str(slots)]
        command += ["--lease", str(lease)] if lease else []
        child = await self._start(name, *command)
        await child.listens()
        return child

    def _url(self) -> str:
        return f"sqlite:///{self.database}"

    def _outlive(self, alteration: str = "") -> list[str]:
        alterations = [name for name in (*self._alterations, alteration) if name]
        if alterations:
            return [sys.executable, "-m", "demo.launch", ",".join(alterations)]
        return [str(Path(sys.executable).parent / "outlive")]

    async def _start(self, name: str, *command: str) -> Child:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours: the order in which things end is too
        )
        self._guard.watch(process.pid)
        child = Child(name, process, self.folder / "logs" / f"{name}.log")
        self._children.append(child)
        return child

    # ------------------------------------------------------------ accidents

    async def kill(self, child: Child) -> None:
        """End a process as a power cut would."""
        child.send(signal.SIGKILL)
        await child.ended(within=BOUND)

    async def freeze(self, child: Child) -> None:
        """Stop a process where it stands, as a suspended machine would.

        Never inside of a transaction: it would hold the only write lock of the file, and all the others would
        wait for its thaw, which is a property of SQLite and not what is shown here.
        """
        for _ in range(50):
            child.send(signal.SIGSTOP)
            if await asyncio.to_thread(_can_write, self.database):
                return
            child.send(signal.SIGCONT)
            await asyncio.sleep(0.02)
        raise StageError(f"{child.name} was inside of a transaction at every try to freeze it.")

    def thaw(self, child: Child) -> None:
        """Let a frozen process go on as if nothing had happened."""
        child.send(signal.SIGCONT)


def _can_write(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True
