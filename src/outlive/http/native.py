"""Outlive's own HTTP interface, as a FastAPI router that any application can include.

Decides routes, status codes and framing; what they do is ``runtime``'s.  A creation that carries a known
idempotency key or a ``Last-Event-ID`` attaches to the run, it never makes a second one: browsers and
libraries repeat a POST by themselves after a drop.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from outlive import commands, errors, presence, seams, subscription
from outlive.http import artifacts, auth, body, effects, health, problem, sse
from outlive.model import Admitted, Event, Run, StopOutcome, Submitted
from outlive.policy import OnBusy, OnDisconnect, RunPolicy
from outlive.principal import NOBODY, Principal
from outlive.runtime import Outlive
from outlive.states import State

BODY_LIMIT = 4 * 1024 * 1024
ROTATE_SECONDS = 55.0
PAGE = 1000
PIECE_BYTES = 32 * 1024
"""About how much of a stream is handed to the server at once."""
_KEY = "Idempotency-Key"
_CURSOR = "Last-Event-ID"


class NewRun(pydantic.BaseModel):
    """The body of a creation."""

    model_config = pydantic.ConfigDict(extra="forbid")

    agent: str = pydantic.Field(min_length=1, max_length=commands.LONGEST_NAME)
    input: Any = None
    thread: str | None = pydantic.Field(default=None, min_length=1, max_length=commands.LONGEST_NAME)
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)
    on_disconnect: OnDisconnect | None = None
    on_busy: OnBusy | None = None
    not_before: float | None = pydantic.Field(default=None, strict=True, allow_inf_nan=False, ge=0, le=1e11)

    def policy(self, declared: RunPolicy) -> RunPolicy:
        """Return the agent's declared policy with what this request changes."""
        asked = {"on_disconnect": self.on_disconnect, "on_busy": self.on_busy}
        return declared.but(**{name: value for name, value in asked.items() if value is not None})


def router(
    outlive: Outlive,
    *,
    tenant: auth.Dependency | None = None,
    principal: auth.Dependency | None = None,
    body_limit: int = BODY_LIMIT,
    rotate: float | None = ROTATE_SECONDS,
) -> APIRouter:
    """Return a router over ``outlive``.

    ``principal``, or ``tenant``, is a FastAPI dependency that authenticates the request and returns a
    ``Principal`` or a tenant's name; whatever it raises is the answer, and a request that it gives neither is
    refused.  ``api_keys`` and ``tokens`` make such dependencies.  Without one nobody is authenticated.
    ``body_limit`` is in bytes; ``rotate`` is after how many seconds a GET stream ends with a hint to connect
    again.

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

    native = _Native(outlive, body_limit, rotate)
    routes = health.routes(outlive)
    scoped = APIRouter(route_class=problem.ProblemRoute, dependencies=[Depends(authenticate)])
    scoped.post("/runs", status_code=201, openapi_extra=_schema(NewRun))(native.create)
    scoped.post("/runs/{run_id}/stop")(native.stop)
    problem.readable(scoped, "/runs", native.index)
    problem.readable(scoped, "/runs/{run_id}", native.read)
    problem.readable(scoped, "/runs/{run_id}/events", native.events)
    problem.readable(scoped, "/threads/{thread:path}", native.thread)  # a thread's name may hold slashes
    effects.add(scoped, outlive)
    artifacts.add(scoped, outlive)
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
        _only_one(request, _KEY)
        _only_one(request, _CURSOR)
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
            raise errors.InvalidCursor("Last-Event-ID on a creation must name its run.", field=_CURSOR)
        run = await self.outlive.run(named, tenant=_tenant(request))
        after = _position(run, cursor, _CURSOR)
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
        if _at_the_end(run, after):
            return Response(status_code=204, headers=headers)
        seen_as = viewer if fresh else None
        return stream(
            self.outlive, run, after=after, viewer=seen_as, headers=headers, principal=_who(request)
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
        """Read the record of a run."""
        run = await self.outlive.run(run_id, tenant=_tenant(request))
        return body.Json(run.public() | await effects.of_run(self.outlive, run))

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
        _only_one(request, _CURSOR)
        tenant = _tenant(request)
        run = await self.outlive.run(run_id, tenant=tenant)
        cursor, place = (last_event_id, _CURSOR) if last_event_id else (after, "after")
        position = 0 if cursor is None else _position(run, cursor, place)
        if not _wants_events(request, default=True):
            page = await self.outlive.events(run_id, after=position, limit=limit, tenant=tenant)
            return body.Json({"run_id": run_id, "events": [_shown(event) for event in page]})
        where = request.url.path
        headers = {"Location": where, "Content-Location": where.removesuffix("/events")}
        if _at_the_end(run, position):
            return Response(status_code=204, headers=headers)
        return stream(
            self.outlive, run, after=position, rotate=self.rotate, headers=headers, principal=_who(request)
        )

    async def thread(self, request: Request, thread: str) -> Response:
        """Read a thread: its live runs, if any, and its newest runs."""
        tenant = _tenant(request)
        found = await self.outlive.thread(thread, tenant=tenant)
        recent = await self.outlive.runs(tenant=tenant, thread=thread)
        live = [run.run_id for run in recent if not run.state.terminal]
        shown = {"thread": found.thread, "created_at": found.created_at, "last_seq": found.last_seq}
        shown |= await effects.of_thread(self.outlive, found)
        return body.Json(shown | {"live": live, "runs": [run.public() for run in recent]})


def stream(
    outlive: Outlive,
    run: Run | Submitted,
    *,
    after: int | str | None = None,
    viewer: str | None = None,
    rotate: float | None = None,
    headers: Mapping[str, str] | None = None,
    principal: Principal = NOBODY,
) -> sse.EventStream:
    """Return a response that streams a run's events to its end, for any handler of yours.

    The handler has authenticated its caller, and read or submitted ``run`` with the caller's tenant.  The
    response names the run in ``Outlive-Run`` and, given what ``submit`` returned, how it came to be this run
    in ``Outlive-Admitted``; ``headers`` are added.
    ``after`` is where to go on: a seq, or the text of ``Last-Event-ID``; nothing or "" is the start, and so
    is a cursor of the run that this one continues.  While the stream is open the run counts as watched;
    ``viewer`` names the viewer that a submit of this very run recorded.  ``rotate`` ends the stream with a
    hint to connect again after so many seconds.  It also ends so within seconds of the ``principal``'s
    credentials.

    Raises ``InvalidCursor``.
    """
    told = dict(headers or {})
    if isinstance(run, Submitted):
        told["Outlive-Admitted"] = run.admitted.value
        run = run.run
    told["Outlive-Run"] = run.run_id
    position = _position(run, str(after), _CURSOR) if after and not _of_the_one_before(run, after) else 0
    present = presence.Viewer(name=viewer or seams.new_id(), run_id=run.run_id, seen=position)

    ending = outlive.shutdown if principal.lasting else auth.Ending(outlive.shutdown)

    async def closed(how: sse.Close) -> None:
        if how is not sse.Close.HEAD:  # it never joined
            thrown_out = how is sse.Close.SHUTDOWN and not outlive.shutdown.is_set()
            left = presence.Left.DISCONNECT if thrown_out else _LEFT.get(how, presence.Left.OURS)
            outlive.presence.leave(present, left)

    frames = _frames(outlive, present, recorded=viewer is not None)
    return sse.EventStream(
        frames if principal.lasting else auth.guarded(frames, principal, ending),
        shutdown=ending,
        rotate_after=rotate,
        on_close=closed,
        headers=told,
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
    async with aclosing(subscription.looks(outlive.store, present.run_id, after=present.seen)) as looks:
        async for look in looks:
            for piece, seen in look.once(_pieces):
                yield piece
                present.seen = seen


def _pieces(events: Sequence[Event]) -> list[tuple[bytes, int]]:
    """Frame events and join them to what is sent at once, each with the last seq in it.

    A write for each would cost more than all else about an event.
    """
    pieces: list[tuple[bytes, int]] = []
    frames: list[bytes] = []
    size = 0
    for event in events:
        frames.append(frame(event))
        size += len(frames[-1])
        if size >= PIECE_BYTES or event is events[-1]:
            pieces.append((b"".join(frames), event.seq))
            frames, size = [], 0
    return pieces


def frame(event: Event) -> bytes:
    """Return an event as the bytes of one server-sent event: its id is its cursor."""
    data = f'{{"epoch":{event.epoch},"mode":{_quoted(event.mode)},"data":{event.payload}}}'
    if data.isascii() and "\n" not in data and "\r" not in data:  # as everything is that we write ourselves
        return f"event: {event.kind.value}\ndata: {data}\nid: {event.cursor}\n\n".encode("ascii")
    return sse.frame(data=data, id=event.cursor, event=event.kind.value)


@functools.lru_cache(maxsize=1024)
def _quoted(mode: str | None) -> str:
    return json.dumps(mode)


def _shown(event: Event) -> dict[str, Any]:
    return {
        "id": event.cursor,
        "seq": event.seq,
        "epoch": event.epoch,
        "kind": event.kind.value,
        "mode": event.mode,
        "data": event.data,
    }


def _position(run: Run, cursor: str, place: str) -> int:
    """Read a client's cursor; the error names the ``place`` where the client put it."""
    try:
        after = subscription.parse_cursor(cursor, run.run_id)
        subscription.check_cursor(run, after)
    except errors.InvalidCursor as failure:
        failure.field = place
        raise
    return after


def _of_the_one_before(run: Run, after: int | str) -> bool:
    return run.continues is not None and str(after).strip().rpartition(":")[0] == run.continues


def _at_the_end(run: Run, after: int) -> bool:
    """True if nothing will ever follow: clients come back for more unless a 204 tells them."""
    return run.state.terminal and after == run.last_seq


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
