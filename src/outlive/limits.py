"""How much of the service one principal, or one agent, may use.

Decides what can be limited and how a refusal is worded; ``store.quotas`` counts, inside the transaction that
makes the run, so that the bounds hold over every process on the same database.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from outlive import errors


class Kind(StrEnum):
    """What a limit bounds."""

    RUNNING = "running"
    QUEUED = "queued"
    PER_MINUTE = "per_minute"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds for one principal or one agent; None is no bound.

    ``running`` bounds the runs that are not over.  A queued one counts, since a worker may claim it at any
    moment: so there are never more than ``running`` at work, whoever claims what.  ``queued`` bounds those
    that wait.  ``per_minute`` bounds the runs made in any 60 seconds.  ``request_bytes`` bounds the body of
    one request.

    Raises ``Misconfigured`` for a bound below 1.
    """

    running: int | None = None
    queued: int | None = None
    per_minute: int | None = None
    request_bytes: int | None = None

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            bound = getattr(self, each.name)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 1):
                raise errors.Misconfigured(f"The limit {each.name} is a whole number from 1, not {bound!r}.")

    @property
    def counted(self) -> bool:
        """True if runs have to be counted for these."""
        return not self.running is self.queued is self.per_minute is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The limits of one ``subject``, whose name tells principals from agents."""

    subject: str
    limits: Limits

    @property
    def whose(self) -> str:
        """Whose limit it is, in words that name nobody to anybody else."""
        return "this agent's" if self.subject.startswith("agent/") else "your"


def of_principal(tenant: str, principal: str, limits: Limits | None) -> tuple[Quota, ...]:
    """Return what a principal's runs are counted by; nothing if nothing is bounded."""
    return _quota(f"principal/{tenant}/{principal}", limits)


def of_agent(agent: str, limits: Limits | None) -> tuple[Quota, ...]:
    """Return what an agent's runs are counted by, whoever makes them."""
    return _quota(f"agent/{agent}", limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByWhom:
    """The limits of a service: those of every principal alike, and those of agents by name."""

    principals: Limits | None = None
    agents: Mapping[str, Limits] = field(default_factory=dict)

    def quotas(self, tenant: str, principal: str, agent: str) -> tuple[Quota, ...]:
        """Return what a run is counted by.  Principals come first: see ``store.quotas``."""
        if self.principals is None and not self.agents:
            return ()
        return (
            *of_principal(tenant, principal, self.principals),
            *of_agent(agent, self.agents.get(agent)),
        )

    def request_bytes(self, agent: str | None, otherwise: int) -> int:
        """Return how large a request may be: of any agent, or the lesser bound of ``agent``."""
        given = (self.principals, self.agents.get(agent) if agent is not None else None)
        bounds = [limits.request_bytes for limits in given if limits and limits.request_bytes]
        return min([otherwise, *bounds])


def _quota(subject: str, limits: Limits | None) -> tuple[Quota, ...]:
    return (Quota(subject=subject, limits=limits),) if limits is not None and limits.counted else ()


def refusal(quota: Quota, kind: Kind, bound: int, retry_after: int) -> errors.LimitReached:
    """Return the error that says which bound was met, and after how many seconds to ask again."""
    words = {
        Kind.RUNNING: f"{bound} runs that are not over",
        Kind.QUEUED: f"{bound} runs that wait",
        Kind.PER_MINUTE: f"{bound} runs made within a minute",
    }
    return errors.LimitReached(f"That is {quota.whose} limit: {words[kind]}.", retry_after=retry_after)
