"""The routes of schedules: make, look, change, pause, resume, delete.

Decides paths and status codes; what they do is ``schedules.Desk``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Query, Request, Response

from outlive import addresses, cron, names
from outlive import schedules as desk
from outlive.http import body, problem
from outlive.principal import Principal
from outlive.runtime import Outlive
from outlive.store.schedules import Missed, Schedule

PAGE = 1000
BODY_LIMIT = 4 * 1024 * 1024
Id = Annotated[str | None, Query(min_length=1, max_length=names.LONGEST_NAME)]
Seconds = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=False, ge=0)]


class Changes(pydantic.BaseModel):
    """What is to be changed; what is left out stays."""

    model_config = pydantic.ConfigDict(extra="forbid")

    cron: str = pydantic.Field(default="", max_length=cron.LONGEST)
    agent: str = pydantic.Field(default="", max_length=names.LONGEST_NAME)
    input: Any = None
    timezone: str = pydantic.Field(default="UTC", max_length=names.LONGEST_NAME)
    thread: str | None = pydantic.Field(default=None, min_length=1, max_length=names.LONGEST_NAME)
    name: str = pydantic.Field(default="", max_length=names.LONGEST_NAME)
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)
    policy: dict[str, Any] = pydantic.Field(default_factory=dict)
    webhook: str | None = pydantic.Field(default=None, max_length=addresses.LONGEST_URL)
    missed: Missed = Missed.SKIP
    grace: Seconds = desk.GRACE
    ends_at: Seconds | None = None
    passes_after: Seconds | None = None


class NewSchedule(Changes):
    """What a schedule is made of."""

    cron: str = pydantic.Field(min_length=1, max_length=cron.LONGEST)
    agent: str = pydantic.Field(min_length=1, max_length=names.LONGEST_NAME)
    paused: bool = False


def add(scoped: APIRouter, outlive: Outlive) -> None:
    """Add the routes to a router whose requests are authenticated."""
    routes = _Routes(outlive)
    one = "/schedules/{schedule_id}"
    scoped.post("/schedules", status_code=201, openapi_extra=_content(NewSchedule))(routes.create)
    problem.readable(scoped, "/schedules", routes.index)
    problem.readable(scoped, one, routes.read)
    scoped.patch(one, openapi_extra=_content(Changes))(routes.update)
    scoped.delete(one, status_code=204)(routes.delete)
    scoped.post(one + "/pause")(routes.pause)
    scoped.post(one + "/resume")(routes.resume)
    problem.readable(scoped, one + "/occurrences", routes.occurrences)
    problem.readable(scoped, one + "/next", routes.coming)


@dataclass(frozen=True, slots=True)
class _Routes:
    """The handlers.  Each has the principal from the router's dependency."""

    outlive: Outlive

    async def create(self, request: Request) -> Response:
        """Make a schedule.  Its runs count for whoever made it, and end with their API key."""
        wanted, _ = await body.read(request, NewSchedule, BODY_LIMIT)
        who = _who(request)
        fields = {name: getattr(wanted, name) for name in type(wanted).model_fields}
        made = await self.outlive.schedules.create(**fields, tenant=who.tenant, principal=who.id)
        return body.Json(made.public(), 201)

    async def index(
        self, request: Request, limit: Annotated[int, Query(ge=1, le=PAGE)] = 50, before: Id = None
    ) -> Response:
        """List schedules, newest first."""
        tenant = _who(request).tenant
        found = await self.outlive.schedules.newest(tenant=tenant, limit=limit, before=before)
        more = found[-1].schedule_id if len(found) == limit else None
        return body.Json({"schedules": [each.public() for each in found], "before": more})

    async def read(self, request: Request, schedule_id: str) -> Response:
        """Read one schedule."""
        return _shown(await self.outlive.schedules.show(schedule_id, tenant=_who(request).tenant))

    async def update(self, request: Request, schedule_id: str) -> Response:
        """Change a schedule, for the slots that come from now on."""
        wanted, _ = await body.read(request, Changes, BODY_LIMIT)
        fields = {name: getattr(wanted, name) for name in wanted.model_fields_set}
        tenant = _who(request).tenant
        return _shown(await self.outlive.schedules.update(schedule_id, tenant=tenant, **fields))

    async def delete(self, request: Request, schedule_id: str) -> Response:
        """Take a schedule away; its runs stay."""
        await self.outlive.schedules.delete(schedule_id, tenant=_who(request).tenant)
        return Response(status_code=204)

    async def pause(self, request: Request, schedule_id: str) -> Response:
        """Skip the slots that come from now on."""
        return _shown(await self.outlive.schedules.pause(schedule_id, tenant=_who(request).tenant))

    async def resume(self, request: Request, schedule_id: str) -> Response:
        """Let the slots that come from now on become runs again."""
        return _shown(await self.outlive.schedules.resume(schedule_id, tenant=_who(request).tenant))

    async def occurrences(
        self,
        request: Request,
        schedule_id: str,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
        before: Annotated[float | None, Query(ge=0, le=cron.LAST)] = None,
    ) -> Response:
        """List what became of the slots, newest first."""
        tenant = _who(request).tenant
        found = await self.outlive.schedules.occurrences(
            schedule_id, tenant=tenant, limit=limit, before=before
        )
        more = found[-1].slot if len(found) == limit else None
        return body.Json({"occurrences": [each.public() for each in found], "before": more})

    async def coming(
        self, request: Request, schedule_id: str, count: Annotated[int, Query(ge=1, le=PAGE)] = 5
    ) -> Response:
        """Say when the next slots are."""
        tenant = _who(request).tenant
        slots = await self.outlive.schedules.next(schedule_id, tenant=tenant, count=count)
        return body.Json({"schedule_id": schedule_id, "next": slots})


def _shown(found: Schedule) -> Response:
    return body.Json(found.public())


def _content(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _who(request: Request) -> Principal:
    who: Principal = request.state.outlive_principal
    return who
