"""The routes of the outbox: what was told of runs' ends, and having it sent again.

Decides paths and status codes; what they do is ``outbox.Desk``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from outlive.http import body, problem
from outlive.notifications import Delivery
from outlive.runtime import Outlive


def add(scoped: APIRouter, outlive: Outlive) -> None:
    """Add the routes to a router whose requests are authenticated."""
    routes = _Routes(outlive)
    problem.readable(scoped, "/notifications", routes.index)
    problem.readable(scoped, "/notifications/{notification_id}", routes.read)
    problem.readable(scoped, "/runs/{run_id}/notifications", routes.of_run)
    scoped.post("/notifications/{notification_id}/resend", status_code=202)(routes.resend)


@dataclass(frozen=True, slots=True)
class _Routes:
    """The handlers.  Each has the tenant from the router's dependency."""

    outlive: Outlive

    async def index(
        self,
        request: Request,
        *,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        state: Delivery | None = None,
        before: Annotated[str | None, Query(pattern="^[0-9a-f]{32}-[0-9]{1,9}$")] = None,
    ) -> Response:
        """List notifications, newest first; with ``state=dead`` the dead letters."""
        found = await self.outlive.notifications.newest(
            tenant=_tenant(request), limit=limit, state=state, before=before
        )
        more = found[-1].notification_id if len(found) == limit else None
        return body.Json({"notifications": [each.public() for each in found], "before": more})

    async def of_run(self, request: Request, run_id: str) -> Response:
        """List who was told of a run's end: nobody before it has ended."""
        run = await self.outlive.run(run_id, tenant=_tenant(request))
        found = await self.outlive.notifications.of_run(run.run_id, tenant=run.tenant, limit=1000)
        return body.Json({"run_id": run_id, "notifications": [each.public() for each in found]})

    async def read(self, request: Request, notification_id: str) -> Response:
        """Read one notification, and what came of it."""
        found = await self.outlive.notifications.show(notification_id, tenant=_tenant(request))
        return body.Json(found.public())

    async def resend(self, request: Request, notification_id: str) -> Response:
        """Have one sent again, in the same words and with the same id."""
        again = await self.outlive.notifications.resend(notification_id, tenant=_tenant(request))
        return body.Json(again.public(), 202)


def _tenant(request: Request) -> str:
    name: str = request.state.outlive_tenant
    return name
