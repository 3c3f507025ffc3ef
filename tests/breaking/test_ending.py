"""A process that was told to end does so within its budget, whatever its agents do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

import outlive
from breaking import stubborn
from core import record, support

TESTS = pathlib.Path(__file__).parent.parent


@contextlib.asynccontextmanager
async def worker(database: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that has said that it works."""
    options = ["--database", database, "--drain", "0.5"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outlive", "worker", "breaking.stubborn:agents", *options),
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stderr=subprocess.PIPE,
    )
    try:
        await said(process, "working on")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def said(process: asyncio.subprocess.Process, words: str) -> None:
    """Read on until the process has said this."""
    assert process.stderr is not None
    async with asyncio.timeout(support.WITHIN):
        async for line in process.stderr:
            if words in line.decode():
                return
    raise AssertionError(f"it ended without saying {words!r}")


@pytest.mark.parametrize(
    ("agent", "code", "state"),
    [
        ("swallows", 0, "queued"),
        ("waits", 0, "queued"),
        ("leaves_a_thread", 0, "queued"),
        ("blocks", 1, "running"),  # nothing can be handed back; whoever sweeps sees that its token is gone
    ],
)
@pytest.mark.invariant("I12")
async def test_a_worker_ends_in_time_although_its_agent_does_not(
    sqlite_url: str, agent: str, code: int, state: str
) -> None:
    async with worker(sqlite_url) as process:
        async with outlive.Outlive(sqlite_url, stubborn.agents, slots=0) as api:
            await api.submit(agent)
            await said(process, "HERE")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(support.WITHIN):
            assert await process.wait() == code
    (run,) = record.rows(sqlite_url, "SELECT state, losses FROM runs")
    assert (run["state"], run["losses"]) == (state, 0)


async def test_a_task_of_an_agent_that_calls_exit_ends_neither_the_process_nor_other_runs(
    sqlite_url: str,
) -> None:
    async with (
        worker(sqlite_url) as process,
        outlive.Outlive(sqlite_url, stubborn.agents, slots=0) as api,
    ):
        run = (await api.submit("exits")).run
        async with asyncio.timeout(support.WITHIN):
            assert (await api.result(run.run_id)).state is outlive.State.SUCCEEDED
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(support.WITHIN):
            assert await process.wait() == 0
