"""A process that drives one run of the booking graph until it is killed; its argument is the database's URL.

It prints the run, arms a failpoint, and drives; each node prints its name when it runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from agents import bench
from outlive import failpoints


class Traced(bench.Trace):
    """Says on standard output which node ran: what a node did cannot be taken back by its death."""

    async def visit(self, node: str) -> None:
        """One line for each execution."""
        os.write(sys.stdout.fileno(), f"{node}\n".encode())
        await super().visit(node)


async def main(database: str, armed: str) -> Any:
    """Drive a run until the failpoint."""
    async with bench.opened(database) as on:
        agent = await on.agent(bench.booking(Traced()))
        context = await on.claimed()
        os.write(sys.stdout.fileno(), f"{context.run.run_id}\n".encode())
        failpoints.arm_from(armed)
        return await bench.last_of(agent, context)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
