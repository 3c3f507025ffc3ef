"""A process killed at any commit of a graph's run: the next one finishes it, and repeats one node at most."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys

import pytest

from agents import bench
from outlive import agents
from outlive.store import reads

pytestmark = pytest.mark.anyio
BOOKING = ["plan", "charge", "notify", "finish"]
TESTS = pathlib.Path(__file__).parents[1]


async def killed(database: str, armed: str) -> list[str]:
    """What a process prints before a failpoint kills it."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agents.victim", database, armed),
        stdout=asyncio.subprocess.PIPE,
        cwd=TESTS,
    )
    async with asyncio.timeout(2 * bench.WITHIN):
        printed, _ = await child.communicate()
    assert child.returncode == -signal.SIGKILL
    return printed.decode().split()


@pytest.mark.parametrize("moment", ["commit", "committed"])
@pytest.mark.parametrize("count", [3, 6])
async def test_S07_a_process_killed_at_a_commit_repeats_one_node_at_most(
    on: bench.Bench, count: int, moment: str
) -> None:
    store = "sqlite" if on.on_sqlite else "postgres"
    run_id, *ran = await killed(on.database, f"{store}.{moment}@{count}=kill")
    run = await on.store.read(reads.run(run_id, None))
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    second = await on.again(agents.Context(run=run, claim=run.claim))
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": BOOKING})
    both = [*ran, *trace.ended]
    assert sorted(set(both)) == sorted(BOOKING)
    assert len(both) <= len(BOOKING) + 1
