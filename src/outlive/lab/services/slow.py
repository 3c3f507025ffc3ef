"""An agent that falls silent for longer than an impatient proxy waits, served by Outlive."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

from fastapi import FastAPI

import outlive

#: An URL as Outlive takes it.
DATABASE_VARIABLE = "OUTLIVE_LAB_URL"

#: Seconds without a word in the middle of the run.
SILENCE = 4.5
CHUNKS = 6

#: Seconds for which nobody may watch: long enough for a client that comes back at once.
GRACE = 1.0


@outlive.agent("slow", policy=outlive.chat(grace=GRACE))
async def slow(context: outlive.Context) -> AsyncGenerator[int, None]:
    """Half of its chunks, the silence, the rest."""
    for number in range(CHUNKS):
        if number == CHUNKS // 2:
            await asyncio.sleep(SILENCE)
        await asyncio.sleep(0.1)
        yield number


_outlive = outlive.Outlive(os.environ[DATABASE_VARIABLE], [slow])
app = FastAPI(lifespan=_outlive.lifespan)
app.include_router(outlive.router(_outlive))
