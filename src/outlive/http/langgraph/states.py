"""The state of a thread, at its newest or an older checkpoint, as clients of the LangGraph protocol see it.

Decides which graph reads a thread: the one that its metadata names, else the one of its newest run.  Internal
ids of threads never leave here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import PregelTask, StateSnapshot

from outlive import encoding, errors
from outlive.agents.langgraph import LangGraphAgent
from outlive.http.langgraph import frames, shapes
from outlive.http.langgraph.plane import Plane
from outlive.store import searching
from outlive.store.searching import FoundThread

NOTHING: dict[str, Any] = {
    "values": None,
    "next": [],
    "tasks": [],
    "metadata": {},
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
    "interrupts": [],
}
"""The state of a thread on which nothing ran."""


def plain(value: Any) -> Any:
    """Return any value as what JSON can hold."""
    return json.loads(encoding.encode(value).text)


async def agent_of(plane: Plane, found: FoundThread, tenant: str) -> LangGraphAgent | None:
    """Return the graph that can read a thread; None if nothing says which."""
    named = found.metadata.get("graph_id")
    if isinstance(named, str) and named in plane.graphs:
        return plane.graphs[named]
    for run in await plane.outlive.runs(tenant=tenant, thread=found.thread.thread, limit=50):
        if run.agent in plane.graphs:  # not one that only changed a state
            return plane.graphs[run.agent]
    return next(iter(plane.graphs.values())) if len(plane.graphs) == 1 else None


def address(found: FoundThread, checkpoint_id: str | None = None, namespace: str = "") -> RunnableConfig:
    """Return where a thread's checkpoints are; without an id its newest one."""
    configurable: dict[str, Any] = {"thread_id": found.thread.thread_id, "checkpoint_ns": namespace}
    if checkpoint_id:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


async def read(
    plane: Plane,
    found: FoundThread,
    tenant: str,
    *,
    checkpoint_id: str | None = None,
    namespace: str = "",
    subgraphs: bool = False,
) -> dict[str, Any]:
    """Return the state at a checkpoint; raises ``NotFound`` if the thread has none of that id."""
    agent = await agent_of(plane, found, tenant)
    if agent is None:
        return dict(NOTHING)
    where = address(found, checkpoint_id, namespace)
    snapshot = await agent.reading.aget_state(where, subgraphs=subgraphs)
    if checkpoint_id is not None and snapshot.created_at is None:
        raise errors.NotFound(f"The thread has no checkpoint {checkpoint_id[:100]}.", field="checkpoint_id")
    return state(snapshot, found.thread.thread)


async def thread(plane: Plane, tenant: str, name: str) -> dict[str, Any]:
    """Return the thread of that name as a client sees it."""
    return await shown(plane, await plane.outlive.store.read(searching.find(tenant, name)), tenant)


async def shown(plane: Plane, found: FoundThread, tenant: str) -> dict[str, Any]:
    """Return a thread with its newest state, and what its newest run failed with."""
    newest = await read(plane, found, tenant)
    error = None
    if found.status is searching.ThreadStatus.ERROR:
        runs = await plane.outlive.runs(tenant=tenant, thread=found.thread.thread, limit=1)
        error = frames.failed_with(runs[0].public()["error"], runs[0].state) if runs else None
    return shapes.thread(found, newest, error)


async def history(
    plane: Plane,
    found: FoundThread,
    tenant: str,
    *,
    limit: int,
    before: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    checkpoint_id: str | None = None,
    namespace: str = "",
) -> list[dict[str, Any]]:
    """Return states, newest first, older than the checkpoint ``before``."""
    agent = await agent_of(plane, found, tenant)
    if agent is None:
        return []
    states = agent.reading.aget_state_history(
        address(found, checkpoint_id, namespace),
        filter=dict(metadata) if metadata else None,
        before=address(found, before) if before else None,
        limit=limit,
    )
    return [state(snapshot, found.thread.thread) async for snapshot in states]


def state(snapshot: StateSnapshot, thread: str) -> dict[str, Any]:
    """Return one state; ``thread`` is the name under which the client knows its thread."""
    if snapshot.created_at is None:
        return dict(NOTHING)
    own = _checkpoint(snapshot.config, thread)
    parent = _checkpoint(snapshot.parent_config, thread)
    return {
        "values": plain(snapshot.values),
        "next": list(snapshot.next),
        "tasks": [_task(task, thread) for task in snapshot.tasks],
        "metadata": {**plain(snapshot.metadata or {}), "thread_id": thread},
        "created_at": snapshot.created_at,
        "checkpoint": own,
        "parent_checkpoint": parent,
        "checkpoint_id": own and own["checkpoint_id"],
        "parent_checkpoint_id": parent and parent["checkpoint_id"],
        "interrupts": plain(list(snapshot.interrupts)),
    }


def _task(task: PregelTask, thread: str) -> dict[str, Any]:
    nested = task.state
    inner: dict[str, Any] = {"checkpoint": None, "state": None}
    if isinstance(nested, StateSnapshot):
        inner = {"checkpoint": _checkpoint(nested.config, thread), "state": state(nested, thread)}
    elif nested is not None:
        inner["checkpoint"] = _checkpoint(nested, thread)
    return {
        "id": task.id,
        "name": task.name,
        "path": plain(task.path),
        "error": None if task.error is None else repr(task.error),
        "interrupts": plain(list(task.interrupts)),
        "result": plain(task.result),
        **inner,
    }


def _checkpoint(config: RunnableConfig | None, thread: str) -> dict[str, Any] | None:
    if config is None:
        return None
    configurable = config.get("configurable", {})
    return {
        "thread_id": thread,
        "checkpoint_ns": configurable.get("checkpoint_ns", ""),
        "checkpoint_id": configurable.get("checkpoint_id"),
    }
