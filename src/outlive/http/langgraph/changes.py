"""Threads changed as a whole: made of states, copied, their states written, taken away.

Decides which graph writes a state.  A run of its own does it and holds the thread meanwhile: on a thread with
a live run it is refused, and what is live there goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from langgraph.types import Command, StateUpdate

from outlive import errors
from outlive.agents import graph_call
from outlive.agents.langgraph import LangGraphAgent
from outlive.agents.positions import Place
from outlive.http import body
from outlive.http.langgraph import bodies, states, wire
from outlive.http.langgraph.plane import Plane
from outlive.model import Run
from outlive.store import schedules, searching
from outlive.store.searching import FoundThread, ThreadSearch

_TOGETHER = 100


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes."""
    here = _Changes(plane)
    routes.post("/threads/prune")(here.prune)
    routes.delete("/threads/{thread_id}", status_code=204)(here.delete)
    routes.post("/threads/{thread_id}/copy")(here.copy)
    routes.post("/threads/{thread_id}/state")(here.update)
    routes.patch("/threads/{thread_id}/state", status_code=204)(here.patch)


class _Changes:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._outlive = plane.outlive

    async def delete(self, request: Request, thread_id: str) -> Response:
        """Delete a thread; 409 while what an effect came to is open."""
        found = await self._plane.thread(request, thread_id)
        await _delete(self._plane, wire.tenant(request), found.thread.thread)
        return Response(status_code=204)

    async def prune(self, request: Request) -> Response:
        """Delete several threads; those that may not be deleted now are named with the reason."""
        wanted = await self._plane.read(request, bodies.Prune)
        if wanted.strategy == "keep_latest":
            raise errors.InvalidInput(
                "keep_latest is not supported: states are kept as long as their thread.", field="strategy"
            )
        pruned, kept = 0, []
        for name in dict.fromkeys(wire.thread_name(one) for one in wanted.thread_ids):
            try:
                await _delete(self._plane, wire.tenant(request), name)
                pruned += 1
            except errors.NotFound:
                continue
            except errors.ThreadUnsettled as failure:
                kept.append({"thread_id": name, "detail": failure.message})
        return body.Json({"pruned_count": pruned, **({"kept": kept} if kept else {})})

    async def copy(self, request: Request, thread_id: str) -> Response:
        """Copy a thread's states and metadata to a new thread; its runs are not copied."""
        found, tenant = await self._plane.thread(request, thread_id), wire.tenant(request)
        copied = await self._outlive.copy_thread(found.thread.thread, str(uuid.uuid4()), tenant=tenant)
        if said := self._plane.of_new_thread(request):
            await self._outlive.store.write(searching.say(tenant, copied.thread, said))
        return body.Json(await states.thread(self._plane, tenant, copied.thread))

    async def update(self, request: Request, thread_id: str) -> Response:
        """Write a state, as a node's if one is named; returns where it is."""
        wanted = await self._plane.read(request, bodies.StateUpdate)
        found, tenant = await self._plane.thread(request, thread_id), wire.tenant(request)
        where = wanted.checkpoint or bodies.Checkpoint()
        written = await self._outlive.update_state(
            found.thread.thread,
            wanted.values,
            tenant=tenant,
            as_node=wanted.as_node,
            place=Place(
                checkpoint_id=where.checkpoint_id or wanted.checkpoint_id, namespace=where.checkpoint_ns
            ),
            agent=(await self._writer(found, tenant)).name,
        )
        shown = {
            "thread_id": found.thread.thread,
            "checkpoint_ns": written.place.namespace,
            "checkpoint_id": written.place.checkpoint_id,
        }
        return body.Json({"checkpoint": shown, "configurable": shown, **shown})

    async def _writer(self, found: FoundThread, tenant: str) -> LangGraphAgent:
        agent = await states.agent_of(self._plane, found, tenant)
        if agent is None:
            raise errors.InvalidInput(
                "Nothing says which graph this thread is of.",
                hint="Name it as graph_id in the thread's metadata.",
                field="thread_id",
            )
        return agent

    async def patch(self, request: Request, thread_id: str) -> Response:
        """Merge into the metadata of a thread."""
        wanted = await self._plane.read(request, bodies.StatePatch)
        found = await self._plane.thread(request, thread_id)
        said = searching.say(wire.tenant(request), found.thread.thread, wanted.metadata)
        await self._outlive.store.write(said)
        return Response(status_code=204)


async def made_of(plane: Plane, tenant: str, name: str, new: bodies.NewThread) -> bool:
    """Make a thread of the states in ``new``; False if there is one of that name.

    Nothing is left of one whose states its graph does not take.  Raises ``InvalidInput``.
    """
    agent = _named(plane, new)
    steps = [[_taken(one) for one in step.updates] for step in new.supersteps or ()]

    async def write(run: Run) -> None:
        await agent.stepped(run.claim, steps, {"run_id": run.run_id, "thread_id": name})

    made = await plane.outlive.import_thread(name, agent.name, write, tenant=tenant, source="supersteps")
    if made is None:
        return False
    await plane.outlive.store.write(searching.say(tenant, name, new.metadata or {}))
    return True


def _named(plane: Plane, new: bodies.NewThread) -> LangGraphAgent:
    named = (new.metadata or {}).get("graph_id")
    if named is None and len(plane.graphs) == 1:
        return next(iter(plane.graphs.values()))
    if not isinstance(named, str) or named not in plane.graphs:
        raise errors.InvalidInput(
            "States are those of a graph, and metadata.graph_id names none of this service.",
            field="metadata.graph_id",
        )
    return plane.graphs[named]


def _taken(update: bodies.Update) -> StateUpdate:
    given: dict[str, Any] = update.command.given() if update.command else {}
    if not given:
        return StateUpdate(values=update.values, as_node=update.as_node)
    if "resume" in given or update.values is not None:
        raise errors.InvalidInput(
            "An update has values, or a command with update or goto; it answers nothing.",
            field="supersteps",
        )
    command: Command[Any] = Command(update=given.get("update"), goto=graph_call.places(given.get("goto")))
    # A node may return one in place of values, and what a node returns is what this stands for.
    return StateUpdate(values=command, as_node=update.as_node)  # type: ignore[arg-type]


async def _delete(plane: Plane, tenant: str, name: str) -> None:
    await plane.outlive.delete_thread(name, tenant=tenant)
    await plane.outlive.store.write(schedules.drop_of_thread(tenant, name))  # they would make it anew


async def delete_of(plane: Plane, tenant: str, metadata: Mapping[str, Any]) -> None:
    """Delete all threads with these words on them; raises ``ThreadUnsettled`` at one that may not be."""
    wanted = ThreadSearch(metadata=metadata, limit=_TOGETHER)
    while True:
        found, _ = await plane.outlive.store.read(searching.search(tenant, wanted))
        for one in found:
            await _delete(plane, tenant, one.thread.thread)
        if len(found) < _TOGETHER:
            return
