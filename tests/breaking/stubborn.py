"""Agents that will not end, served by processes that must."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any, NoReturn

import outlive
from outlive import policy

JOB = policy.job(stop_deadline=0.2)


def _here() -> None:
    """Tell the test that this is where the agent stays."""
    sys.stderr.write("HERE\n")
    sys.stderr.flush()


@outlive.agent("swallows", policy=JOB)
async def swallows(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Swallow every cancellation."""
    yield "begun"
    _here()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@outlive.agent("waits", policy=JOB)
async def waits(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Sit in a thread of the pool, as synchronous nodes and tools do."""
    yield "begun"
    _here()
    await asyncio.to_thread(threading.Event().wait)


@outlive.agent("leaves_a_thread", policy=JOB)
async def leaves_a_thread(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Leave a thread behind that the interpreter would wait for."""
    threading.Thread(target=threading.Event().wait).start()
    yield "begun"
    _here()
    await asyncio.Event().wait()


@outlive.agent("blocks", policy=JOB)
async def blocks(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Block the event loop for ever."""
    _here()
    threading.Event().wait()
    yield "never"


@outlive.agent("exits", policy=JOB)
async def exits(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Start a task that calls ``sys.exit``, and go on."""

    async def leave() -> NoReturn:
        sys.exit(7)

    leaving = asyncio.create_task(leave())
    await asyncio.wait({leaving})
    yield "still here"


agents = [swallows, waits, leaves_a_thread, blocks, exits]
