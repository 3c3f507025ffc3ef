"""Agents that keep what they have done, and can tell where they left a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from outlive.model import Claim, Run
from outlive.states import Position


@runtime_checkable
class Positions(Protocol):
    """An agent whose runs go on from where the one before left the thread."""

    async def position(self, thread_id: str) -> Position:
        """Tell where a thread stands, by its internal id, while nothing runs on it."""
        ...

    def answers(self, given: Any) -> bool:
        """Say whether an input answers a question that a run paused with."""
        ...

    def goes_on(self, given: Any) -> bool:
        """Say whether an input brings nothing new, and goes on with what is on the thread."""
        ...


@runtime_checkable
class Asks(Protocol):
    """An agent whose paused runs ask questions that can be told apart."""

    async def check_answer(self, thread_id: str, given: Any) -> None:
        """See whether an input answers what a thread asks; raises ``InvalidInput``, which names that."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A checkpoint of a thread: None is its newest one.  ``namespace`` is a subgraph's, or empty."""

    checkpoint_id: str | None = None
    namespace: str = ""

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {"checkpoint_id": self.checkpoint_id, "namespace": self.namespace}


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The state of a thread at a checkpoint, as JSON-able values.

    ``place`` is None if there is no checkpoint at all.  ``position`` is where the thread stood while this was
    its newest checkpoint; ``next`` names the nodes that would run then, ``interrupts`` the open questions.
    """

    place: Place | None
    parent: Place | None
    position: Position
    created_at: str | None
    next: tuple[str, ...]
    values: Any
    metadata: dict[str, Any]
    interrupts: list[Any]
    tasks: tuple[dict[str, Any], ...]

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "checkpoint": self.place.public() if self.place else None,
            "parent": self.parent.public() if self.parent else None,
            "position": self.position.value,
            "created_at": self.created_at,
            "next": list(self.next),
            "values": self.values,
            "metadata": self.metadata,
            "interrupts": self.interrupts,
            "tasks": list(self.tasks),
        }


@runtime_checkable
class Remembers(Protocol):
    """An agent whose threads have states that can be read and changed, by a thread's internal id."""

    async def moment(self, thread_id: str, place: Place) -> Moment:
        """Return the state at a checkpoint; raises ``NotFound``."""
        ...

    async def moments(self, thread_id: str, place: Place, limit: int) -> list[Moment]:
        """Return up to ``limit`` states, newest first, older than the place's checkpoint if it names one."""
        ...

    async def changed(
        self,
        claim: Claim,
        place: Place,
        values: Any,
        as_node: str | None,
        metadata: dict[str, Any],
    ) -> Place:
        """Write a state behind the place's, under the claim's fence; returns where it is.

        Raises ``NotFound``, ``InvalidInput``, ``Fenced``.
        """
        ...

    async def taken_back(self, run: Run) -> tuple[str, ...]:
        """Take back what was left part-way on the thread that this run holds; returns the runs that were.

        Their effects are undone.  Raises ``Fenced``.
        """
        ...


@runtime_checkable
class Forgets(Protocol):
    """An agent that keeps something of a thread elsewhere than in the database of the runs."""

    async def forget(self, thread_id: str) -> None:
        """Delete what is kept of a thread, by its internal id; there may be nothing."""
        ...
