"""Outlive's own HTTP interface, as a FastAPI router that any application can include.

Decides routes, status codes and framing; what they do is ``runtime``'s.  A creation that carries a known
idempotency key or a ``Last-Event-ID`` attaches to the run, it never makes a second one: browsers and
libraries repeat a POST by themselves after a drop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from outlive import errors, presence, seams, subscription
from outlive.http import body, problem, sse
from outlive.model import Admitted, Event, Run, StopOutcome
from outlive.policy import OnBusy, OnDisconnect, RunPolicy
from outlive.runtime import Outlive
from outlive.states import State

BODY_LIMIT = 4 * 1024 * 1024
ROTATE_SECONDS = 55.0
PAGE = 1000


class NewRun(pydantic.BaseModel):
    """The body of a creation."""

    model_config = pydantic.ConfigDict(extra="forbid")

    agent: str
    input: Any = None
    thread: str | None = None
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)
    on_disconnect: OnDisconnect | None = None
    on_busy: OnBusy | None = None
    not_before: float | None = pydantic.Field(default=None, allow_inf_nan=False, ge=0, le=1e11)

    def policy(self, declared: RunPolicy) -> RunPolicy:
        """Return the agent's declared policy with what this request changes."""
        asked = {"on_disconnect": self.on_disconnect, "on_busy": self.on_busy}
        return declared.but(**{name: value for name, value in asked.items() if value is not None})


def _nobody() -> str:
    return ""


def router(
    outlive: Outlive,
    *,
    tenant: Callable[..., Any] = _nobody,
    body_limit: int = BODY_LIMIT,
    rotate: float | None = ROTATE_SECONDS,
) -> APIRouter:
    """Return a router over ``outlive``.

    ``tenant`` is a FastAPI dependency that authenticates the request and returns the tenant's name; whatever
    it raises is the answer.  ``body_limit`` is in bytes; ``rotate`` is after how many seconds a GET stream
    ends with a hint to connect again.
    """

    async def authenticate(request: Request, name: Any = Depends(tenant)) -> None:
        request.state.tenant = name

    native = _Native(outlive, body_limit, rotate)
    routes = APIRouter(route_class=problem.ProblemRoute)
    scoped = APIRouter(route_class=problem.ProblemRoute, dependencies=[Depends(authenticate)])
    scoped.post("/runs", status_code=201, openapi_extra=_schema(NewRun))(native.create)
    scoped.get("/runs")(native.index)
    scoped.get("/runs/{run_id}")(native.read)
    scoped.post("/runs/{run_id}/stop")(native.stop)
    scoped.get("/runs/{run_id}/events")(native.events)
    scoped.get("/threads/{thread}")(native.thread)
    routes.get("/health", include_in_schema=False)(native.health)
    routes.get("/ready", include_in_schema=False)(native.ready)
    routes.include_router(scoped)
    return routes


@dataclass(frozen=True, slots=True)
class _Native:
    """The handlers.  Each has the tenant from the router's dependency."""

    outlive: Outlive
    body_limit: int
    rotate: float | None

    async def create(
        self,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Make a run, or attach to the one that the key or the cursor names."""
        if last_event_id:
            return await self._attach(request, last_event_id)
        new = await body.read(request, NewRun, self.body_limit)
        viewer = seams.new_id() if _wants_events(request) else None
        submitted = await self.outlive.submit(
            new.agent,
            new.input,
            thread=new.thread,
            key=idempotency_key,
            tenant=request.state.tenant,
            policy=new.policy(self.outlive.registry[new.agent].policy),
            not_before=new.not_before,
            metadata=new.metadata,
            viewer=viewer,
        )
        return self._answer(submitted.run, submitted.admitted, viewer)

    async def _attach(self, request: Request, cursor: str) -> Response:
        named, colon, _ = cursor.strip().rpartition(":")
        if not colon:
            raise errors.InvalidCursor(
                "Last-Event-ID on a creation must name its run.", field="Last-Event-ID"
            )
        run = await self.outlive.run(named, tenant=request.state.tenant)
        viewer = seams.new_id() if _wants_events(request) else None
        return self._answer(run, Admitted.ATTACHED, viewer, after=_cursor(run, cursor))

    def _answer(self, run: Run, admitted: Admitted, viewer: str | None, after: int = 0) -> Response:
        headers = _links(run) | {"Outlive-Admitted": admitted.value}
        fresh = admitted in (Admitted.CREATED, Admitted.CONTINUED)
        if viewer is not None:
            recorded = viewer if fresh else None
            return stream(self.outlive, run, after=after, viewer=recorded, headers=headers)
        return JSONResponse(run.public() | {"admitted": admitted.value}, 201 if fresh else 200, headers)

    async def index(
        self,
        request: Request,
        *,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
        before: str | None = None,
        agent: str | None = None,
        state: State | None = None,
        thread: str | None = None,
    ) -> Response:
        """List runs, newest first."""
        found = await self.outlive.runs(
            tenant=request.state.tenant, limit=limit, before=before, agent=agent, state=state, thread=thread
        )
        more = found[-1].run_id if len(found) == limit else None
        return JSONResponse({"runs": [run.public() for run in found], "before": more})

    async def read(self, request: Request, run_id: str) -> Response:
        """Read the record of a run."""
        return JSONResponse((await self.outlive.run(run_id, tenant=request.state.tenant)).public())

    async def stop(self, request: Request, run_id: str) -> Response:
        """Ask a run to stop; 202 while its executor has yet to let go."""
        answer = await self.outlive.stop(run_id, tenant=request.state.tenant)
        status = 202 if answer.outcome is StopOutcome.REQUESTED else 200
        return JSONResponse({"outcome": answer.outcome.value, "run": answer.run.public()}, status)

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
        tenant = request.state.tenant
        run = await self.outlive.run(run_id, tenant=tenant)
        cursor = _cursor(run, last_event_id or after)
        if not _wants_events(request, default=True):
            page = await self.outlive.events(run_id, after=cursor, limit=limit, tenant=tenant)
            return JSONResponse({"run_id": run_id, "events": [_shown(event) for event in page]})
        if run.state.terminal and cursor == run.last_seq:
            return Response(status_code=204)
        return stream(self.outlive, run, after=cursor, rotate=self.rotate)

    async def thread(self, request: Request, thread: str) -> Response:
        """Read a thread: its live runs, if any, and its newest runs."""
        tenant = request.state.tenant
        found = await self.outlive.thread(thread, tenant=tenant)
        recent = await self.outlive.runs(tenant=tenant, thread=thread)
        live = [run.run_id for run in recent if not run.state.terminal]
        shown = {"thread": found.thread, "created_at": found.created_at, "last_seq": found.last_seq}
        return JSONResponse(shown | {"live": live, "runs": [run.public() for run in recent]})

    async def health(self) -> Response:
        """Say that the process lives."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """Say whether runs are accepted now."""
        if not self.outlive.ready:
            raise errors.NotReady
        return JSONResponse({"status": "ready", "agents": list(self.outlive.registry.names)})


def stream(
    outlive: Outlive,
    run: Run,
    *,
    after: int = 0,
    viewer: str | None = None,
    rotate: float | None = None,
    headers: dict[str, str] | None = None,
) -> sse.EventStream:
    """Return a response that streams a run's events after ``after``, for any handler of yours.

    The handler has authenticated its caller and read ``run`` with the caller's tenant.  While the stream is
    open the run counts as watched; ``viewer`` names the viewer that a submit of this very run recorded.
    """
    present = presence.Viewer(name=viewer or seams.new_id(), run_id=run.run_id, seen=after)

    async def closed(how: sse.Close) -> None:
        outlive.presence.leave(present, _LEFT.get(how, presence.Left.OURS))

    return sse.EventStream(
        _frames(outlive, present, recorded=viewer is not None),
        shutdown=outlive.shutdown,
        rotate_after=rotate,
        on_close=closed,
        headers=_links(run) if headers is None else headers,
    )


_LEFT = {
    sse.Close.COMPLETE: presence.Left.END,
    sse.Close.DISCONNECT: presence.Left.DISCONNECT,
    sse.Close.CANCELLED: presence.Left.DISCONNECT,
}


async def _frames(
    outlive: Outlive, present: presence.Viewer, *, recorded: bool
) -> AsyncGenerator[bytes, None]:
    await outlive.presence.join(present, recorded=recorded)
    events = subscription.follow(outlive.store, present.run_id, after=present.seen)
    async with aclosing(events):
        async for event in events:
            yield frame(event)
            present.seen = event.seq


def frame(event: Event) -> bytes:
    """Return an event as the bytes of one server-sent event: its id is its cursor."""
    data = f'{{"epoch":{event.epoch},"mode":{json.dumps(event.mode)},"data":{event.payload}}}'
    return sse.frame(data=data, id=event.cursor, event=event.kind.value)


def _shown(event: Event) -> dict[str, Any]:
    return {
        "id": event.cursor,
        "seq": event.seq,
        "epoch": event.epoch,
        "kind": event.kind.value,
        "mode": event.mode,
        "data": event.data,
    }


def _cursor(run: Run, text: str | None) -> int:
    if text is None or not text.strip():
        return 0
    after = subscription.parse_cursor(text, run.run_id)
    subscription.check_cursor(run, after)
    return after


def _wants_events(request: Request, *, default: bool = False) -> bool:
    accepted = request.headers.get("accept", "*/*")
    if "text/event-stream" in accepted:
        return True
    return default and "application/json" not in accepted


def _links(run: Run) -> dict[str, str]:
    where = f"/runs/{run.run_id}"
    return {"Location": f"{where}/events", "Content-Location": where}


def _schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
