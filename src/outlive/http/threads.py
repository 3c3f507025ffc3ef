"""The routes of threads: list, read, delete.

Decides paths and status codes; what they do is ``threads``'s.  A thread's name may hold slashes, so the
routes with a longer path come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from outlive.http import body, effects, problem
from outlive.model import Thread
from outlive.runtime import Outlive

PAGE = 1000
_OF_THREAD = ("thread", "created_at", "last_seq", "position", "left_by", "copied_from")


def add(scoped: APIRouter, outlive: Outlive) -> None:
    """Add the routes to a router whose requests are authenticated; last, for a name takes any path."""
    routes = Routes(outlive)
    problem.readable(scoped, "/threads", routes.index)
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

    async def delete(self, request: Request, thread: str, *, force: bool = False) -> Response:
        """Delete a thread with its runs; 409 while what an effect came to is open, unless by force."""
        deleted = await self.outlive.delete_thread(thread, tenant=_tenant(request), force=force)
        return body.Json(deleted.public())


def _tenant(request: Request) -> str:
    name: str = request.state.outlive_tenant
    return name
