"""Twenty messages at once on one thread, from two processes: one run at a time, and none left behind."""

from __future__ import annotations

import asyncio
import pathlib
import sys

import pytest

import outlive
from agents import bench
from outlive import policy
from outlive.agents import langgraph
from outlive.model import EventKind
from outlive.states import Position, Reason, State

pytestmark = pytest.mark.anyio
PAIRS = [
    *((one, one) for one in policy.OnBusy),
    (policy.OnBusy.INTERRUPT, policy.OnBusy.ENQUEUE),
    (policy.OnBusy.ROLLBACK, policy.OnBusy.REJECT),
]
TESTS = pathlib.Path(__file__).parents[1]


async def begun(database: str, on_busy: str) -> asyncio.subprocess.Process:
    """A process that is ready to send ten messages."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agents.submitter", database, "10", on_busy),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=TESTS,
    )
    assert child.stdout is not None
    async with asyncio.timeout(2 * bench.WITHIN):
        assert await child.stdout.readline() == b"ready\n"
    return child


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("each", PAIRS, ids="-".join)
async def test_twenty_messages_at_once_run_one_after_another_and_leave_the_thread_free(
    database: str, each: tuple[policy.OnBusy, policy.OnBusy]
) -> None:
    """Ten of them by one policy and ten by the other."""
    agent = langgraph.LangGraphAgent(
        "graph", bench.chain(bench.Trace(), "one", "two").compile(), policy=policy.job()
    )
    async with outlive.Outlive(database, [agent], slots=0) as service:
        children = [await begun(database, on_busy) for on_busy in each]
        async with asyncio.timeout(3 * bench.WITHIN):
            said = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
        taken = sum(int(out) for out, _ in said)
        runs = await service.runs(thread="t", limit=100)
        thread = await service.thread("t")
        events = await service.thread_events(thread, after=0, limit=1000)
    assert taken == len(runs)
    assert taken == 20 if policy.OnBusy.REJECT not in each else 1 <= taken <= 20
    displaced = {run.run_id for run in runs if run.reason is Reason.DISPLACED}
    assert all(run.state is State.SUCCEEDED for run in runs if run.run_id not in displaced)
    assert not displaced or any(on_busy.displaces for on_busy in each)
    assert thread.position is Position.CLEAN
    had = {run.run_id for run in runs if run.epoch}
    running: str | None = None
    for event in events:
        if event.run_id not in had:  # its end is all that there is of it
            continue
        if event.kind is EventKind.ATTEMPT:
            assert running in (None, event.run_id)  # a process that ends gives its run to the other one
            running = event.run_id
        assert event.run_id == running
        if event.kind is EventKind.END:
            running = None
    last = max(runs, key=lambda run: run.ended_at or 0)
    if any(on_busy.displaces for on_busy in each):
        assert last.state is State.SUCCEEDED
    else:
        assert last.public()["output"] == {"steps": ["one", "two"] * taken}
