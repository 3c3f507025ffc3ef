"""A model agent with durable steps.

The agent does what a graph does: it goes on from its last checkpoint, calls the provider with a key that
every attempt derives alike, and records each step as done under the fence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from outlive import agents, errors
from outlive.model import Claim
from outlive.policy import RunPolicy
from outlive.states import State
from outlive.store import steps as store_steps
from outlive.store.script import Steps, script, statement
from outlive.testing.simulation.history import Checkpoint, Yielded

if TYPE_CHECKING:
    from outlive.testing.simulation.database import Database
    from outlive.testing.simulation.process import Process

CALLS_AGAIN = 0.2
"""Virtual seconds before an agent repeats a call that was not answered."""


@script()
def save(database: Database, holder: Claim, origin: str, step: int) -> Steps[None]:
    """Record a step as done if the claim stands; raises ``Fenced``."""
    rows = yield statement(
        "check_fence", run_id=holder.run_id, epoch=holder.epoch, claim_token=holder.claim_token
    )
    if not rows:
        raise errors.Fenced(store_steps.LATE, run_id=holder.run_id)
    database.checkpoints[origin] = step + 1
    database.history.checkpoints.append(
        Checkpoint(database.loop.time(), origin, step, holder.epoch, holder.run_id)
    )


class StepsAgent:
    """Takes ``input["warm"]`` seconds to begin, then runs ``input["steps"]`` steps.

    Each lasts ``input["pace"]`` seconds and yields ``input["chunks"]`` chunks.
    """

    drains = True

    def __init__(self, name: str, policy: RunPolicy, process: Process) -> None:
        self.name = name
        self.policy = policy
        self._process = process

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Drive one attempt from the last checkpoint."""
        try:
            async with aclosing(self._steps(context)) as items:
                async for item in items:
                    yield item
        except asyncio.CancelledError:
            if context.input["stubborn"]:
                await self._refuse_to_end(context)
            if context.input["yields"]:
                yield agents.Chunk(data="a last word that nobody may hear")
            raise

    async def _refuse_to_end(self, context: agents.Context) -> None:
        """Write the last step once more, or fail, though the run has most likely ended without this agent."""
        await asyncio.sleep(context.input["stubborn"])
        database, origin = self._process.fleet.database, context.run.origin
        last = self.first_step(origin) - 1
        if last < 0:
            raise ValueError("as the plan wants it")
        await self._process.store.write(save(database, context.claim, origin, last))

    async def _steps(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        origin, wanted = context.run.origin, context.input
        await asyncio.sleep(0.001 + wanted["warm"])
        for step in range(self.first_step(origin), wanted["steps"]):
            if context.draining.is_set():
                yield agents.Drained()
                return
            await asyncio.sleep(wanted["pace"])
            for number in range(wanted["chunks"]):
                yield self._chunk(context, [step, number, context.claim.epoch])
            if wanted.get("fails_at") == step:
                raise ValueError("as the plan wants it")
            await self.do(context, step)
        state = State.WAITING if wanted["waits"] else State.SUCCEEDED
        yield agents.Outcome(output=wanted["steps"], state=state)

    def first_step(self, origin: str) -> int:
        """Where to go on."""
        return self._process.fleet.database.checkpoints.get(origin, 0)

    async def do(self, context: agents.Context, step: int) -> None:
        """Have the effect of a step executed, then record the step as done.

        An effect ledger belongs here.  What is here is the least that is safe: every attempt derives the same
        key, and a call of which nothing was heard is repeated with that key.
        """
        while not await self._call(context, step):  # noqa: ASYNC110 - a provider sends no events
            await asyncio.sleep(CALLS_AGAIN)
        database = self._process.fleet.database
        await self._process.store.write(save(database, context.claim, context.run.origin, step))

    async def _call(self, context: agents.Context, step: int) -> bool:
        provider, process = self._process.fleet.provider, self._process.name
        return await provider.call(context.run, step, context.claim.epoch, process)

    def _chunk(self, context: agents.Context, data: list[int]) -> agents.Chunk:
        payload = json.dumps(data, separators=(",", ":"))
        given = Yielded(context.run.run_id, context.claim.epoch, payload)
        self._process.fleet.history.yielded.append(given)
        return agents.Chunk(data=data)
