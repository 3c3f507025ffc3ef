"""What streams cost while nothing happens, while nobody reads, and at the end: ``python -m bench.streams``.

Memory is what a process has to itself (unique set size); a figure per stream is a difference between many
streams and few, so that what a server needs anyway is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.processes import BOUND, BrokenError, Child
from bench.report import Report, Target
from outlive import runtime

RESULTS = Path(__file__).parent / "results" / "streams.json"
IDLE = 1000
WARM = 50
STALLED = 50
FLOOD = 4000
"""Chunks of 16 KiB: what no buffer on the way holds."""
SMALL = 4096


class Stream:
    """A client that reads only what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def opened(cls, port: int, path: str, *, buffer: int | None = None, limit: int = 65536) -> Stream:
        """Connect and ask, without reading."""
        loop = asyncio.get_running_loop()
        plug = socket.socket()
        plug.setblocking(False)
        if buffer is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await loop.sock_connect(plug, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=plug, limit=limit)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        return cls(reader, writer)

    async def first_chunk(self) -> None:
        """Read up to the first chunk; raises ``BrokenError`` if there is none."""
        async with asyncio.timeout(BOUND):
            await self.reader.readuntil(b"event: chunk")

    async def end(self) -> int:
        """Read to the end; returns bytes."""
        count = 0
        with contextlib.suppress(ConnectionError):
            while got := await self.reader.read(1 << 16):
                count += len(got)
                if got.endswith(b"0\r\n\r\n"):
                    break
        return count

    def close(self) -> None:
        """Leave."""
        self.writer.close()


def main() -> None:
    """Measure, show, write."""
    options = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    options.add_argument("--results", type=Path, default=RESULTS, help="Where the figures are written.")
    chosen = options.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    console, report = Console(width=None if sys.stdout.isatty() else 140), Report()
    try:
        for measure in (_idle, _stalled, _shutdown):
            console.print((measure.__doc__ or "").splitlines()[0], highlight=False)
            asyncio.run(measure(report))
    except (BrokenError, TimeoutError, OSError) as failure:
        sys.stderr.write(f"The benchmark could not be carried out: {failure!r}\n")
        sys.exit(3)
    report.show(console)
    for figure in report.figures:
        console.print(f"{figure.name}: {figure.value:,.4g} {figure.unit}", highlight=False)
    report.write(chosen.results)
    console.print(f"figures in {chosen.results}", highlight=False)


async def _idle(report: Report) -> None:
    """Idle streams on the same server: a bare ASGI application's, FastAPI's own, Outlive's."""
    for name, kind in (("bare ASGI", "raw"), ("FastAPI", "plain"), ("Outlive", "our")):
        async with _served(f"{kind}_streams") as (child, port):
            path = f"/runs/{await _run(port, 'silent')}/events" if kind == "our" else "/"
            report.add(f"idle stream of {IDLE}, {name}", await _per_stream(child, port, path), "KiB")


async def _per_stream(child: Child, port: int, path: str) -> float:
    async with contextlib.AsyncExitStack() as stack:
        before = 0
        for number in range(WARM + IDLE):
            if number == WARM:
                before = _own(child.process.pid)
            stream = await Stream.opened(port, path)
            stack.callback(stream.close)
            await stream.first_chunk()
        return (_own(child.process.pid) - before) / IDLE / 1024


async def _stalled(report: Report) -> None:
    """A run that says 64 MB to one reader that reads and, the second time, to fifty that do not."""
    for readers in (0, STALLED):
        async with _serving() as (process, port):
            before = _own(process.pid)
            run = await _run(port, "flood", FLOOD)
            stuck = [await Stream.opened(port, f"/runs/{run}/events", buffer=SMALL) for _ in range(readers)]
            reading = asyncio.create_task((await Stream.opened(port, f"/runs/{run}/events")).end())
            highest = 0
            while not reading.done():
                highest = max(highest, _own(process.pid))
                await asyncio.wait([reading], timeout=0.05)
            if reading.result() < FLOOD * 16_384:
                raise BrokenError("The reader did not get everything.")
            report.add(
                f"64 MB streamed, {readers} stalled readers: growth", (highest - before) / 2**20, "MiB"
            )
            if stuck:
                await _cut_off(report, stuck)


async def _cut_off(report: Report, stuck: list[Stream]) -> None:
    """Wait until the server holds none of those any more that take nothing."""
    began = time.monotonic()
    async with asyncio.timeout(2 * BOUND):
        while any(_held(stream) for stream in stuck):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.2)
    report.add(f"{len(stuck)} stalled readers cut off after", time.monotonic() - began, "s", Target(bound=75))
    for stream in stuck:
        stream.close()


def _held(stream: Stream) -> bool:
    """Whether the server still has its end of the connection."""
    plug = stream.writer.get_extra_info("socket")
    ends = [f"{plug.getpeername()[1]:04X}", f"{plug.getsockname()[1]:04X}"]
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any([end[-4:] for end in line.split()[1:3]] == ends for line in lines)


async def _shutdown(report: Report) -> None:
    """`outlive serve`, told to end with twenty idle streams and a reader that reads nothing."""
    async with _serving() as (process, port):
        silent, flood = await _run(port, "silent"), await _run(port, "flood", FLOOD)
        idle = [await Stream.opened(port, f"/runs/{silent}/events") for _ in range(20)]
        for stream in idle:
            await stream.first_chunk()
        stuck = await Stream.opened(port, f"/runs/{flood}/events", buffer=SMALL)
        await stuck.first_chunk()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(stream.end() for stream in idle))
            report.add(
                "SIGTERM to the end of 20 idle streams", time.monotonic() - began, "s", Target(bound=1)
            )
            code = await process.wait()
        report.add("SIGTERM to exit, with a stuck reader", time.monotonic() - began, "s", Target(bound=10))
        if code:
            raise BrokenError(f"outlive serve ended with {code}.")
        stuck.close()


@contextlib.asynccontextmanager
async def _serving() -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """`outlive serve` over a database of its own."""
    with tempfile.TemporaryDirectory(prefix="outlive-bench-") as folder:
        database = f"sqlite:///{folder}/ours.db"
        runtime.migrate(database)
        serve = ("serve", "bench.our_streams:agents", "--port", "0", "--database", database)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlive", *serve), stderr=asyncio.subprocess.PIPE
        )
        try:
            port = int(await _said(process, b"listening on http://127.0.0.1:"))
            assert process.stderr is not None
            rest = asyncio.create_task(process.stderr.read())  # a full pipe would hold the server up
            yield process, port
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await rest


@contextlib.asynccontextmanager
async def _served(kind: str) -> AsyncIterator[tuple[Child, int]]:
    with tempfile.TemporaryDirectory(prefix="outlive-bench-") as folder:
        database = f"sqlite:///{folder}/ours.db"
        runtime.migrate(database)
        async with Child("bench.server", kind, database) as child:
            yield child, int(await child.says("listening on "))


async def _run(port: int, agent: str, value: Any = None) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"agent": agent, "input": value}).encode()
    head = "POST /runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(BOUND):
        answer = await reader.read()
    writer.close()
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["run_id"])


async def _said(process: asyncio.subprocess.Process, prefix: bytes) -> bytes:
    assert process.stderr is not None
    async with asyncio.timeout(BOUND):
        while line := await process.stderr.readline():
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip()
    raise BrokenError("outlive serve did not start.")


def _own(pid: int) -> int:
    """Bytes that a process has to itself."""
    kinds = ("Private_Clean:", "Private_Dirty:")
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) * 1024


if __name__ == "__main__":
    main()
