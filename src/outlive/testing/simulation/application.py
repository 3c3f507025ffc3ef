"""Simulates an application's own agents: the same bad days, with its code in the place of the model's.

Decides what clients ask of somebody's agents and how a broken promise is told.  It knows nothing of what the
agents do: what their effects should come to is for ``check`` to say.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from outlive import agents, encoding, errors
from outlive.agents import generator
from outlive.model import Run
from outlive.policy import RunPolicy
from outlive.testing.simulation import timeline
from outlive.testing.simulation.cast import Asked, Cast
from outlive.testing.simulation.history import History, Yielded
from outlive.testing.simulation.plan import Op
from outlive.testing.simulation.process import Process
from outlive.testing.simulation.shrink import as_python, shrink
from outlive.testing.simulation.simulate import Result, simulate

Make = Callable[[], agents.Agent]


@dataclass(kw_only=True, slots=True)
class Report:
    """What the seeds came to, if no promise was broken.  ``simulated`` is in seconds.

    ``ended`` counts runs by the state in which they ended, ``faults`` what went wrong by its kind, and
    ``losses`` how often a run lost its executor.
    """

    seeds: int = 0
    simulated: float = 0.0
    losses: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def _add(self, history: History) -> None:
        self.seeds += 1
        self.simulated += history.ended_at
        self.losses += sum(run["losses"] for run in history.final_runs)
        self.ended.update(run["state"] for run in history.final_runs)
        self.faults.update(span.fault for span in history.faults)


class PromiseBroken(AssertionError):
    """A seed broke a promise.  The text shows which, the evidence, the timeline, and the smallest plan found.

    ``seed`` replays it, and ``result`` is what the smallest plan came to.
    """

    def __init__(self, seed: int, result: Result) -> None:
        lines = [str(line) for line in timeline.timeline(result)]
        parts = (
            f"seed {seed} breaks a promise; replay it with seeds=[{seed}]",
            timeline.explain(result),
            "\n".join(("everything that happened in the smallest plan found:", *lines)),
            as_python(result.plan),
        )
        super().__init__("\n\n".join(parts))
        self.seed = seed
        self.result = result


def simulate_agent(
    agent: agents.Agent | generator.Function | Make,
    *,
    policy: RunPolicy | None = None,
    inputs: Sequence[Any] = (None,),
    answer: Any = None,
    seeds: int | Iterable[int] = 100,
    begin: Callable[[], object] = tuple,
    check: Callable[[Sequence[Run]], object] | None = None,
) -> Report:
    """Have three processes serve ``agent`` on bad days, one day per seed, and check every promise.

    ``agent`` is an async generator function (it needs a ``policy``), an agent, or a function that makes an
    agent, called once for each simulated process; a LangGraph agent has to be made that way.  Clients ask one
    of ``inputs`` each, in turn, and answer a run that waits with ``answer``, if there is one.

    ``begin`` is called before each seed: make the outside world new there.  ``check`` is called after it with
    every run as it ended, and raises ``AssertionError`` if the outside world is not as it should be: that
    counts as a broken promise.  ``seeds`` is how many (from 0 on), or which.

    Time is virtual: an agent waits by ``asyncio.sleep`` and what is built on the loop, not by clocks, threads
    or sockets.  Raises ``PromiseBroken``, or ``Misconfigured`` if the agent cannot be simulated as it is.
    """
    cast = _cast(_maker(agent, policy), inputs, answer, begin, check)
    report = Report()
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        result = simulate(seed, cast=cast)
        if result.violations:
            raise PromiseBroken(seed, shrink(result.plan, cast=cast, most=SHRINKING))
        report._add(result.history)
    return report


SHRINKING = 60
"""Plans that are tried to make a failing one smaller."""


def _maker(agent: Any, policy: RunPolicy | None) -> Make:
    """Return what makes the agent of one process; raises ``Misconfigured``."""
    if inspect.isasyncgenfunction(agent):
        if policy is None:
            raise errors.Misconfigured(
                f"{agent.__name__} has no policy.", hint="Pass policy=outlive.chat() or outlive.job()."
            )
        declared, function = policy, agent
        return lambda: generator.GeneratorAgent(function.__name__, function, policy=declared)
    if policy is not None:
        raise errors.Misconfigured("An agent has a policy of its own.", hint="Leave policy= out.")
    if not hasattr(agent, "stream"):
        made: Make = agent
        return made
    if isinstance(agent, agents.Binds):
        raise errors.Misconfigured(
            "This agent is bound to one store, and each simulated process has its own.",
            hint="Pass a function that makes the agent.",
        )
    return lambda: agent


def _cast(
    make: Make,
    inputs: Sequence[Any],
    answer: Any,
    begin: Callable[[], object],
    check: Callable[[Sequence[Run]], object] | None,
) -> Cast:
    first = make()

    def asked(op: Op) -> Asked:
        number = int("".join(filter(str.isdigit, op.key)))
        return Asked(agent=first.name, input=inputs[number % len(inputs)], thread=op.thread, key=op.key)

    def answered(op: Op, thread: str) -> Asked | None:
        if answer is None:
            return None
        return Asked(agent=first.name, input=answer, thread=thread, key=f"{op.key}-answer")

    return Cast(
        policies={first.name: first.policy},
        agents=lambda process: [Watched(make(), process)],
        asked=asked,
        answer=answered,
        begin=begin,
        check=check,
    )


class Watched:
    """Somebody's agent in one simulated process; what it yields is noted before it is handed on."""

    def __init__(self, agent: agents.Agent, process: Process) -> None:
        self.name = agent.name
        self.policy = agent.policy
        self.drains = agent.drains
        self._agent = agent
        self._history = process.fleet.history

    async def bind(self, store: Any, happenings: Any) -> None:
        """Hand the store on, if the agent wants one."""
        if isinstance(self._agent, agents.Binds):
            await self._agent.bind(store, happenings)

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Drive one attempt."""
        async with aclosing(self._agent.stream(context)) as items:
            async for item in items:
                if isinstance(item, agents.Chunk):
                    payload = encoding.encode(item.data).text
                    self._history.yielded.append(Yielded(context.run.run_id, context.claim.epoch, payload))
                yield item
