"""A model agent with durable steps, and the model provider that it calls.

The agent does what a graph does: it goes on from its last checkpoint, calls the provider with a key that
every attempt derives alike, and records each step as done under the fence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlive import agents, errors
from outlive.model import Claim, Run
from outlive.policy import RunPolicy
from outlive.store import steps as store_steps
from outlive.store.script import Steps, script, statement
from outlive.testing.simulation.history import Checkpoint, Effect, History, Yielded

if TYPE_CHECKING:
    from outlive.testing.simulation.database import Database
    from outlive.testing.simulation.process import Process


@dataclass(slots=True)
class Provider:
    """Executes an effect once per key, and remembers every call."""

    history: History
    now: Any
    forgets: bool = False
    _done: set[str] = field(default_factory=set)

    def call(self, run: Run, step: int, epoch: int, process: str) -> None:
        """Execute, or replay if this key was executed before."""
        run_id, origin = run.run_id, run.origin
        key = f"{origin}/{step}"
        repeated = key in self._done and not self.forgets
        self._done.add(key)
        self.history.effects.append(Effect(self.now(), origin, step, epoch, process, repeated, run_id))


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
                yield self._chunk(context, [step, number, context.attempt])
            if wanted.get("fails_at") == step:
                raise ValueError("as the plan wants it")
            await self.do(context, step)
        yield agents.Outcome(output=wanted["steps"])

    def first_step(self, origin: str) -> int:
        """Where to go on."""
        return self._process.fleet.database.checkpoints.get(origin, 0)

    async def do(self, context: agents.Context, step: int) -> None:
        """Have the effect of a step executed, then record the step as done."""
        self._call(context, step)
        await asyncio.sleep(0.003)
        database = self._process.fleet.database
        await self._process.store.write(save(database, context.claim, context.run.origin, step))

    def _call(self, context: agents.Context, step: int) -> None:
        self._process.fleet.provider.call(context.run, step, context.attempt, self._process.name)

    def _chunk(self, context: agents.Context, data: list[int]) -> agents.Chunk:
        payload = json.dumps(data, separators=(",", ":"))
        given = Yielded(context.run.run_id, context.attempt, payload)
        self._process.fleet.history.yielded.append(given)
        return agents.Chunk(data=data)
