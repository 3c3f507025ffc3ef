"""Runs: made, followed, waited for, read.

A run that a client makes is never a second one because its connection broke: where to take it up again is
told with the first byte, and every event says where it stands.
"""

from __future__ import annotations

import urllib.parse
from typing import Any, get_args

from fastapi import APIRouter, Request, Response

from outlive import errors, seams
from outlive.http import body, streaming
from outlive.http.langgraph import bodies, requests, shapes, streams, wire
from outlive.http.langgraph.frames import Wanted
from outlive.http.langgraph.plane import Plane
from outlive.model import Admitted, Run, Submitted
from outlive.states import State
from outlive.store import searching

AGAIN = "again"
"""The mark of a stream that is taken up again: without a cursor then, something on the way has dropped it."""
_ONCE = frozenset({AGAIN, "last_event_id"})
_STATES = {
    "pending": (State.QUEUED,),
    "running": (State.RUNNING,),
    "success": (State.SUCCEEDED, State.WAITING),
    "error": (State.FAILED, State.ABANDONED),
    "interrupted": (State.STOPPED,),
    "timeout": (State.STOPPED, State.FAILED),
}

_MODES = frozenset(get_args(bodies.Mode))


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes; those without a thread give a run a thread of its own."""
    here = _Runs(plane)
    routes.post("/runs/batch")(here.batch)
    for prefix in ("/threads/{thread_id}/runs", "/runs"):
        routes.post(prefix)(here.create)
        routes.post(f"{prefix}/stream")(here.stream)
        routes.post(f"{prefix}/wait")(here.wait)
        routes.get(prefix + "/{run_id}/stream")(here.join_stream)
        routes.get(prefix + "/{run_id}/join")(here.join)
        routes.get(prefix + "/{run_id}")(here.read)
    routes.get("/threads/{thread_id}/runs")(here.index)


class _Runs:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._outlive = plane.outlive

    # ------------------------------------------------------------ making

    async def create(self, request: Request, thread_id: str | None = None) -> Response:
        """Make a run and return its record at once."""
        new = await self._plane.read(request, bodies.NewRun)
        made = await self._submit(request, new, thread_id)
        return body.Json(self._shown(made.run), headers=self._headers(made))

    async def batch(self, request: Request) -> Response:
        """Make several runs, each on a thread of its own."""
        several = await self._plane.read(request, list[bodies.NewRun])
        made = [await self._submit(request, new, None) for new in several]
        return body.Json([self._shown(one.run) for one in made])

    async def stream(self, request: Request, thread_id: str | None = None) -> Response:
        """Make a run and stream its events."""
        new = await self._plane.read(request, bodies.NewRun)
        viewer = seams.new_id()
        made = await self._submit(request, new, thread_id, viewer)
        return streams.stream(
            self._plane,
            made.run,
            Wanted(modes=frozenset(new.modes), subgraphs=new.stream_subgraphs),
            wire.who(request),
            viewer=viewer if _is_fresh(made) else None,
            headers=self._headers(made, "stream"),
        )

    async def wait(self, request: Request, thread_id: str | None = None) -> Response:
        """Make a run and return its final values."""
        new = await self._plane.read(request, bodies.NewRun)
        viewer = seams.new_id()
        made = await self._submit(request, new, thread_id, viewer)
        return streams.wait(
            self._plane,
            made.run,
            wire.who(request),
            viewer=viewer if _is_fresh(made) else None,
            headers=self._headers(made, "join"),
        )

    async def _submit(
        self, request: Request, new: bodies.NewRun, thread_id: str | None, viewer: str | None = None
    ) -> Submitted:
        thread = None if thread_id is None else wire.thread_name(thread_id)
        return await requests.submit(self._plane, request, new, thread=thread, viewer=viewer)

    def _headers(self, made: Submitted, follow: str | None = None) -> dict[str, str]:
        """Where the run is, without any prefix under which the application may be mounted."""
        where = f"/threads/{made.run.thread}/runs/{wire.shown_id(made.run.run_id)}"
        headers = {"Content-Location": where, "Outlive-Admitted": made.admitted.value}
        marked = f"?{AGAIN}=true" if follow == "stream" else ""
        return headers if follow is None else {**headers, "Location": f"{where}/{follow}{marked}"}

    def _shown(self, run: Run) -> dict[str, Any]:
        return shapes.run(run, self._plane.own_id(run.agent))

    # ------------------------------------------------------------ observing

    async def read(self, request: Request, run_id: str, thread_id: str | None = None) -> Response:
        """Return a run's record."""
        return body.Json(self._shown(await self._plane.run(request, run_id, thread_id)))

    async def index(self, request: Request, thread_id: str) -> Response:
        """Return a thread's runs, newest first."""
        tenant, thread = wire.tenant(request), wire.thread_name(thread_id)
        await self._outlive.store.read(searching.find(tenant, thread))
        limit = wire.number(request, "limit", 10, least=1)
        offset = wire.number(request, "offset", 0, most=10**6)
        asked = request.query_params.get("status")
        if asked is not None and asked not in _STATES:
            raise errors.InvalidInput(f"status is one of: {', '.join(_STATES)}.", field="status")
        found = await self._matching(tenant, thread, asked, offset + limit)
        select = wire.many(request, "select")
        return body.Json([shapes.selected(self._shown(run), select) for run in found[offset:]])

    async def _matching(self, tenant: str, thread: str, status: str | None, most: int) -> list[Run]:
        found: list[Run] = []
        before: str | None = None
        while len(found) < most:
            page = await self._outlive.runs(tenant=tenant, thread=thread, before=before, limit=1000)
            shown = filter(self._plane.shows, page)
            found += [run for run in shown if status is None or shapes.status(run) == status]
            if len(page) < 1000:
                break
            before = page[-1].run_id
        return found[:most]

    async def join_stream(self, request: Request, run_id: str, thread_id: str | None = None) -> Response:
        """Stream a run's events after a cursor, or all of them."""
        run = await self._plane.run(request, run_id, thread_id)
        after, part = _cursor(request, run)
        await self._outlive.check_kept(run, after)
        return streams.stream(
            self._plane,
            run,
            _wanted(request, run),
            wire.who(request),
            after=after,
            part=part,
            repeats=wire.flag(request, AGAIN) and _given(request) is None,
            viewer=await self._tied(request, run),
            headers={"Location": _again(request)},
        )

    async def _tied(self, request: Request, run: Run) -> str | None:
        tied = wire.flag(request, "cancel_on_disconnect") and not run.state.terminal
        return await streams.tie(self._plane, run) if tied else None

    async def join(self, request: Request, run_id: str, thread_id: str | None = None) -> Response:
        """Return a run's final values once it has ended."""
        run = await self._plane.run(request, run_id, thread_id)
        return streams.wait(
            self._plane,
            run,
            wire.who(request),
            viewer=await self._tied(request, run),
            headers={"Location": request.url.path},
        )


def _is_fresh(made: Submitted) -> bool:
    return made.admitted in (Admitted.CREATED, Admitted.CONTINUED)


def _cursor(request: Request, run: Run) -> tuple[int, int]:
    """Return the last event that a client has seen whole, and how many frames of the next one.

    Raises ``InvalidCursor``.

    The query parameter is for clients behind proxies that drop the header.
    """
    given = _given(request)
    if given in (None, "-1", "-", "0"):
        return 0, 0
    text, dot, place = str(given).partition(".")
    seen = streaming.position(run, text, streaming.CURSOR)
    if not dot:
        return seen, 0
    if not (place.isascii() and place.isdigit() and 0 < len(place) < 4):
        raise errors.InvalidCursor("This is no cursor of this run.", field=streaming.CURSOR)
    return seen - 1, int(place)


def _given(request: Request) -> str | None:
    return request.headers.get(streaming.CURSOR) or request.query_params.get("last_event_id") or None


def _again(request: Request) -> str:
    """Return where a stream is taken up again: what was asked for once counts then as well."""
    asked = [(name, value) for name, value in request.query_params.multi_items() if name not in _ONCE]
    return f"{request.url.path}?{urllib.parse.urlencode([*asked, (AGAIN, 'true')])}"


def _wanted(request: Request, run: Run) -> Wanted:
    """What a join asks for; without a word of it, what the run was made with."""
    asked = shapes.kept(run).get("kwargs") or {}
    modes = wire.many(request, "stream_mode", "stream_modes")
    if unknown := set(modes or ()) - _MODES:
        raise errors.InvalidInput(
            f"stream_mode has no {body.shown(min(unknown))}; there are: {', '.join(sorted(_MODES))}.",
            field="stream_mode",
        )
    if not modes:
        first = asked.get("stream_mode") or ["values"]
        modes = [first] if isinstance(first, str) else first
    return Wanted(modes=frozenset(modes), subgraphs=bool(asked.get("stream_subgraphs", True)))
