"""A process that sends messages to one thread at once, as soon as it is told to, and waits for their ends.

Its arguments are the database's URL, how many, and what they do while the thread is busy.  It says "ready",
waits for a line, and says how many were taken.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing

import outlive
from agents import bench
from outlive import policy
from outlive.agents import langgraph


def say(line: str) -> None:
    """A line for the test."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def main(database: str, count: str, on_busy: str) -> None:
    """Submit, and wait for the ends."""
    agent = langgraph.LangGraphAgent(
        "graph", bench.chain(bench.Trace(), "one", "two").compile(), policy=policy.job(on_busy=on_busy)
    )
    async with outlive.Outlive(database, [agent]) as service, asyncio.timeout(2 * bench.WITHIN):
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        tries = [service.submit("graph", {"steps": []}, thread="t") for _ in range(int(count))]
        made = await asyncio.gather(*tries, return_exceptions=True)
        taken = [one for one in made if not isinstance(one, BaseException)]
        refused = [one for one in made if isinstance(one, BaseException)]
        assert all(isinstance(one, outlive.errors.ThreadBusy) for one in refused), refused
        for one in taken:
            async with aclosing(service.follow(one.run.run_id)) as events:
                async for _ in events:
                    pass
        say(str(len(taken)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
