"""Gathers a model's tokens before they are recorded: joined for as long as a commit takes, or as snapshots.

Decides which tokens become one event, and when.  Pure: time is what its caller says it is.  Does not decide
what a token is, or how two are joined; that is an agent's to say (``Joins``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

C = TypeVar("C")

MOST_JOINED = 256
"""Tokens that wait together at most: what they hold is not counted before they are recorded."""


class Tokens(StrEnum):
    """How a model's tokens are recorded.

    ``single``: an event for each.  ``chunked``: those of one message that come while others are committed, as
    one.  ``snapshots``: each message as far as it is, now and then, and whole at its end.
    """

    SINGLE = "single"
    CHUNKED = "chunked"
    SNAPSHOTS = "snapshots"


class Joins(Protocol[C]):
    """What an agent knows about its tokens."""

    def key(self, chunk: C) -> Hashable | None:
        """Return what the tokens of one message have in common; None: it is no token."""
        ...

    def last(self, chunk: C) -> bool:
        """Say whether nothing of its message follows."""
        ...

    def join(self, chunks: Sequence[C]) -> C:
        """Return what tokens of one message are together, in their order.  May raise anything."""
        ...

    def snapshot(self, whole: C, *, complete: bool) -> C:
        """Return the item that shows a message so far."""
        ...


class Gathering(Protocol[C]):
    """What waits between an agent and the log.  Each method returns what is to be recorded now, in order."""

    @property
    def waiting(self) -> bool:
        """Whether anything waits."""
        ...

    def feed(self, chunk: C, now: float) -> list[C]:
        """Take the agent's next item."""
        ...

    def due(self, now: float) -> list[C]:
        """Take what has waited long enough."""
        ...

    def rest(self, *, complete: bool) -> list[C]:
        """Take everything that waits; ``complete`` if the agent has come to its own end."""
        ...


@dataclass(eq=False)
class Chunked(Generic[C]):
    """Joins the tokens of one message that come one after the other before they can be committed."""

    joins: Joins[C]
    _key: Hashable = None
    _parts: list[C] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._parts)

    def feed(self, chunk: C, now: float) -> list[C]:
        """Take the agent's next item: a token waits, anything else brings the tokens before it along."""
        key = self.joins.key(chunk)
        if key is None:
            return [*self.due(now), chunk]
        ready = self.due(now) if key != self._key or len(self._parts) >= MOST_JOINED else []
        self._key = key
        self._parts.append(chunk)
        return ready

    def due(self, now: float) -> list[C]:
        """Take what waits: it has come to a commit."""
        del now
        parts, self._parts = self._parts, []
        if len(parts) < 2:
            return parts
        try:
            return [self.joins.join(parts)]
        except Exception:  # somebody's tokens that cannot be joined are recorded as they are
            return parts

    def rest(self, *, complete: bool) -> list[C]:
        """Take everything that waits."""
        del complete
        return self.due(0.0)


@dataclass(eq=False, slots=True)
class _Message(Generic[C]):
    """One message as far as it is: what was shown of it, and what came since."""

    whole: C | None = None
    parts: list[C] = field(default_factory=list)
    shown_at: float | None = None


@dataclass(eq=False)
class Snapshots(Generic[C]):
    """Shows each message as far as it is, every ``every`` seconds at most, and whole at its end."""

    joins: Joins[C]
    every: float
    _messages: dict[Hashable, _Message[C]] = field(default_factory=dict)
    _singly: set[Hashable] = field(default_factory=set)

    @property
    def waiting(self) -> bool:
        """Whether anything waits."""
        return any(message.parts for message in self._messages.values())

    def feed(self, chunk: C, now: float) -> list[C]:
        """Take the agent's next item; one that is no token comes after what the tokens before it made."""
        key = self.joins.key(chunk)
        if key is None:
            return [*self._all(now), chunk]
        if key in self._singly:
            return [chunk]
        message = self._messages.setdefault(key, _Message())
        message.parts.append(chunk)
        if self.joins.last(chunk):
            return self._show(key, now, complete=True)
        return []

    def due(self, now: float) -> list[C]:
        """Take what has waited for ``every`` seconds, or was never shown."""
        late = [
            key
            for key, message in self._messages.items()
            if message.parts and (message.shown_at is None or now - message.shown_at >= self.every)
        ]
        return [shown for key in late for shown in self._show(key, now)]

    def rest(self, *, complete: bool) -> list[C]:
        """Take everything that waits; a message that was cut off is not called complete."""
        if not complete:
            return self._all(0.0)
        return [shown for key in list(self._messages) for shown in self._show(key, 0.0, complete=True)]

    def _all(self, now: float) -> list[C]:
        waiting = [key for key, message in self._messages.items() if message.parts]
        return [shown for key in waiting for shown in self._show(key, now)]

    def _show(self, key: Hashable, now: float, *, complete: bool = False) -> list[C]:
        message = self._messages[key]
        parts = [message.whole, *message.parts] if message.whole is not None else message.parts
        try:
            whole = self.joins.join(parts) if len(parts) > 1 else parts[0]
            shown = self.joins.snapshot(whole, complete=complete)
        except Exception:  # somebody's tokens that cannot be joined are recorded as they are
            del self._messages[key]
            self._singly.add(key)
            return message.parts
        message.whole, message.parts, message.shown_at = whole, [], now
        if complete:
            del self._messages[key]
        return [shown]
