"""Who plays in a simulation: the agents that processes serve, and what a client's intention says to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive import policy
from outlive.agents import Agent
from outlive.model import Run
from outlive.testing.simulation.agent import StepsAgent

if TYPE_CHECKING:
    from outlive.testing.simulation.plan import Op
    from outlive.testing.simulation.process import Process


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a submit says."""

    agent: str
    input: Any
    thread: str | None
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cast:
    """The agents, and how an intention becomes a submit.

    ``answer`` says how a person answers a run that waits, on the thread of that name; None: nobody does.
    ``begin`` is called before each simulation, and ``check`` after it, with every run as it ended: it raises
    ``AssertionError`` if something is not as it should be.
    """

    policies: Mapping[str, policy.RunPolicy]
    agents: Callable[[Process], Iterable[Agent]]
    asked: Callable[[Op], Asked]
    answer: Callable[[Op, str], Asked | None]
    begin: Callable[[], object] = tuple
    check: Callable[[Sequence[Run]], object] | None = None


POLICIES: Mapping[str, policy.RunPolicy] = {
    "chat": policy.chat(grace=1.0, stop_deadline=1.0),
    "curt": policy.chat(grace=0.0, stop_deadline=1.0, on_busy="reject"),
    "job": policy.job(grace=1.0, max_losses=9, stop_deadline=1.0, on_busy="enqueue"),
    "fragile": policy.job(grace=1.0, recovery="stop", stop_deadline=1.0),
    "short": policy.job(grace=1.0, run_timeout=1.5, stop_deadline=1.0, on_busy="enqueue"),
    "hasty": policy.job(grace=1.0, max_losses=9, stop_deadline=1.0, on_busy="interrupt"),
    "once": policy.job(grace=1.0, max_losses=1, stop_deadline=1.0, on_busy="enqueue"),
}
_PLAIN: Mapping[str, Any] = {
    "warm": 0.0,
    "stubborn": 0.0,
    "steps": 2,
    "pace": 0.4,
    "chunks": 1,
    "fails_at": None,
    "waits": False,
    "yields": False,
}


def _agents(process: Process) -> Iterable[Agent]:
    return [StepsAgent(name, declared, process) for name, declared in POLICIES.items()]


def _asked(op: Op) -> Asked:
    """One intent, one body: whoever shares a key means the same, unless it strays."""
    if op.key.startswith("shared"):
        body = {**_PLAIN, "fails_at": 0 if op.strays else None}
        return Asked(agent="job", input=body, thread=None if op.key == "shared0" else "t0", key=op.key)
    body = {name: getattr(op, name) for name in _PLAIN}
    return Asked(agent=op.agent, input=body, thread=op.thread, key=op.key)


def _answer(op: Op, thread: str) -> Asked:
    body = {**_PLAIN, "steps": 1}
    return Asked(agent=op.agent, input=body, thread=thread, key=f"{op.key}-answer")


MODEL = Cast(policies=POLICIES, agents=_agents, asked=_asked, answer=_answer)
"""The model agents, of every policy."""
