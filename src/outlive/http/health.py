"""Whether the process lives, and whether it should be sent requests: for whoever watches it.

Decides what ready means: not starting, not ending, and the database answers.  Nobody is authenticated here,
so nothing is said that is not meant for everybody, and asking often costs nothing: one look serves all who
ask within a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Response

from outlive import errors
from outlive.http import body, problem, sse
from outlive.runtime import Outlive
from outlive.store import reads

LOOKS_EVERY = 1.0
"""Seconds for which a look at the database is good."""
PATIENCE = 2.0
"""Seconds that the database may take."""
DROPS = 4
PAUSE = 0.25
"""Seconds between two pieces of what ``/health/drip`` sends."""


def routes(outlive: Outlive) -> APIRouter:
    """Return a router with ``/health``, ``/ready`` and ``/health/drip``."""
    made = APIRouter(route_class=problem.ProblemRoute)
    handlers = _Health(outlive)
    problem.readable(made, "/health", handlers.health, public=False)
    problem.readable(made, "/ready", handlers.ready, public=False)
    problem.readable(made, "/health/drip", handlers.drip, public=False)
    return made


class _Health:
    def __init__(self, outlive: Outlive) -> None:
        self._outlive = outlive
        self._looked = -LOOKS_EVERY
        self._answers = False
        self._one_looks = asyncio.Lock()

    async def health(self) -> Response:
        """Say that the process lives."""
        return body.Json({"status": "ok"})

    async def ready(self) -> Response:
        """Say whether runs are accepted now."""
        if not self._outlive.ready:
            raise errors.NotReady
        async with self._one_looks:
            if time.monotonic() - self._looked >= LOOKS_EVERY:
                self._answers = await self._look()
                self._looked = time.monotonic()
        if not self._answers:
            raise errors.StoreUnavailable
        return body.Json({"status": "ready", "agents": list(self._outlive.registry.names)})

    async def drip(self) -> Response:
        """Send a few pieces with pauses between them: who gets them together has a proxy that buffers."""
        return sse.EventStream(_drops(), shutdown=self._outlive.shutdown)

    async def _look(self) -> bool:
        try:
            await self._outlive.store.read(reads.migrations(), budget=PATIENCE)
        except errors.OutliveError:
            return False
        return True


async def _drops() -> AsyncGenerator[bytes, None]:
    for number in range(DROPS):
        yield sse.frame(data=str(number))
        await asyncio.sleep(PAUSE if number < DROPS - 1 else 0)
