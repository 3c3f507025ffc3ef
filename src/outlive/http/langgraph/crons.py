"""Crons: runs that a clock makes.  Each is one of Outlive's schedules, which decide what becomes of a slot.

What a client sent is kept in the schedule's metadata beside the call that its runs make of it, with the
assistant's configuration as it was then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import pydantic
from fastapi import APIRouter, Request, Response

from outlive import cron, errors
from outlive.agents import restored
from outlive.http import body
from outlive.http.langgraph import bodies, pages, requests, shapes, wire
from outlive.http.langgraph.plane import Plane
from outlive.store.schedules import Schedule, Status

_PAGE = 1000
_CRON = "cron"
_OF_ONE_RUN = frozenset(
    {
        *("command", "checkpoint", "checkpoint_id", "on_disconnect", "on_completion", "if_not_exists"),
        *("after_seconds", "strict_resume"),
    }
)
Sorted = Literal[
    "cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"
]


class NewCron(bodies.NewRun):
    """When runs are made, and what of."""

    schedule: str = pydantic.Field(min_length=1, max_length=cron.LONGEST)
    timezone: str | None = None
    end_time: datetime | None = None
    enabled: bool = True
    on_run_completed: Literal["delete", "keep"] | None = None

    @pydantic.model_validator(mode="after")
    def _of_crons(self) -> NewCron:
        for name in sorted(_OF_ONE_RUN & self.model_fields_set):
            if getattr(self, name) not in (None, False):
                raise ValueError(f"{name} is not for runs that a clock makes")
        if self.multitask_strategy == "rollback":
            raise ValueError("multitask_strategy of a cron is reject, enqueue or interrupt")
        return self


class CronSearch(wire.Body):
    """What crons are looked for by."""

    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: bodies.Object | None = None
    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    offset: int = pydantic.Field(default=0, ge=0)
    sort_by: Sorted = "created_at"
    sort_order: Literal["asc", "desc"] = "desc"
    select: list[str] | None = None


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes; before those that take any word for a run's id."""
    here = _Crons(plane)
    routes.post("/runs/crons")(here.create)
    routes.post("/threads/{thread_id}/runs/crons")(here.create)
    routes.post("/runs/crons/search")(here.search)
    routes.post("/runs/crons/count")(here.count)
    routes.get("/runs/crons/{cron_id}")(here.read)
    routes.patch("/runs/crons/{cron_id}")(here.change)
    routes.delete("/runs/crons/{cron_id}", status_code=204)(here.delete)


class _Crons:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._desk = plane.outlive.schedules

    async def create(self, request: Request, thread_id: str | None = None) -> Response:
        """Make a cron; the first run is made at the first slot from now on."""
        new = await self._plane.read(request, NewCron)
        thread = None if thread_id is None else wire.thread_name(thread_id)
        wanted = await self._wanted(request, new, thread)
        who = wire.who(request)
        made = await self._desk.create(
            wanted.pop("cron"), wanted.pop("agent"), **wanted, tenant=who.tenant, principal=who.id
        )
        return body.Json(self._shown(made))

    async def _wanted(self, request: Request, new: NewCron, thread: str | None) -> dict[str, Any]:
        """Return what a schedule has of a request; raises ``NotFound`` for its thread or its assistant."""
        if thread is not None and new.on_run_completed is not None:
            raise errors.InvalidInput(
                "on_run_completed is for crons without a thread.", field="on_run_completed"
            )
        made = await requests.scheduled(self._plane, request, new, thread=thread)
        sent = new.model_dump(mode="json", exclude_unset=True)
        passes = thread is None and new.on_run_completed != "keep"
        return {
            "cron": new.schedule,
            "timezone": new.timezone or "UTC",
            "ends_at": _seconds(new.end_time),
            "paused": not new.enabled,
            "thread": thread,
            "passes_after": self._plane.kept if passes else None,
            "webhook": new.webhook,
            **made,
            "metadata": {shapes.KEPT_UNDER: {**made["metadata"], _CRON: sent}},
        }

    async def read(self, request: Request, cron_id: str) -> Response:
        """Return a cron."""
        return body.Json(self._shown(await self._found(request, cron_id)))

    async def _found(self, request: Request, cron_id: str) -> Schedule:
        schedule_id = wire.uuid_of(cron_id, "cron").hex
        try:
            found = await self._desk.show(schedule_id, tenant=wire.tenant(request))
        except errors.NotFound:
            raise errors.NotFound("Cron not found.", field="cron_id") from None
        if found.agent not in self._plane.graphs:
            raise errors.NotFound("Cron not found.", field="cron_id")
        return found

    async def change(self, request: Request, cron_id: str) -> Response:
        """Change a cron for the slots that come from now on; what is left out stays."""
        patch = await self._plane.read(request, dict[str, Any], empty={})
        found = await self._found(request, cron_id)
        changes = {name: value for name, value in patch.items() if name in NewCron.model_fields}
        new = wire.typed(NewCron, {**self._now(found), **changes, "assistant_id": self._assistant(found)})
        wanted = await self._wanted(request, new, found.thread)
        wanted["policy"] = {**_lasting(found, changes), **wanted["policy"]}
        changed = await self._desk.update(found.schedule_id, tenant=found.tenant, **wanted)
        return body.Json(self._shown(changed))

    async def delete(self, request: Request, cron_id: str) -> Response:
        """Take a cron away; its runs stay."""
        found = await self._found(request, cron_id)
        await self._desk.delete(found.schedule_id, tenant=found.tenant)
        return Response(status_code=204)

    async def search(self, request: Request) -> Response:
        """Return the crons that match."""
        wanted = await self._plane.read(request, CronSearch, empty={})
        found = await self._matching(request, wanted)
        found.sort(key=lambda one: _order(one[wanted.sort_by]), reverse=wanted.sort_order == "desc")
        page = found[wanted.offset : wanted.offset + wanted.limit]
        shown = [shapes.selected(one, wanted.select) for one in page]
        return body.Json(shown, headers=pages.headers(wanted.offset, len(page), len(found)))

    async def count(self, request: Request) -> Response:
        """Return how many match."""
        wanted = await self._plane.read(request, CronSearch, empty={})
        return body.Json(len(await self._matching(request, wanted)))

    async def _matching(self, request: Request, wanted: CronSearch) -> list[dict[str, Any]]:
        tenant, named = wire.tenant(request), None
        if wanted.assistant_id is not None:
            named = (await self._plane.assistant(tenant, wanted.assistant_id)).assistant_id
        thread = None if wanted.thread_id is None else wire.thread_name(wanted.thread_id)
        found: list[dict[str, Any]] = []
        before: str | None = None
        while True:
            page = await self._desk.newest(tenant=tenant, limit=_PAGE, before=before)
            shown = [self._shown(one) for one in page if one.agent in self._plane.graphs]
            shown = [one for one in shown if self._plane.allowed(request).passes(one["metadata"])]
            found += [one for one in shown if _matches(one, wanted, named, thread)]
            if len(page) < _PAGE:
                return found
            before = page[-1].schedule_id

    def _assistant(self, found: Schedule) -> str:
        kept = _kept(found)
        assistant_id: str = kept.get("assistant_id") or self._plane.own_id(found.agent)
        return assistant_id

    def _sent(self, found: Schedule) -> dict[str, Any]:
        """What a client sent; of a schedule that another interface made, what it comes to."""
        sent = _kept(found).get(_CRON)
        if isinstance(sent, dict):
            return dict(sent)
        return {
            "assistant_id": self._assistant(found),
            "schedule": found.cron,
            "timezone": found.timezone,
            "input": restored(json.dumps(found.input)),
        }

    def _now(self, found: Schedule) -> dict[str, Any]:
        """What a client sent, with what another interface has changed since."""
        return {
            **self._sent(found),
            "schedule": found.cron,
            "timezone": found.timezone,
            "end_time": _time(found.ends_at),
            "enabled": found.state is not Status.PAUSED,
        }

    def _shown(self, found: Schedule) -> dict[str, Any]:
        sent = self._sent(found)
        return {
            "cron_id": wire.shown_id(found.schedule_id),
            "assistant_id": self._assistant(found),
            "thread_id": found.thread,
            "on_run_completed": _completion(found),
            "schedule": found.cron,
            "timezone": found.timezone,
            "end_time": _time(found.ends_at),
            "enabled": found.state is not Status.PAUSED,
            "next_run_date": _time(found.next_at),
            "created_at": shapes.time(found.created_at),
            "updated_at": shapes.time(found.updated_at),
            "metadata": sent.get("metadata") or {},
            "user_id": found.principal or None,
            "payload": sent,
        }


def _kept(found: Schedule) -> Mapping[str, Any]:
    kept: Any = restored(json.dumps(found.metadata)).get(shapes.KEPT_UNDER)
    return kept if isinstance(kept, dict) else {}


def said_of(found: Schedule) -> Mapping[str, Any]:
    """Return the metadata that a client gave a cron."""
    sent: Any = _kept(found).get(_CRON) or {}
    said: Mapping[str, Any] = sent.get("metadata") or {}
    return said


def _completion(found: Schedule) -> str | None:
    if found.thread is not None:
        return None
    return "keep" if found.passes_after is None else "delete"


def _lasting(found: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What was said by headers when the cron was made holds, but not what followed from another strategy."""
    return {
        name: value
        for name, value in found.policy.items()
        if name != "on_torn" or "multitask_strategy" not in changes
    }


def _matches(one: dict[str, Any], wanted: CronSearch, assistant_id: str | None, thread: str | None) -> bool:
    return (
        assistant_id in (None, one["assistant_id"])
        and thread in (None, one["thread_id"])
        and wanted.enabled in (None, one["enabled"])
        and all(
            name in one["metadata"] and one["metadata"][name] == value
            for name, value in (wanted.metadata or {}).items()
        )
    )


def _order(value: str | None) -> tuple[bool, str]:
    """What has none goes last, newest first."""
    return value is not None, value or ""


def _seconds(moment: datetime | None) -> float | None:
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else shapes.time(seconds)
