"""The routes of threads: list, read, copy, delete; their states, also as a tree, and changing one.

Decides paths and status codes; what they do is ``threads``'s.  A thread's name may hold slashes, so the
routes with a longer path come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Query, Request, Response

from outlive import names
from outlive.agents.positions import Place
from outlive.http import body, effects, problem
from outlive.model import Thread
from outlive.runtime import Outlive

PAGE = 1000
BODY_LIMIT = 4 * 1024 * 1024
Id = Annotated[str | None, Query(min_length=1, max_length=names.LONGEST_NAME)]
Namespace = Annotated[str, Query(max_length=names.LONGEST_NAME)]
_OF_THREAD = ("thread", "created_at", "last_seq", "position", "left_by", "copied_from")


class NewState(pydantic.BaseModel):
    """What a state is changed to, as if the node ``as_node`` had written ``values``."""

    model_config = pydantic.ConfigDict(extra="forbid")

    values: Any = None
    as_node: str | None = pydantic.Field(default=None, min_length=1, max_length=names.LONGEST_NAME)
    checkpoint_id: str | None = pydantic.Field(default=None, min_length=1, max_length=names.LONGEST_NAME)
    namespace: str = pydantic.Field(default="", max_length=names.LONGEST_NAME)
    agent: str | None = pydantic.Field(default=None, min_length=1, max_length=names.LONGEST_NAME)


class Copy(pydantic.BaseModel):
    """Where a thread is copied to; a new name if none is given."""

    model_config = pydantic.ConfigDict(extra="forbid")

    to: str | None = pydantic.Field(default=None, min_length=1, max_length=names.LONGEST_NAME)


def add(scoped: APIRouter, outlive: Outlive) -> None:
    """Add the routes to a router whose requests are authenticated; last, for a name takes any path."""
    routes = Routes(outlive)
    problem.readable(scoped, "/threads", routes.index)
    problem.readable(scoped, "/threads/{thread:path}/state", routes.state)
    problem.readable(scoped, "/threads/{thread:path}/history", routes.history)
    problem.readable(scoped, "/threads/{thread:path}/tree", routes.tree)
    scoped.post("/threads/{thread:path}/state", openapi_extra=_content(NewState))(routes.update)
    scoped.post("/threads/{thread:path}/copy", status_code=201, openapi_extra=_content(Copy))(routes.copy)
    problem.readable(scoped, "/threads/{thread:path}", routes.read)
    scoped.delete("/threads/{thread:path}")(routes.delete)


def shown(thread: Thread) -> dict[str, Any]:
    """Return what a principal may see of a thread, as JSON-able values."""
    return {name: getattr(thread, name) for name in _OF_THREAD}


@dataclass(frozen=True, slots=True)
class Routes:
    """The handlers.  Each has the principal from the router's dependency."""

    outlive: Outlive

    async def index(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
        before: Annotated[str | None, Query(min_length=1)] = None,
    ) -> Response:
        """List threads, newest first."""
        found = await self.outlive.threads(tenant=_tenant(request), limit=limit, before=before)
        more = found[-1].thread if len(found) == limit else None
        return body.Json({"threads": [shown(thread) for thread in found], "before": more})

    async def read(self, request: Request, thread: str) -> Response:
        """Read a thread: its live runs, if any, and its newest runs."""
        tenant = _tenant(request)
        found = await self.outlive.thread(thread, tenant=tenant)
        recent = await self.outlive.runs(tenant=tenant, thread=thread)
        live = [run.run_id for run in recent if not run.state.terminal]
        whole = shown(found) | await effects.of_thread(self.outlive, found)
        return body.Json(whole | {"live": live, "runs": [run.public() for run in recent]})

    async def state(
        self,
        request: Request,
        thread: str,
        *,
        checkpoint_id: Id = None,
        namespace: Namespace = "",
        agent: Id = None,
    ) -> Response:
        """Read the state of a thread, at its newest or a given checkpoint."""
        if _is_name(request, "state"):
            return await self.read(request, f"{thread}/state")
        place = Place(checkpoint_id=checkpoint_id, namespace=namespace)
        found = await self.outlive.state(thread, tenant=_tenant(request), place=place, agent=agent)
        return body.Json(found.public())

    async def history(
        self,
        request: Request,
        thread: str,
        *,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 10,
        before: Id = None,
        namespace: Namespace = "",
        agent: Id = None,
    ) -> Response:
        """Read the states of a thread, newest first."""
        if _is_name(request, "history"):
            return await self.read(request, f"{thread}/history")
        place = Place(checkpoint_id=before, namespace=namespace)
        found = await self.outlive.history(
            thread, tenant=_tenant(request), limit=limit, before=place, agent=agent
        )
        last = found[-1].place if len(found) == limit else None
        more = last.checkpoint_id if last else None
        return body.Json({"thread": thread, "states": [one.public() for one in found], "before": more})

    async def tree(
        self, request: Request, thread: str, limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE
    ) -> Response:
        """Read where a thread's checkpoints stand to one another; as text for who accepts only that."""
        if _is_name(request, "tree"):
            return await self.read(request, f"{thread}/tree")
        found = await self.outlive.tree(thread, tenant=_tenant(request), limit=limit)
        if request.headers.get("accept", "").startswith("text/plain"):
            return Response("\n".join((*found.lines(), "")), media_type="text/plain")
        return body.Json(found.public())

    async def update(self, request: Request, thread: str) -> Response:
        """Change the state of a thread; 409 while a run is live on it."""
        wanted, _ = await body.read(request, NewState, BODY_LIMIT)
        updated = await self.outlive.update_state(
            thread,
            wanted.values,
            tenant=_tenant(request),
            as_node=wanted.as_node,
            place=Place(checkpoint_id=wanted.checkpoint_id, namespace=wanted.namespace),
            agent=wanted.agent,
        )
        return body.Json(updated.public())

    async def copy(self, request: Request, thread: str) -> Response:
        """Copy a thread's checkpoints to a new thread; 409 if there is one of that name."""
        wanted, _ = await body.read(request, Copy, BODY_LIMIT)
        copied = await self.outlive.copy_thread(thread, wanted.to, tenant=_tenant(request))
        return body.Json(shown(copied), 201)

    async def delete(self, request: Request, thread: str, *, force: bool = False) -> Response:
        """Delete a thread with its runs; 409 while what an effect came to is open, unless by force."""
        deleted = await self.outlive.delete_thread(thread, tenant=_tenant(request), force=force)
        return body.Json(deleted.public())


def _is_name(request: Request, word: str) -> bool:
    """Say whether the end of the path is the end of a thread's name, sent with its slash encoded."""
    raw = request.scope.get("raw_path")
    return raw is not None and not raw.endswith(f"/{word}".encode())


def _content(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _tenant(request: Request) -> str:
    name: str = request.state.outlive_tenant
    return name
