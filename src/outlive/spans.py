"""What lasts: the stretches of work that somebody may want to trace, each told as it begins and as it ends.

Decides what they are.  Whoever traces is asked once per stretch, in the task that does the work and before
it begins; nobody has to.  What happens within a stretch is told as every happening is (see ``signals``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitting:
    """A submit, until it is on record.  ``traceparent`` is what its request said, None if nothing."""

    agent: str
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempting:
    """An attempt, from its claim until its verdict is on record, or it has given the run up."""

    run_id: str
    thread_id: str
    epoch: int
    agent: str
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Effecting:
    """An effect that an agent asks for, whatever the ledger has it come to."""

    name: str
    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Notifying:
    """One try to deliver a notification."""

    notification_id: str
    run_id: str
    attempts: int
    traceparent: str | None = None


Stretch = Submitting | Attempting | Effecting | Notifying


class Open(Protocol):
    """A stretch that is being traced."""

    @property
    def traceparent(self) -> str | None:
        """What to keep so that another process goes on from here; None: nobody traces it."""
        ...

    def say(self, **words: str | float | None) -> None:
        """Add what has become known; None is nothing."""
        ...

    def failed(self, detail: str | None) -> None:
        """Add what failed, with its text, which may hold anything: for who has asked for such texts."""
        ...

    def here(self) -> AbstractContextManager[None]:
        """Make it the one that this thread works in, for the length of a ``with`` block."""
        ...


class Tracing(Protocol):
    """Whoever traces."""

    def over(self, stretch: Stretch) -> AbstractContextManager[Open]:
        """Trace a stretch from now until the end of the ``with`` block."""
        ...


class _Untraced:
    traceparent: str | None = None

    def say(self, **words: str | float | None) -> None:
        pass

    def failed(self, detail: str | None) -> None:
        pass

    def here(self) -> AbstractContextManager[None]:
        return nullcontext()


UNTRACED: Open = _Untraced()
CURRENT: ContextVar[Open] = ContextVar("outlive_span", default=UNTRACED)
"""The stretch that this code is a part of."""
NOBODY: AbstractContextManager[Open] = nullcontext(UNTRACED)
