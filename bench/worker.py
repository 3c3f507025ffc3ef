"""A process that drives runs: ``python -m bench.worker DATABASE LEASE token|no-token``; says ``working``."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import outlive
from bench import server
from outlive import agents, lease
from outlive.agents import generator


async def _stamps(context: agents.Context) -> AsyncGenerator[Any, None]:
    """Yield the time, which every process of a machine reads off the same clock, now and then."""
    asked = context.input
    for _ in range(asked["count"]):
        await asyncio.sleep(random.uniform(*asked["pause"]))
        yield {"at": time.monotonic(), "attempt": context.attempt}


def stamps() -> outlive.agents.Agent:
    """The agent: its input says how many times it yields, and how long it pauses before each."""
    return generator.GeneratorAgent("stamps", _stamps, policy=outlive.job())


def service(database: str, *, seconds: float, slots: int, token: bool = True) -> outlive.Outlive:
    """Return a service with leases of so many seconds; without ``token`` nothing proves a worker's death."""
    timing = lease.Timing(lease=seconds, renew_every=min(0.25, seconds / 8), margin=min(1.0, seconds / 4))
    made = outlive.Outlive(database, [stamps()], slots=slots, timing=timing)
    if not token:
        made.store.dead = _nothing_proven  # type: ignore[method-assign]
    return made


async def _nothing_proven(workers: object) -> set[str]:
    return set()


async def _work(database: str, seconds: float, token: bool) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with service(database, seconds=seconds, slots=8, token=token):
        sys.stdout.write("working\n")
        sys.stdout.flush()
        await told.wait()


def main() -> None:
    """Work until told to stop."""
    _, database, seconds, token = sys.argv
    server.end_with_parent()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_work(database, float(seconds), token == "token"))


if __name__ == "__main__":
    main()
