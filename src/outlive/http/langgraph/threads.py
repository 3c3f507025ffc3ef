"""Threads: made beforehand, described, looked for; their states and how they came about."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from outlive import errors, seams
from outlive.http import body
from outlive.http.langgraph import bodies, changes, extracts, pages, shapes, states, wire
from outlive.http.langgraph.plane import Plane
from outlive.store import deleting, searching
from outlive.store.searching import FoundThread, ThreadSearch

_SCANNED = 1000
"""Threads that a search by their values reads at most, to fill its page."""


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes."""
    here = _Threads(plane)
    routes.post("/threads")(here.create)
    routes.post("/threads/search")(here.search)
    routes.post("/threads/count")(here.count)
    routes.get("/threads/{thread_id}")(here.read)
    routes.patch("/threads/{thread_id}")(here.change)
    routes.get("/threads/{thread_id}/state")(here.state)
    routes.post("/threads/{thread_id}/state/checkpoint")(here.state_at)
    routes.get("/threads/{thread_id}/state/{checkpoint_id}")(here.state_of)
    routes.get("/threads/{thread_id}/history")(here.history)
    routes.post("/threads/{thread_id}/history")(here.search_history)


class _Threads:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._store = plane.outlive.store

    async def create(self, request: Request) -> Response:
        """Make a thread; 409 if there is one of that id, unless that is no matter."""
        new = await self._plane.read(request, bodies.NewThread)
        name = wire.thread_name(new.thread_id) if new.thread_id else str(uuid.uuid4())
        tenant = wire.tenant(request)
        if new.supersteps:
            made = await changes.made_of(self._plane, tenant, name, new)
        else:
            made = await self._store.write(searching.make(seams.new_id(), tenant, name, new.metadata or {}))
        if not made and new.if_exists == "raise":
            raise errors.Conflict(f"Thread {name} already exists.", field="thread_id")
        if made and new.ttl is not None:
            await self._store.write(deleting.pass_after(tenant, name, new.ttl.ttl * 60))
        return body.Json(await states.thread(self._plane, tenant, name))

    async def search(self, request: Request) -> Response:
        """Return the threads that match, with their values."""
        wanted = await self._plane.read(request, bodies.ThreadSearch, empty={})
        found, headers = await self._search(request, wanted)
        shown = [_selected(one, wanted) for one in found]
        return body.Json(shown, headers=headers)

    async def count(self, request: Request) -> Response:
        """Return how many match."""
        wanted = await self._plane.read(request, bodies.ThreadSearch, empty={})
        if wanted.values:
            every = wanted.model_copy(update={"limit": _SCANNED, "offset": 0})
            return body.Json(len((await self._search(request, every))[0]))
        _, total = await self._store.read(
            searching.search(wire.tenant(request), self._query(request, wanted))
        )
        return body.Json(total)

    async def _search(
        self, request: Request, wanted: bodies.ThreadSearch
    ) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        tenant, query = wire.tenant(request), self._query(request, wanted)
        if not wanted.values:
            found, total = await self._store.read(searching.search(tenant, query))
            found = [one for one in found if self._plane.allowed(request).passes(one.metadata)]
            return [await states.shown(self._plane, one, tenant) for one in found], pages.headers(
                wanted.offset, len(found), total
            )
        wide = self._query(request, wanted.model_copy(update={"limit": _SCANNED, "offset": 0}))
        found, _ = await self._store.read(searching.search(tenant, wide))
        found = [one for one in found if self._plane.allowed(request).passes(one.metadata)]
        shown = [await states.shown(self._plane, one, tenant) for one in found]
        matching = [one for one in shown if extracts.holds(one["values"], wanted.values)]
        page = matching[wanted.offset : wanted.offset + wanted.limit]
        return page, pages.headers(wanted.offset, len(page), len(matching))

    def _query(self, request: Request, wanted: bodies.ThreadSearch) -> ThreadSearch:
        allowed = self._plane.allowed(request)
        return dataclasses.replace(_query(wanted), allowed=allowed.equal, holding=allowed.holding)

    async def read(self, request: Request, thread_id: str) -> Response:
        """Return a thread."""
        found = await self._plane.thread(request, thread_id)
        shown = await states.shown(self._plane, found, wire.tenant(request))
        if "ttl" in (wire.many(request, "include") or ()):
            shown["ttl"] = await self._lifetime(found)
        return body.Json(shown)

    async def _lifetime(self, found: FoundThread) -> dict[str, Any] | None:
        after = await self._store.read(deleting.passes_after(found.thread.thread_id))
        if after is None:
            return None
        busy = found.status is searching.ThreadStatus.BUSY
        ends = max(found.moved_at, found.updated_at) + after
        return {
            "strategy": "delete",
            "ttl_minutes": after / 60,
            "expires_at": None if busy else shapes.time(ends),
        }

    async def change(self, request: Request, thread_id: str) -> Response:
        """Merge into a thread's metadata."""
        patch = await self._plane.read(request, bodies.ThreadPatch)
        name = wire.thread_name(thread_id)
        await self._plane.thread(request, thread_id)
        await self._store.write(searching.say(wire.tenant(request), name, patch.metadata or {}))
        if "ttl" in patch.model_fields_set:
            after = None if patch.ttl is None else patch.ttl.ttl * 60
            await self._store.write(deleting.pass_after(wire.tenant(request), name, after))
        if "return=minimal" in request.headers.get("prefer", ""):
            return Response(status_code=204)
        return await self.read(request, thread_id)

    async def state(self, request: Request, thread_id: str) -> Response:
        """Return a thread's newest state."""
        return await self._state(request, thread_id, None, "", subgraphs=wire.flag(request, "subgraphs"))

    async def state_of(self, request: Request, thread_id: str, checkpoint_id: str) -> Response:
        """Return a thread's state at a checkpoint."""
        subgraphs = wire.flag(request, "subgraphs")
        return await self._state(request, thread_id, checkpoint_id, "", subgraphs=subgraphs)

    async def state_at(self, request: Request, thread_id: str) -> Response:
        """Return a thread's state at the checkpoint in the body."""
        wanted = await self._plane.read(request, bodies.StateAt)
        where = wanted.checkpoint
        return await self._state(
            request,
            thread_id,
            where.checkpoint_id,
            where.checkpoint_ns,
            subgraphs=wanted.subgraphs,
            select=wanted.select,
        )

    async def _state(
        self,
        request: Request,
        thread_id: str,
        checkpoint_id: str | None,
        namespace: str,
        *,
        subgraphs: bool,
        select: list[str] | None = None,
    ) -> Response:
        found = await self._plane.thread(request, thread_id)
        state = await states.read(
            self._plane,
            found,
            wire.tenant(request),
            checkpoint_id=checkpoint_id,
            namespace=namespace,
            subgraphs=subgraphs,
        )
        return body.Json(shapes.selected(state, select or wire.many(request, "select")))

    async def history(self, request: Request, thread_id: str) -> Response:
        """Return a thread's states, newest first."""
        limit = wire.number(request, "limit", 10, least=1)
        before = request.query_params.get("before")
        return await self._history(request, thread_id, bodies.History(limit=limit, before=before))

    async def search_history(self, request: Request, thread_id: str) -> Response:
        """Return a thread's states that match, newest first."""
        return await self._history(
            request, thread_id, await self._plane.read(request, bodies.History, empty={})
        )

    async def _history(self, request: Request, thread_id: str, wanted: bodies.History) -> Response:
        found = await self._plane.thread(request, thread_id)
        where = wanted.checkpoint or bodies.Checkpoint()
        shown = await states.history(
            self._plane,
            found,
            wire.tenant(request),
            limit=wanted.limit,
            before=wanted.older_than,
            metadata=wanted.metadata,
            checkpoint_id=where.checkpoint_id,
            namespace=where.checkpoint_ns,
        )
        return body.Json([shapes.selected(one, wanted.select) for one in shown])


def _query(wanted: bodies.ThreadSearch) -> ThreadSearch:
    return ThreadSearch(
        metadata=wanted.metadata or {},
        status=wanted.status,
        named=None if wanted.ids is None else [wire.thread_name(one) for one in wanted.ids],
        limit=wanted.limit,
        offset=wanted.offset,
        by=wanted.sort_by or "updated_at",
        ascending=wanted.sort_order == "asc",
    )


def _selected(shown: dict[str, Any], wanted: bodies.ThreadSearch) -> dict[str, Any]:
    chosen = shapes.selected(shown, wanted.select)
    if wanted.extract:
        chosen["extracted"] = {name: extracts.at(shown, path) for name, path in wanted.extract.items()}
    return chosen
