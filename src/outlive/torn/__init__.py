"""Threads that were left part-way and that nobody owns: found, reported, and seen to if somebody says so.

``own`` looks into a database of ours, whose runs tell; ``looking`` into any checkpointer of
LangGraph's, where nothing tells but the checkpoints and, about what was executed, the provider.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Apply(StrEnum):
    """What is to be done about a torn thread.

    ``resume``: what is left of it runs.  ``rollback``: a checkpoint from before it becomes the newest one.
    ``compensate``: what it executed is undone first.
    """

    RESUME = "resume"
    ROLLBACK = "rollback"
    COMPENSATE = "compensate"


class Provider(StrEnum):
    """What the provider says of an effect."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not executed"
    UNTOLD = "did not tell"


class Record(StrEnum):
    """What the checkpoints say of an effect's node.

    ``left``: it has yet to run, or to run to its end.  ``ran``: it has run since the thread last stood clean.
    """

    LEFT = "left"
    RAN = "ran"
    ABSENT = "not in the checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """An effect of a thread: what its provider says of it, and what the checkpoints do."""

    name: str
    key: str
    provider: Provider
    record: Record
    provider_key: str = ""
    inputs: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    why: str = ""

    @property
    def said(self) -> str:
        """Both in one sentence, for people."""
        if self.provider is Provider.UNTOLD:
            return f"its provider did not tell: {self.why}"
        executed = self.provider is Provider.EXECUTED
        match self.record:
            case Record.LEFT if executed:
                return "executed at the provider, not in the checkpoint"
            case Record.RAN if not executed:
                return "in the checkpoint, not executed at the provider"
            case Record.RAN:
                return "executed, and in the checkpoint"
            case _:
                return self.provider.value

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "effect": self.name,
            "key": self.key,
            "provider": self.provider.value,
            "checkpoint": self.record.value,
            "said": self.said,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Torn:
    """A thread that was left part-way.  ``age`` is for how many seconds nothing has moved there.

    ``guarded``: what it executes goes through our ledger, which lets nothing happen twice.
    """

    thread: str
    age: float
    head: str | None
    next: tuple[str, ...]
    seen: tuple[Seen, ...] = ()
    tenant: str | None = None
    run_id: str | None = None
    agent: str | None = None
    guarded: bool = False

    def refusal(self, wanted: Apply) -> str | None:
        """Say why this must not be done; None: it may.  Nothing is done on a guess about money."""
        if self.guarded:
            return None
        open_ = [one.name for one in self.seen if one.provider is Provider.UNTOLD]
        again = [
            one.name for one in self.seen if one.record is Record.LEFT and one.provider is Provider.EXECUTED
        ]
        if wanted is Apply.RESUME and again:
            return f"its next node would execute again what is executed: {', '.join(again)}"
        if wanted is not Apply.ROLLBACK and open_:
            return f"nobody knows what became of: {', '.join(open_)}"
        return None

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "thread": self.thread,
            "tenant": self.tenant,
            "age": round(self.age, 1),
            "checkpoint_id": self.head,
            "next": list(self.next),
            "run_id": self.run_id,
            "effects": [one.public() for one in self.seen],
            "refusals": {wanted.value: why for wanted in Apply if (why := self.refusal(wanted))},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a look found: torn threads, how many were left out and why, and those that could not be read."""

    torn: tuple[Torn, ...]
    left_out: dict[str, int]
    unreadable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What became of one thread.  ``run_id`` is the run that saw to it."""

    thread: str
    done: bool
    said: str
    run_id: str | None = None

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {"thread": self.thread, "done": self.done, "said": self.said, "run_id": self.run_id}
