"""A process that sends a message which displaces the run of its thread, and is killed at a failpoint of that.

Its arguments are the database's URL, what the message's policy says of a busy thread, and the failpoint.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import bench
from outlive import failpoints, seams
from outlive.model import Submission
from outlive.store import moves


async def main(database: str, on_busy: str, armed: str) -> Any:
    """Send the message until the failpoint."""
    async with bench.opened(database) as on:
        message = Submission(
            run_id=seams.new_id(),
            tenant="",
            agent="graph",
            input='{"steps": ["asked"]}',
            fingerprint="",
            policy=bench.JOB.but(on_busy=on_busy),
            thread="t",
            positioned=True,
        )
        failpoints.arm_from(armed)
        return await on.store.write(moves.submit(message, None))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
