"""What clients of the LangGraph protocol send.

Unknown fields are left out; unknown values of known ones are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import pydantic

from outlive.http.langgraph import wire
from outlive.policy import Durability, OnDisconnect
from outlive.store.searching import ThreadStatus

Mode = Literal[
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "events",
    "tasks",
    "checkpoints",
    "debug",
    "custom",
    "tools",
    "lifecycle",
]
Nodes = Literal["*"] | list[str]
Strategy = Literal["reject", "enqueue", "interrupt", "rollback"]
Object = dict[str, Any]


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Modes = Annotated[list[Mode], pydantic.BeforeValidator(_as_list)]


class Command(wire.Body):
    """An answer, an update of the state, or where to go on; any of them together."""

    resume: Any = None
    update: Any = None
    goto: Any = None

    def given(self) -> Object:
        """Return the fields that were sent."""
        return {
            name: getattr(self, name)
            for name in ("resume", "update", "goto")
            if name in self.model_fields_set
        }


class Checkpoint(wire.Body):
    """The address of a checkpoint; the thread is the one in the path."""

    checkpoint_id: str | None = None
    checkpoint_ns: str = ""
    thread_id: str | None = None


class Lifetime(wire.Body):
    """How many minutes after the last that happens on it a thread is deleted."""

    ttl: float = pydantic.Field(gt=0, le=60 * 24 * 366 * 100, allow_inf_nan=False)
    strategy: Literal["delete"] = "delete"


def _lifetime(given: Any) -> Any:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    return {"ttl": given} if number else given


Ttl = Annotated[Lifetime, pydantic.BeforeValidator(_lifetime)]


class NewRun(wire.Body):
    """A run, on a thread or by itself."""

    assistant_id: str = pydantic.Field(min_length=1, max_length=512)
    input: Any = None
    command: Command | None = None
    config: Object = pydantic.Field(default_factory=dict)
    context: Any = None
    metadata: Object | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None
    stream_mode: Modes | None = None
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    on_disconnect: OnDisconnect | None = None
    on_completion: Literal["delete", "keep"] | None = None
    multitask_strategy: Strategy | None = None
    if_not_exists: Literal["reject", "create"] = "reject"
    durability: Durability | None = None
    checkpoint_during: bool | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    after_seconds: float | None = pydantic.Field(default=None, ge=0, le=10**9, allow_inf_nan=False)
    webhook: str | None = pydantic.Field(default=None, max_length=8192)
    strict_resume: bool = False
    feedback_keys: Any = None
    langsmith_tracer: Any = None

    @pydantic.model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.checkpoint is not None and self.checkpoint.checkpoint_id and self.checkpoint.checkpoint_ns:
            raise ValueError("checkpoint is one of a subgraph, and a run starts from one of its own graph")
        for name in ("feedback_keys", "langsmith_tracer"):
            if getattr(self, name):
                raise ValueError(f"{name} is for LangSmith, which this service does not use")
        return self

    @property
    def fork(self) -> str | None:
        """The checkpoint from which the run is to start; None: the thread's newest."""
        configured = (self.config.get("configurable") or {}).get("checkpoint_id")
        return (
            self.checkpoint_id or (self.checkpoint.checkpoint_id if self.checkpoint else None) or configured
        )

    @property
    def modes(self) -> list[Mode]:
        """What is to be streamed; ``values`` for nothing."""
        return self.stream_mode or ["values"]


class Update(wire.Body):
    """What a node is taken to have written."""

    values: Any = None
    command: Command | None = None
    as_node: str | None = pydantic.Field(default=None, min_length=1, max_length=512)


class Superstep(wire.Body):
    """What nodes are taken to have written side by side."""

    updates: list[Update] = pydantic.Field(min_length=1)


class NewThread(wire.Body):
    """A thread that is made before its first run."""

    thread_id: str | None = None
    metadata: Object | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    ttl: Ttl | None = None
    supersteps: list[Superstep] | None = None


class StateUpdate(wire.Body):
    """What the state of a thread is changed to, behind its newest checkpoint or the one that is named."""

    values: Any = None
    as_node: str | None = pydantic.Field(default=None, min_length=1, max_length=512)
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = pydantic.Field(default=None, min_length=1, max_length=512)


class StatePatch(wire.Body):
    """What is merged into the metadata of the thread whose state it is."""

    metadata: Object


class Prune(wire.Body):
    """Which threads are to be taken away, or what of them."""

    thread_ids: list[str] = pydantic.Field(max_length=1000)
    strategy: Literal["delete", "keep_latest"] = "delete"


class ThreadSearch(wire.Body):
    """What threads are looked for by."""

    metadata: Object | None = None
    values: Object | None = None
    ids: list[str] | None = None
    status: ThreadStatus | None = None
    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    offset: int = pydantic.Field(default=0, ge=0)
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: list[str] | None = None
    extract: dict[str, str] | None = None


class ThreadPatch(wire.Body):
    """What is merged into a thread's metadata."""

    metadata: Object | None = None
    ttl: Ttl | None = None


class NewAssistant(wire.Body):
    """A graph with a configuration of its own."""

    graph_id: str
    assistant_id: str | None = None
    config: Object | None = None
    context: Any = None
    metadata: Object | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    name: str | None = None
    description: str | None = None


class AssistantPatch(wire.Body):
    """What a new version has instead."""

    graph_id: str | None = None
    config: Object | None = None
    context: Any = None
    metadata: Object | None = None
    name: str | None = None
    description: str | None = None


class AssistantSearch(wire.Body):
    """What assistants are looked for by."""

    metadata: Object | None = None
    graph_id: str | None = None
    name: str | None = None
    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    offset: int = pydantic.Field(default=0, ge=0)
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: list[str] | None = None


class Versions(wire.Body):
    """Which versions of an assistant are asked for."""

    metadata: Object | None = None
    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    offset: int = pydantic.Field(default=0, ge=0)


class Version(wire.Body):
    """Which version is to be the current one."""

    version: int = pydantic.Field(ge=1, le=2**31 - 1)


class CancelMany(wire.Body):
    """Which runs are to be stopped: those of a thread by their ids, or all with a status."""

    thread_id: str | None = None
    run_ids: list[str] | None = None
    status: Literal["pending", "running", "all"] | None = None


class StateAt(wire.Body):
    """Which state of a thread is asked for."""

    checkpoint: Checkpoint
    subgraphs: bool = False
    select: list[str] | None = None


class History(wire.Body):
    """Which states of a thread are asked for.  ``before`` is a checkpoint, its config, or its id."""

    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    before: Object | str | None = None
    metadata: Object | None = None
    checkpoint: Checkpoint | None = None
    select: list[str] | None = None

    @property
    def older_than(self) -> str | None:
        """The id of the checkpoint ``before`` which the states are."""
        if self.before is None or isinstance(self.before, str):
            return self.before
        inner = self.before.get("configurable", self.before)
        return inner.get("checkpoint_id") if isinstance(inner, dict) else None
