"""Agents that say what a test dictates to them, over a connection to the port in their input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import outlive
from outlive import policy


async def _dictated(context: outlive.Context) -> AsyncGenerator[Any, None]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(context.input), limit=2**26)
    try:
        writer.write(json.dumps([context.run.run_id, context.attempt]).encode() + b"\n")
        while line := await reader.readline():
            yield json.loads(line)
    finally:
        writer.close()


@outlive.agent("assistant", policy=policy.job())
async def assistant(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Go on whoever leaves."""
    async for value in _dictated(context):
        yield value


@outlive.agent("watched", policy=policy.chat(grace=0.2))
async def watched(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Stop soon after everybody has left."""
    async for value in _dictated(context):
        yield value


agents = [assistant, watched]
