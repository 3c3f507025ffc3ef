"""The stream of a thread's events by channels: one connection, all runs, those to come as well.

Decides where a connection takes up the tape.  It stays open when a run ends, and may be opened before its
thread has a first run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import pydantic
from fastapi import APIRouter, Request, Response

from outlive import errors, presence, seams, subscription
from outlive.http import sse, streaming
from outlive.http.langgraph import streams, wire
from outlive.http.langgraph.plane import Plane
from outlive.http.langgraph.tape import CHANNELS, ROOM, Filter, Shown, Tape
from outlive.model import Event, EventKind, Thread
from outlive.runtime import Outlive
from outlive.store import reads, searching


class Subscription(wire.Body):
    """What a connection is to show."""

    channels: list[str] = pydantic.Field(min_length=1)
    namespaces: list[list[str]] | None = None
    depth: int | None = pydantic.Field(default=None, ge=0)
    since: int | None = pydantic.Field(default=None, ge=0)
    since_event_id: str | None = None

    def filter(self) -> Filter:
        """Return what passes; raises ``BadRequest`` for a channel that is none."""
        for name in self.channels:
            if name not in CHANNELS and not name.startswith("custom:"):
                known = ", ".join(sorted(CHANNELS))
                raise errors.BadRequest(
                    f"{name[:100]!r} is no channel.",
                    hint=f"The channels are {known}, and custom:<name>.",
                    field="channels",
                )
        wanted = self.namespaces or [[]]
        return Filter(
            channels=frozenset(self.channels),
            namespaces=tuple(tuple(one) for one in wanted),
            depth=self.depth,
        )


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the route."""
    here = _Channels(plane)
    routes.post("/threads/{thread_id}/stream/events")(here.stream)


class _Channels:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def stream(self, request: Request, thread_id: str) -> Response:
        """Stream what passes a filter, after a cursor, for ever."""
        wanted = await self._plane.read(request, Subscription)
        passes = wanted.filter()
        thread = await entered(
            self._plane, wire.tenant(request), wire.thread_name(thread_id), self._plane.of_new_thread(request)
        )
        since = _since(request, wanted)
        present = presence.Viewer(
            name=seams.new_id(), run_id="", seen=since // ROOM, thread_id=thread.thread_id
        )
        return streaming.opened(
            self._plane.outlive,
            present,
            _frames(self._plane, present, passes, since),
            wire.who(request),
            rotate=None,
            heartbeat=self._plane.heartbeat,
            headers={},
            error_frame=streams.error_frame,
        )


async def entered(plane: Plane, tenant: str, name: str, said: Mapping[str, Any]) -> Thread:
    """Return a thread; one that is not there yet is made: whoever asks means to use it."""
    store = plane.outlive.store
    try:
        return (await store.read(searching.find(tenant, name))).thread
    except errors.NotFound:
        await store.write(searching.make(seams.new_id(), tenant, name, said))
        return (await store.read(searching.find(tenant, name))).thread


def _since(request: Request, wanted: Subscription) -> int:
    """Return the number after which to go on.  Clients know it by three names."""
    if wanted.since is not None:
        return wanted.since
    given = (
        wanted.since_event_id
        or request.headers.get(streaming.CURSOR)
        or request.query_params.get("last_event_id")
    )
    if not given or given == "-1":
        return 0
    number = given.rpartition("-")[2]
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise errors.InvalidCursor("This is no cursor of a thread.", field=streaming.CURSOR)
    return int(number)


async def _frames(
    plane: Plane, present: presence.Viewer, passes: Filter, since: int
) -> AsyncGenerator[bytes, None]:
    await plane.outlive.presence.join(present)
    async with aclosing(follow(plane, str(present.thread_id), passes, since)) as shown:
        async for one, seen in shown:
            if one is not None:
                yield sse.frame(event=one.method, data=json.dumps(one.frame()), id=str(one.seq))
            present.seen = seen


async def follow(
    plane: Plane, thread_id: str, passes: Filter, since: int
) -> AsyncGenerator[tuple[Shown | None, int], None]:
    """Yield a thread's events that pass, numbered above ``since``, and how far the thread has been read."""
    outlive, tapes = plane.outlive, _Tapes(plane)
    start = await beginning(outlive, thread_id, since // ROOM)
    async with aclosing(subscription.thread_looks(outlive.store, thread_id, after=start)) as looks:
        async for look in looks:
            for event in await streams.whole(outlive, look.events):
                for one in await tapes.of(event):
                    if one.seq > since and passes.passes(one):
                        yield one, event.thread_seq
            yield None, look.events[-1].thread_seq


async def beginning(outlive: Outlive, thread_id: str, seen: int) -> int:
    """Return where to begin reading, so that the run at the cursor is read from its first event."""
    events = await outlive.store.read(reads.thread_events(thread_id, max(0, seen - 1), 1))
    if not events:
        return seen
    first = await outlive.store.read(reads.events(events[0].run_id, 0, 1))
    return min(seen, first[0].thread_seq - 1) if first else seen


class _Tapes:
    """The tapes of a thread's runs, each begun with its run's first event."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._tapes: dict[str, Tape | None] = {}

    async def of(self, event: Event) -> list[Shown]:
        """Return what an event becomes: nothing, if it is of a run that these clients do not know."""
        if event.run_id not in self._tapes:
            run = await self._plane.outlive.run(event.run_id, tenant=None)
            known = self._plane.shows(run)
            self._tapes[event.run_id] = Tape(run_id=event.run_id, graph=run.agent) if known else None
        tape = self._tapes[event.run_id]
        shown = tape.of(event) if tape is not None else []
        if event.kind is EventKind.END:
            del self._tapes[event.run_id]
        return shown


def applied(thread: Thread) -> dict[str, Any]:
    """Return up to where a thread's events have been taken into account by an answer."""
    return {"applied_through_seq": thread.last_seq * ROOM + ROOM - 1 if thread.last_seq else 0}
