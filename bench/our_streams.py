"""Outlive with an agent that falls silent after one chunk, and one that says much at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fastapi import FastAPI

import outlive

CHUNK = "x" * 16_384


@outlive.agent("silent", policy=outlive.job())
async def silent(context: outlive.Context) -> AsyncGenerator[object, None]:
    """One chunk, and then nothing until it is stopped."""
    yield 1
    await asyncio.Event().wait()


@outlive.agent("flood", policy=outlive.job())
async def flood(context: outlive.Context) -> AsyncGenerator[object, None]:
    """So many chunks of 16 KiB."""
    for _ in range(context.input):
        yield CHUNK


agents = [silent, flood]


def app(database: str) -> FastAPI:
    """Return the application over a migrated database."""
    service = outlive.Outlive(database, agents)
    application = FastAPI(lifespan=service.lifespan)
    application.include_router(outlive.router(service))
    return application
