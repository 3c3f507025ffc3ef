"""Makes an agent of any async generator function.

The function gets the run's ``Context`` and yields values; each becomes a chunk.  It may yield an ``Outcome``
last to give the run an output.  After a loss it starts again from the top: ``context.attempt`` tells.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from outlive import agents, errors
from outlive.policy import RunPolicy

Function = Callable[[agents.Context], AsyncGenerator[Any, None]]


class GeneratorAgent:
    """An agent whose ``stream`` is somebody's async generator."""

    def __init__(self, name: str, function: Function, *, policy: RunPolicy, drains: bool = False) -> None:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise errors.Misconfigured(
                f"The function of agent {name!r} is no async generator.",
                hint="Write async def, and yield what the run has to show.",
            )
        self.name = name
        self.policy = policy
        self.drains = drains
        self._function = function

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Yield each value as a chunk; outlive's own ``Chunk``, ``Note`` and so on pass as they are."""
        made: Any = self._function(context)
        if not hasattr(made, "__aiter__"):  # a plain function may return one, so it could not be told before
            raise TypeError(f"agent {self.name!r} is no async generator: it returned {type(made).__name__}")
        async with aclosing(made) as values:
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
