"""Makes an agent of any async generator function.

The function gets the run's ``Context`` and yields values; each becomes a chunk.  It may yield an ``Outcome``
last to give the run an output.  After a loss it starts again from the top: ``context.attempt`` tells.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from outlive import agents
from outlive.policy import RunPolicy

Function = Callable[[agents.Context], AsyncGenerator[Any, None]]


class GeneratorAgent:
    """An agent whose ``stream`` is somebody's async generator."""

    def __init__(self, name: str, function: Function, *, policy: RunPolicy, drains: bool = False) -> None:
        self.name = name
        self.policy = policy
        self.drains = drains
        self._function = function

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Yield each value as a chunk; outlive's own ``Chunk``, ``Note`` and so on pass as they are."""
        async with aclosing(self._function(context)) as values:
            async for value in values:
                # By its real type: asking a lazy proxy what it claims to be runs code that may raise.
                if issubclass(type(value), agents.Yielded):
                    yield value
                else:
                    yield agents.Chunk(data=value)


def agent(name: str, *, policy: RunPolicy, drains: bool = False) -> Callable[[Function], GeneratorAgent]:
    """Decorate an async generator function to make it an agent.

    ``drains``: the function watches ``context.draining`` and yields ``Drained`` at a safe point.
    """

    def decorate(function: Function) -> GeneratorAgent:
        return GeneratorAgent(name, function, policy=policy, drains=drains)

    return decorate
