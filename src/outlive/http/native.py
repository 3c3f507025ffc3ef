"""Outlive's own HTTP interface, as a FastAPI router that any application can include.

Decides routes, status codes and framing; what they do is ``runtime``'s.  A creation that carries a known
idempotency key or a ``Last-Event-ID`` attaches to the run, it never makes a second one: browsers and
libraries repeat a POST by themselves after a drop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from outlive import addresses, commands, errors, seams
from outlive.http import (
    artifacts,
    auth,
    body,
    effects,
    health,
    notifications,
    problem,
    schedules,
    streaming,
    threads,
)
from outlive.model import Admitted, Run, StopOutcome
from outlive.policy import OnBusy, OnDisconnect, OnTorn, RunPolicy
from outlive.principal import Principal
from outlive.runtime import Outlive
from outlive.states import State

BODY_LIMIT = 4 * 1024 * 1024
PAGE = 1000
_KEY = "Idempotency-Key"


class NewRun(pydantic.BaseModel):
    """The body of a creation."""

    model_config = pydantic.ConfigDict(extra="forbid")

    agent: str = pydantic.Field(min_length=1, max_length=commands.LONGEST_NAME)
    input: Any = None
    thread: str | None = pydantic.Field(default=None, min_length=1, max_length=commands.LONGEST_NAME)
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)
    on_disconnect: OnDisconnect | None = None
    on_busy: OnBusy | None = None
    on_torn: OnTorn | None = None
    not_before: float | None = pydantic.Field(default=None, strict=True, allow_inf_nan=False, ge=0, le=1e11)
    webhook: str | None = pydantic.Field(default=None, max_length=addresses.LONGEST_URL)

    def policy(self, declared: RunPolicy) -> RunPolicy:
        """Return the agent's declared policy with what this request changes."""
        asked = {"on_disconnect": self.on_disconnect, "on_busy": self.on_busy, "on_torn": self.on_torn}
        return declared.but(**{name: value for name, value in asked.items() if value is not None})


def router(
    outlive: Outlive,
    *,
    tenant: auth.Dependency | None = None,
    principal: auth.Dependency | None = None,
    body_limit: int = BODY_LIMIT,
    rotate: float | None = streaming.ROTATE_SECONDS,
    heartbeat: float | None = streaming.HEARTBEAT_SECONDS,
) -> APIRouter:
    """Return a router over ``outlive``.

    ``principal``, or ``tenant``, is a FastAPI dependency that authenticates the request and returns a
    ``Principal`` or a tenant's name; whatever it raises is the answer, and a request that it gives neither is
    refused.  ``api_keys`` and ``tokens`` make such dependencies.  Without one nobody is authenticated.
    ``body_limit`` is in bytes; ``rotate`` is after how many seconds a GET stream ends with a hint to connect
    again, ``heartbeat`` after how many without an event a stream says that it lives (None: never).

    Raises ``Misconfigured`` for both.
    """
    if tenant is not None and principal is not None:
        raise errors.Misconfigured("The router has a tenant and a principal.", hint="Give one of them.")

    async def authenticate(
        request: Request, found: Any = Depends(principal or tenant or auth.nobody)
    ) -> None:
        who = auth.read(found)
        auth.check_scope(who, request.method)
        request.state.outlive_principal = who
        request.state.outlive_tenant = who.tenant

    native = _Native(outlive, body_limit, rotate, heartbeat)
    routes = health.routes(outlive)
    scoped = APIRouter(route_class=problem.ProblemRoute, dependencies=[Depends(authenticate)])
    scoped.post("/runs", status_code=201, openapi_extra=_schema(NewRun))(native.create)
    scoped.post("/runs/{run_id}/stop")(native.stop)
    problem.readable(scoped, "/runs", native.index)
    problem.readable(scoped, "/runs/{run_id}", native.read)
    problem.readable(scoped, "/runs/{run_id}/events", native.events)
    problem.readable(scoped, "/runs/{run_id}/events/{seq}", native.event)
    problem.readable(scoped, "/threads/{thread:path}/events", native.thread_events)
    effects.add(scoped, outlive)
    artifacts.add(scoped, outlive)
    notifications.add(scoped, outlive)
    schedules.add(scoped, outlive)
    threads.add(scoped, outlive)
    routes.include_router(scoped)
    return routes


@dataclass(frozen=True, slots=True)
class _Native:
    """The handlers.  Each has the tenant from the router's dependency."""

    outlive: Outlive
    body_limit: int
    rotate: float | None
    heartbeat: float | None

    async def create(
        self,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Make a run, or attach to the one that the key or the cursor names."""
        _only_one(request, _KEY)
        _only_one(request, streaming.CURSOR)
        if last_event_id:
            return await self._attach(request, last_event_id)
        _check_key(idempotency_key)
        who = _who(request)
        new = await self._read(request)
        viewer = seams.new_id() if _wants_events(request) else None
        try:
            submitted = await self.outlive.submit(
                new.agent,
                new.input,
                thread=new.thread,
                key=idempotency_key,
                tenant=who.tenant,
                principal=who.id,
                policy=new.policy(self.outlive.registry[new.agent].policy),
                not_before=new.not_before,
                metadata=new.metadata,
                viewer=viewer,
                webhook=new.webhook,
                traceparent=request.headers.get("traceparent"),
            )
        except errors.KeyConflict as failure:
            failure.field = _KEY
            raise
        return self._answer(request, submitted.run, submitted.admitted, viewer)

    async def _read(self, request: Request) -> NewRun:
        """An agent may have a lesser bound than the service, and which it is stands in the body."""
        limits = self.outlive.limits
        new, size = await body.read(request, NewRun, limits.request_bytes(None, self.body_limit))
        body.check_size(size, limits.request_bytes(new.agent, self.body_limit))
        return new

    async def _attach(self, request: Request, cursor: str) -> Response:
        named, _, _ = cursor.strip().rpartition(":")
        if not named:
            raise errors.InvalidCursor(
                "Last-Event-ID on a creation must name its run.", field=streaming.CURSOR
            )
        run = await self.outlive.run(named, tenant=_tenant(request))
        after = streaming.position(run, cursor, streaming.CURSOR)
        await self.outlive.check_kept(run, after)
        viewer = seams.new_id() if _wants_events(request) else None
        return self._answer(request, run, Admitted.ATTACHED, viewer, after)

    def _answer(
        self, request: Request, run: Run, admitted: Admitted, viewer: str | None, after: int = 0
    ) -> Response:
        where = f"{request.url.path.rstrip('/')}/{run.run_id}"
        headers = {"Content-Location": where, "Outlive-Admitted": admitted.value}
        fresh = admitted in (Admitted.CREATED, Admitted.CONTINUED)
        if viewer is None:
            shown = run.public() | {"admitted": admitted.value}
            return body.Json(shown, 201 if fresh else 200, headers | {"Location": where})
        headers["Location"] = f"{where}/events"
        if streaming.at_the_end(run, after):
            return Response(status_code=204, headers=headers)
        seen_as = viewer if fresh else None
        return streaming.stream(
            self.outlive,
            run,
            after=after,
            viewer=seen_as,
            heartbeat=self.heartbeat,
            headers=headers,
            principal=_who(request),
        )

    async def index(
        self,
        request: Request,
        *,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
        before: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")] = None,
        agent: Annotated[str | None, Query(min_length=1)] = None,
        state: State | None = None,
        thread: Annotated[str | None, Query(min_length=1)] = None,
    ) -> Response:
        """List runs, newest first."""
        found = await self.outlive.runs(
            tenant=_tenant(request), limit=limit, before=before, agent=agent, state=state, thread=thread
        )
        more = found[-1].run_id if len(found) == limit else None
        return body.Json({"runs": [run.public() for run in found], "before": more})

    async def read(self, request: Request, run_id: str) -> Response:
        """Read the record of a run, and who watched it."""
        run = await self.outlive.run(run_id, tenant=_tenant(request))
        watched = (await self.outlive.evidence(run_id)).public(run)
        return body.Json(run.public() | await effects.of_run(self.outlive, run) | {"watched": watched})

    async def stop(self, request: Request, run_id: str) -> Response:
        """Ask a run to stop; 202 while its executor has yet to let go."""
        answer = await self.outlive.stop(run_id, tenant=_tenant(request))
        status = 202 if answer.outcome is StopOutcome.REQUESTED else 200
        return body.Json({"outcome": answer.outcome.value, "run": answer.run.public()}, status)

    async def events(
        self,
        request: Request,
        run_id: str,
        *,
        after: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    ) -> Response:
        """Stream a run's events after the cursor to its end; 204 if the cursor stands at the end."""
        _only_one(request, streaming.CURSOR)
        tenant = _tenant(request)
        run = await self.outlive.run(run_id, tenant=tenant)
        cursor, place = (last_event_id, streaming.CURSOR) if last_event_id else (after, "after")
        position = 0 if cursor is None else streaming.position(run, cursor, place)
        if not _wants_events(request, default=True):
            page = await self.outlive.events(run_id, after=position, limit=limit, tenant=tenant)
            more = bool(page) and page[-1].seq < run.last_seq
            shown = [streaming.shown(event) for event in page]
            return body.Json({"run_id": run_id, "events": shown, "more": more})
        await self.outlive.check_kept(run, position)
        where = request.url.path
        headers = {"Location": where, "Content-Location": where.removesuffix("/events")}
        if streaming.at_the_end(run, position):
            return Response(status_code=204, headers=headers)
        return streaming.stream(
            self.outlive,
            run,
            after=position,
            rotate=self.rotate,
            heartbeat=self.heartbeat,
            headers=headers,
            principal=_who(request),
        )

    async def event(
        self, request: Request, run_id: str, seq: Annotated[int, Path(ge=1, le=10**18)]
    ) -> Response:
        """Read one event of a run, whole, however large."""
        return body.Json(streaming.shown(await self.outlive.event(run_id, seq, tenant=_tenant(request))))

    async def thread_events(
        self,
        request: Request,
        thread: str,
        *,
        after: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    ) -> Response:
        """Stream the events of all runs of a thread after the cursor; it goes on when a run ends."""
        if _named_events(request):
            return await threads.Routes(self.outlive).read(request, f"{thread}/events")
        _only_one(request, streaming.CURSOR)
        cursor, place = (last_event_id, streaming.CURSOR) if last_event_id else (after, "after")
        streams = _wants_events(request, default=True)
        try:
            found = await self.outlive.thread(thread, tenant=_tenant(request))
        except errors.NotFound:
            if cursor is not None or not _wants_events(request):  # only who asks for a stream waits for one
                raise
            return self._coming(request, thread)
        position = 0 if cursor is None else streaming.thread_position(found, cursor, place)
        if not streams:
            page = await self.outlive.thread_events(found, after=position, limit=limit)
            shown = [streaming.thread_shown(event, found.thread_id) for event in page]
            more = bool(page) and page[-1].thread_seq < found.last_seq
            return body.Json({"thread": found.thread, "events": shown, "more": more})
        await self.outlive.check_thread_kept(found, position)
        return streaming.thread_stream(
            self.outlive,
            found,
            after=position,
            rotate=self.rotate,
            heartbeat=self.heartbeat,
            headers=_where(request),
            principal=_who(request),
        )

    def _coming(self, request: Request, thread: str) -> Response:
        """A client may follow a thread before it sends the first message there."""
        return streaming.coming_thread_stream(
            self.outlive,
            thread,
            rotate=self.rotate,
            heartbeat=self.heartbeat,
            headers=_where(request),
            principal=_who(request),
        )


def _where(request: Request) -> dict[str, str]:
    path = request.url.path
    return {"Location": path, "Content-Location": path.removesuffix("/events")}


def _named_events(request: Request) -> bool:
    """Say whether ``/events`` at the end of the path is the end of a thread's name, sent as one."""
    raw = request.scope.get("raw_path")
    return raw is not None and not raw.endswith(b"/events")


def _check_key(key: str | None) -> None:
    commands.check_name(_KEY, key)
    if key == "":
        raise errors.InvalidInput(f"{_KEY} is empty.", field=_KEY)


def _only_one(request: Request, header: str) -> None:
    if len(request.headers.getlist(header)) > 1:
        raise errors.InvalidInput(f"{header} was sent more than once.", field=header)


def _who(request: Request) -> Principal:
    who: Principal = request.state.outlive_principal
    return who


def _tenant(request: Request) -> str:
    return _who(request).tenant


def _wants_events(request: Request, *, default: bool = False) -> bool:
    accepted = request.headers.get("accept", "*/*")
    if "text/event-stream" in accepted:
        return True
    return default and "application/json" not in accepted


def _schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
