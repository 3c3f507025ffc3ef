"""Streams of runs, and answers that are held open until a run has ended.

Decides how long they are open and what counts as watching; what is in them is ``frames``'.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from outlive import errors, large, presence, seams, subscription
from outlive.http import sse, streaming
from outlive.http.langgraph import frames, shapes
from outlive.http.langgraph.frames import Frames, Wanted
from outlive.http.langgraph.plane import Plane
from outlive.model import Event, Run
from outlive.principal import Principal
from outlive.runtime import Outlive
from outlive.store import bodies, watching

Framed = list[tuple[bytes, int]]


def stream(
    plane: Plane,
    run: Run,
    wanted: Wanted,
    principal: Principal,
    *,
    after: int = 0,
    part: int = 0,
    repeats: bool = False,
    viewer: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> sse.EventStream:
    """Return a stream of a run's events after ``after``, to its end; ``part``, ``repeats``: see ``Frames``.

    ``viewer`` names one that is on the record already, by the submit of this very run or by ``tie``.
    """
    present = presence.Viewer(name=viewer or seams.new_id(), run_id=run.run_id, seen=after)
    mine = Frames(
        run_id=run.run_id,
        thread=(run.thread_id, run.thread),
        wanted=wanted,
        after=after,
        part=part,
        repeats=repeats,
    )
    source = _frames(plane.outlive, present, mine, recorded=viewer is not None)
    return streaming.opened(
        plane.outlive,
        present,
        source,
        principal,
        rotate=None,
        heartbeat=plane.heartbeat,
        headers=headers or {},
        error_frame=error_frame,
    )


def wanted_of(run: Run) -> Wanted:
    """Return what a run was made to stream."""
    asked = shapes.kept(run).get("kwargs") or {}
    modes = asked.get("stream_mode") or ["values"]
    return Wanted(
        modes=frozenset([modes] if isinstance(modes, str) else modes),
        subgraphs=bool(asked.get("stream_subgraphs", not asked)),
    )


def error_frame(failure: Exception) -> bytes:
    """An error of this transmission in the two words that these clients read."""
    known = failure if isinstance(failure, errors.OutliveError) else None
    told = {
        "error": known.code if known else "stream_failed",
        "message": known.message if known else "The stream failed on the server.",
    }
    return sse.frame(event="error", data=json.dumps(told))


async def _frames(
    outlive: Outlive, present: presence.Viewer, mine: Frames, *, recorded: bool
) -> AsyncGenerator[bytes, None]:
    await outlive.presence.join(present, recorded=recorded)
    # What ``messages`` shows of a message is all of it so far, so chunks before the cursor are read again.
    again = "messages" in mine.wanted.modes
    start = 0 if again else present.seen
    async with aclosing(subscription.looks(outlive.store, present.run_id, after=start)) as looks:
        async for look in looks:
            events = await whole(outlive, look.events)
            if again or mine.part or mine.repeats or events is not look.events:
                framed = list(mine.of(events))
            else:
                framed = look.once(_maker(mine.run_id, mine.thread, mine.wanted))
            for piece, seen in streaming.joined(framed):
                yield piece
                present.seen = seen


async def tie(plane: Plane, run: Run) -> str:
    """Have a run stop once nobody watches it; returns the viewer that watches it from now on.

    That viewer first: that the run had nobody until now must not stop it.  Both before the answer begins, for
    whoever asks may leave as soon as it does.
    """
    viewer = seams.new_id()
    await plane.outlive.store.write(watching.join(viewer, run.run_id, presence.LEASE, 0))
    await plane.outlive.store.write(watching.tie(run.run_id))
    return viewer


@functools.lru_cache(maxsize=1024)  # viewers of one run who want the same share what the same function makes
def _maker(run_id: str, thread: tuple[str, str], wanted: Wanted) -> Callable[[Sequence[Event]], Framed]:
    def make(events: Sequence[Event]) -> Framed:
        return list(Frames(run_id=run_id, thread=thread, wanted=wanted).of(events))

    return make


async def whole(outlive: Outlive, events: Sequence[Event]) -> Sequence[Event]:
    """Put the bodies of large events in place of the references to them: these clients know of none."""
    if not any(large.digest_in(event.payload) for event in events):
        return events
    return [
        await outlive.store.read(bodies.event(event.run_id, event.seq))
        if large.digest_in(event.payload)
        else event
        for event in events
    ]


# ------------------------------------------------------------ waiting


class Held(sse.EventStream):
    """A JSON answer that is under way from the start: blank lines, then the value.

    One that the server has to end before there is a value is broken off: its end would be taken for the end
    of the answer, and clients take up again only what breaks.
    """

    media_type = "application/json"
    beat = b"\n"
    hinted = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, first_frame_timeout=0, **options)

    def _own_headers(self) -> None:
        super()._own_headers()
        self.headers["content-type"] = "application/json"


def wait(
    plane: Plane,
    run: Run,
    principal: Principal,
    *,
    viewer: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> sse.EventStream:
    """Return an answer that is a run's final values once it has ended; watching it until then."""
    present = presence.Viewer(name=viewer or seams.new_id(), run_id=run.run_id, seen=0)
    source = _waited(plane, present, recorded=viewer is not None)
    return streaming.opened(
        plane.outlive,
        present,
        source,
        principal,
        rotate=None,
        heartbeat=None,
        headers=headers or {},
        error_frame=_failed_to_wait,
        kind=Held,
    )


async def _waited(plane: Plane, present: presence.Viewer, *, recorded: bool) -> AsyncGenerator[bytes, None]:
    await plane.outlive.presence.join(present, recorded=recorded)
    ended = asyncio.get_running_loop().create_task(_ended(plane.outlive, present))
    try:
        while not ended.done():
            await asyncio.wait({ended}, timeout=plane.heartbeat)
            if not ended.done():
                yield b"\n"
        ended.result()
        run = await plane.outlive.run(present.run_id, tenant=None)
        yield json.dumps(final(run)).encode("ascii")
    finally:
        ended.cancel()
        await asyncio.wait({ended})


async def _ended(outlive: Outlive, present: presence.Viewer) -> None:
    async with aclosing(subscription.looks(outlive.store, present.run_id)) as looks:
        async for look in looks:
            present.seen = look.events[-1].seq


def final(run: Run) -> Any:
    """Return what a run came to: its output, or under ``__error__`` why it has none."""
    shown = run.public()
    ended = frames.ended_as(run.state, run.reason)
    if ended == "success":
        return shown["output"]
    told = frames.failed_with(shown["error"], run.state)
    if run.reason is not None:
        told["reason"] = run.reason.value
    return {"__error__": told}


def _failed_to_wait(failure: Exception) -> bytes:
    known = failure if isinstance(failure, errors.OutliveError) else None
    told = {
        "error": known.code if known else "failed",
        "message": known.message if known else "The server failed.",
    }
    return json.dumps({"__error__": told}).encode("ascii")
