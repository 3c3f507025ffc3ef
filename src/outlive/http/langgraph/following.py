"""The stream of a thread: one connection that stays open, and each run as its own stream has it.

Decides what each mode shows.  A run's end is told by ``metadata`` and not by ``end``, which clients take for
the end of the connection.  Ids are cursors of the thread's own sequence.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from outlive import errors, presence, seams, subscription
from outlive.http import sse, streaming
from outlive.http.langgraph import channels, frames, streams, wire
from outlive.http.langgraph.frames import Frames, Wanted
from outlive.http.langgraph.plane import Plane
from outlive.model import Event, EventKind, Run, Thread
from outlive.states import Reason, State

MODES = frozenset({"run_modes", "lifecycle", "state_update"})
_START = frozenset({"-1", "-", "0"})


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the route."""
    here = _Following(plane)
    routes.get("/threads/{thread_id}/stream")(here.stream)


class _Following:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def stream(self, request: Request, thread_id: str) -> Response:
        """Stream what happens on a thread from now on, or after a cursor."""
        modes = frozenset(wire.many(request, "stream_mode", "stream_modes") or ["run_modes"])
        if not modes <= MODES:
            raise errors.InvalidInput(f"stream_mode is of: {', '.join(sorted(MODES))}.", field="stream_mode")
        thread = (await self._plane.thread(request, thread_id)).thread
        seen, part = _cursor(request, thread)
        present = presence.Viewer(name=seams.new_id(), run_id="", seen=seen, thread_id=thread.thread_id)
        again = "&".join(f"stream_mode={mode}" for mode in sorted(modes))
        return streaming.opened(
            self._plane.outlive,
            present,
            _frames(self._plane, present, modes, part),
            wire.who(request),
            rotate=None,
            heartbeat=self._plane.heartbeat,
            headers={"Location": f"{request.url.path}?{again}"},
            error_frame=streams.error_frame,
        )


def _cursor(request: Request, thread: Thread) -> tuple[int, int]:
    """Return the last event that a client has seen whole, and how many frames of the next one."""
    given = request.headers.get(streaming.CURSOR) or request.query_params.get("last_event_id")
    if not given:
        return thread.last_seq, 0
    if given in _START:
        return 0, 0
    text, dot, place = given.partition(".")
    seen = streaming.thread_position(thread, text, streaming.CURSOR)
    if not dot:
        return seen, 0
    if not (seen and place.isascii() and place.isdigit() and 0 < len(place) < 4):
        raise errors.InvalidCursor("This is no cursor of this thread.", field=streaming.CURSOR)
    return seen - 1, int(place)


async def _frames(
    plane: Plane, present: presence.Viewer, modes: frozenset[str], part: int
) -> AsyncGenerator[bytes, None]:
    outlive, thread_id = plane.outlive, str(present.thread_id)
    await outlive.presence.join(present)
    after, shown = present.seen, _Shown(plane=plane, modes=modes)
    start = await channels.beginning(outlive, thread_id, after)
    async with aclosing(subscription.thread_looks(outlive.store, thread_id, after=start)) as looks:
        async for look in looks:
            for event in await streams.whole(outlive, look.events):
                framed = await shown.of(event)
                if event.thread_seq > after:
                    skip = part if event.thread_seq == after + 1 else 0
                    for piece in _numbered(framed, thread_id, event.thread_seq, skip):
                        yield piece
                    present.seen = event.thread_seq


def _numbered(framed: list[tuple[str, str]], thread_id: str, seq: int, skip: int) -> Iterator[bytes]:
    cursor = subscription.thread_cursor(thread_id, seq)
    for place, (name, data) in enumerate(framed, start=1):
        if place > skip:
            yield sse.frame(event=name, data=data, id=cursor if place == len(framed) else f"{cursor}.{place}")


@dataclass(kw_only=True, slots=True)
class _Shown:
    """What the events of a thread's runs become, given in their order."""

    plane: Plane
    modes: frozenset[str]
    _runs: dict[str, Frames | None] = field(default_factory=dict)

    async def of(self, event: Event) -> list[tuple[str, str]]:
        """Return the names and data of an event's frames; none of a run that these clients do not know."""
        if event.run_id not in self._runs:
            run = await self.plane.outlive.run(event.run_id, tenant=None)
            known = self.plane.shows(run)
            self._runs[event.run_id] = (
                Frames(run_id=run.run_id, thread=(run.thread_id, run.thread), wanted=self._wanted(run))
                if known
                else None
            )
        made = self._runs[event.run_id]
        if event.kind is EventKind.END:
            del self._runs[event.run_id]
        if made is None:
            return []
        begins_and_ends = bool(self.modes & {"run_modes", "lifecycle"})
        hidden = {"end"} if begins_and_ends else {"end", "metadata", "error"}
        framed = [one for one in made.frames(event) if one[0] not in hidden]
        if event.kind is EventKind.END and begins_and_ends:
            framed.append(("metadata", _done(event)))
        return framed

    def _wanted(self, run: Run) -> Wanted:
        if "run_modes" in self.modes:
            asked = streams.wanted_of(run)
            more = {"values"} if "state_update" in self.modes else set()
            return Wanted(modes=asked.modes | more, subgraphs=asked.subgraphs)
        return Wanted(modes=frozenset({"values"} if "state_update" in self.modes else ()))


def _done(event: Event) -> str:
    verdict = event.data
    reason = Reason(verdict["reason"]) if verdict.get("reason") else None
    told = {"status": "run_done", "run_id": wire.shown_id(event.run_id)}
    return json.dumps({**told, "run_status": frames.ended_as(State(verdict["state"]), reason)})
