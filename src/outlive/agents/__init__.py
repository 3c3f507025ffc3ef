"""What can be run: the Agent protocol, the context an attempt gets, and the registry.

Decides the seam between Outlive and somebody's code.  An agent is an object with a name, a declared policy
and a ``stream``; ``generator`` makes one of any async generator function, ``langgraph`` of a graph.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from outlive import artifacts, errors
from outlive.gathering import Gathering
from outlive.model import Claim, Run
from outlive.policy import RunPolicy
from outlive.states import State


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Something to record and to show: any value, with the mode it belongs to (None: the only one)."""

    data: Any
    mode: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A warning that belongs in the run's log."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained:
    """Yielded last instead of an outcome: the agent stopped at a safe point because it was draining."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the agent ended, yielded last: succeeded, or waiting for a human.

    Raises ``Misconfigured`` for any other state: an agent fails by raising, and is stopped by others.
    """

    output: Any = None
    state: State = State.SUCCEEDED

    def __post_init__(self) -> None:
        if self.state not in (State.SUCCEEDED, State.WAITING):
            raise errors.Misconfigured(
                f"An outcome is succeeded or waiting, not {self.state}.", hint="Raise an exception to fail."
            )


Yielded = Chunk | Note | Outcome | Drained


@dataclass(kw_only=True, slots=True)
class Context:
    """One attempt at one run, as the agent sees it.

    ``draining`` is set when this process wants the run back soon: stop at the next safe point, if there is
    one.  ``claim`` is the proof that a fenced write needs.
    """

    run: Run
    claim: Claim
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    files: artifacts.Attempt | None = None

    @property
    def input(self) -> Any:
        """The run's input as it was submitted: large integers, bytes and the like are themselves again."""
        return restored(self.run.input)

    @property
    def metadata(self) -> dict[str, Any]:
        """The run's metadata as it was submitted."""
        parsed: dict[str, Any] = restored(self.run.metadata)
        return parsed

    def artifact(self, name: str) -> Path:
        """Return where to write the file ``name``; it is the run's once this attempt's verdict is recorded.

        Raises ``InvalidInput`` for a name that is none, ``Misconfigured`` where no directory is set.
        """
        return artifacts.of(self.files, name)

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1 for the first executor, one more after each loss or hand-back.

        A loss raises the epoch once more than an attempt does: who was lost shall hold an old one at once.
        """
        return self.claim.epoch - self.run.losses


class Agent(Protocol):
    """Something that can be run, resumed and stopped."""

    @property
    def name(self) -> str:
        """The name that submits use."""
        ...

    @property
    def policy(self) -> RunPolicy:
        """The declared policy of this agent's runs."""
        ...

    @property
    def drains(self) -> bool:
        """Whether its stream watches ``context.draining`` and stops at a safe point by itself."""
        ...

    def stream(self, context: Context) -> AsyncGenerator[Yielded, None]:
        """Drive one attempt; the last thing yielded is an ``Outcome`` or ``Drained`` (none: succeeded)."""
        ...


@runtime_checkable
class Binds(Protocol):
    """An agent that keeps something of its own in the database of the runs."""

    async def bind(self, store: Any, happenings: Any) -> None:
        """Take the open store; called once, before any run."""
        ...


def gathering_of(agent: Agent) -> Gathering[Chunk] | None:
    """Return what gathers the tokens of one attempt of ``agent``; None: each is recorded by itself."""
    make = getattr(agent, "gathering", None)
    gathering: Gathering[Chunk] | None = make() if make is not None else None
    return gathering


class Registry:
    """The agents that a process knows, by name."""

    def __init__(self, agents: Iterable[Agent], *, hidden: Iterable[Agent] = ()) -> None:
        """Know ``agents``; ``hidden`` ones are driven like any, and nobody can submit to them."""
        self._agents: Mapping[str, Agent] = _by_name(agents)
        self._driven: Mapping[str, Agent] = _by_name((*self._agents.values(), *hidden))

    def __getitem__(self, name: str) -> Agent:
        """Return the agent; raises ``NotFound``."""
        try:
            return self._agents[name]
        except KeyError:
            known = ", ".join(sorted(self._agents)) or "none"
            raise errors.NotFound(
                f"There is no agent {name!r}.", hint=f"This service has: {known}.", field="agent"
            ) from None

    def driver(self, name: str) -> Agent:
        """Return the agent of a run that was claimed here."""
        return self._driven[name]

    @property
    def driven(self) -> tuple[str, ...]:
        """The names of every agent whose runs are driven here, sorted."""
        return tuple(sorted(self._driven))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, sorted."""
        return tuple(sorted(self._agents))


def restored(text: str) -> Any:
    """Read JSON of ours back: large integers, bytes and the like are themselves again."""
    return json.loads(text, object_hook=_untagged if '"$outlive"' in text else None)


def _untagged(read: dict[str, Any]) -> Any:
    match read:
        case {"$outlive": "int", "value": str(digits)}:
            return int(digits, 0)
        case {"$outlive": "float", "value": str(name)}:
            return float(name)
        case {"$outlive": "bytes", "value": str(encoded)}:
            return base64.b64decode(encoded)
        case {"$outlive": "dict", "value": list(pairs)}:
            return {_hashable(key): value for key, value in pairs}
    return read


def _hashable(key: Any) -> Any:
    """What may be a key, in place of what was a tuple or a frozen object: neither lists nor dicts may."""
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    return tuple((name, _hashable(part)) for name, part in key.items()) if isinstance(key, dict) else key


def _by_name(agents: Iterable[Agent]) -> Mapping[str, Agent]:
    named: dict[str, Agent] = {}
    for agent in agents:
        if agent.name in named:
            raise errors.Misconfigured(f"Two agents are named {agent.name!r}.", hint="Rename one of them.")
        if not isinstance(agent.policy, RunPolicy):
            raise errors.Misconfigured(
                f"Agent {agent.name!r} declares no policy.",
                hint="Pass policy=outlive.chat() or outlive.job(), or a RunPolicy of your own.",
            )
        named[agent.name] = agent
    return named
