"""A process that drives a message on a torn thread until it is killed.

Its arguments are the database's URL, what the message's policy says of a torn thread, and a failpoint.  It
cuts one run in ``notify``, makes another that finds the thread so, prints its id, arms the failpoint and
drives; each node prints its name when it runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from agents import bench
from agents.victim import Traced
from outlive import failpoints
from outlive.states import Position, Reason, State


async def main(database: str, on_torn: str, armed: str) -> Any:
    """Drive the second run until the failpoint."""
    async with bench.opened(database) as on:
        quiet = bench.Trace()
        quiet.hold("notify")
        agent = await on.agent(bench.booking(quiet))
        first = await on.claimed(thread="t", positioned=True)
        begun = bench.driven(agent, first)
        await quiet.until("notify")
        await bench.cut(begun)
        await on.settle(first, State.STOPPED, Reason.DISCONNECT, Position.TORN)
        agent = await on.agent(bench.booking(Traced()))
        rules = bench.JOB.but(on_torn=on_torn)
        second = await on.claimed({"steps": ["asked"]}, thread="t", rules=rules, positioned=True)
        os.write(sys.stdout.fileno(), f"{second.run.run_id}\n".encode())
        failpoints.arm_from(armed)
        return await bench.last_of(agent, second)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
