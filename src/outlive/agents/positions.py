"""Agents that keep what they have done, and can tell where they left a thread."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class Forgets(Protocol):
    """An agent that keeps something of a thread elsewhere than in the database of the runs."""

    async def forget(self, thread_id: str) -> None:
        """Delete what is kept of a thread, by its internal id; there may be nothing."""
        ...
