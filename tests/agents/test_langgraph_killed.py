"""A process killed at any commit of a graph's run: the next one finishes it, and repeats one node at most.

So with one that is killed while its message takes the place of such a run.
"""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys

import pytest

from agents import bench
from outlive import agents
from outlive.states import Reason, State
from outlive.store import reads

pytestmark = pytest.mark.anyio
BOOKING = ["plan", "charge", "notify", "finish"]
TESTS = pathlib.Path(__file__).parents[1]


async def killed(module: str, *arguments: str) -> list[str]:
    """What a process prints before a failpoint kills it."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
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
    run_id, *ran = await killed("agents.victim", on.database, f"{store}.{moment}@{count}=kill")
    run = await on.store.read(reads.run(run_id, None))
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    second = await on.again(agents.Context(run=run, claim=run.claim))
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": BOOKING})
    both = [*ran, *trace.ended]
    assert sorted(set(both)) == sorted(BOOKING)
    assert len(both) <= len(BOOKING) + 1


MOMENTS = {
    "resume": ("commit@1", "committed@1", "committed@2", "over", "committed@4", "committed@7"),
    "restart": ("over", "committed@2"),
    "rollback": ("undone", "commit@2", "committed@2", "over", "committed@4"),
}
ENDS = {
    "resume": [*BOOKING, "asked", *BOOKING],
    "restart": ["plan", "charge", "asked", *BOOKING],
    "rollback": ["asked", *BOOKING],
}


@pytest.mark.parametrize(
    ("on_torn", "moment"), [(on_torn, moment) for on_torn, moments in MOMENTS.items() for moment in moments]
)
async def test_a_process_killed_anywhere_before_or_in_a_message_on_a_torn_thread_loses_and_repeats_nothing(
    on: bench.Bench, on_torn: str, moment: str
) -> None:
    """Whatever was left is dealt with once, and the message is taken once: what repeats is one node, cut."""
    store = "sqlite" if on.on_sqlite else "postgres"
    point = f"{store}.{moment}" if moment.startswith("commit") else f"prelude.{moment}"
    run_id, *ran = await killed("agents.prelude_victim", on.database, on_torn, f"{point}=kill")
    run = await on.store.read(reads.run(run_id, None))
    trace = bench.Trace()
    agent = await on.agent(bench.booking(trace))
    second = await on.again(agents.Context(run=run, claim=run.claim))
    assert await bench.last_of(agent, second) == agents.Outcome(output={"steps": ENDS[on_torn]})
    once = [*(["notify", "finish"] if on_torn == "resume" else []), *BOOKING]
    assert len(once) <= len([*ran, *trace.ended]) <= len(once) + 1


@pytest.mark.parametrize("moment", ["commit", "committed"])
@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_message_that_displaces_is_there_with_the_stop_that_it_asks_for_or_neither_is(
    on: bench.Bench, on_busy: str, moment: str
) -> None:
    first = (await on.claimed(thread="t", positioned=True)).run
    store = "sqlite" if on.on_sqlite else "postgres"
    await killed("agents.displacing_victim", on.database, on_busy, f"{store}.{moment}=kill")
    runs = {run.run_id: run for run in await on.store.read(reads.runs("", limit=10))}
    displaced = runs.pop(first.run_id)
    assert displaced.state is State.RUNNING
    if moment == "commit":
        assert (displaced.stop_reason, runs) == (None, {})
        return
    (message,) = runs.values()
    assert (displaced.stop_reason, message.displaces) == (Reason.DISPLACED, first.run_id)
    assert message.state is State.QUEUED
