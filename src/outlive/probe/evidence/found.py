"""What evidence can say: where a thread stands, which effects happened, and other facts."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


class Position(enum.StrEnum):
    """Where a checkpointed thread stands."""

    NONE = "no checkpoint"
    FINISHED = "finished"
    WAITING = "waiting for a human"
    TORN = "torn"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One row of a checkpoint table: its parent, and the nodes whose work it took in."""

    id: str
    parent: str | None
    namespace: str
    step: int
    source: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a thread's checkpoints say. `tasks` are pending, also where `next` is empty."""

    position: Position
    next: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    head: tuple[str, ...] = ()
    anywhere: Mapping[str, int] = field(default_factory=Counter)
    forks: int = 0
    values: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return {
            "position": self.position.value,
            "next": list(self.next),
            "tasks": list(self.tasks),
            "checkpoints": len(self.checkpoints),
            "forks": self.forks,
            "steps_on_head": list(self.head),
            "steps_anywhere": dict(self.anywhere),
            "values": dict(self.values),
            "tree": [vars(checkpoint) for checkpoint in self.checkpoints],
        }


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one piece of evidence adds. `None` and empty mean that it has nothing to say about that.

    `steps` are pieces of work that are no effects, such as the events of a run that somebody recorded.
    """

    source: str
    record: Record | None = None
    effects: Mapping[str, int] | None = None
    steps: Mapping[str, int] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
