"""An event on the wire, and the stream of a run: replay, live tail, and presence for as long as it is open.

Decides how an event is framed, where a stream begins, and what its end says about its viewer.  Does not
decide routes or status codes (``native``), or who waits for what while it is open (``exchange``).
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from outlive import errors, large, presence, seams, subscription
from outlive.http import auth, sse
from outlive.model import Event, EventKind, Run, Submitted, Thread
from outlive.principal import NOBODY, Principal
from outlive.runtime import Outlive
from outlive.store import wakeup

ROTATE_SECONDS = 55.0
HEARTBEAT_SECONDS = 15.0
PIECE_BYTES = 32 * 1024
"""About how much of a stream is handed to the server at once."""
CURSOR = "Last-Event-ID"


def stream(
    outlive: Outlive,
    run: Run | Submitted,
    *,
    after: int | str | None = None,
    viewer: str | None = None,
    rotate: float | None = None,
    heartbeat: float | None = HEARTBEAT_SECONDS,
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
    hint to connect again after so many seconds; it also ends so within seconds of the ``principal``'s
    credentials.  ``heartbeat``: a comment line after so many seconds without an event (None: none).

    Raises ``InvalidCursor``.
    """
    told = dict(headers or {})
    if isinstance(run, Submitted):
        told["Outlive-Admitted"] = run.admitted.value
        run = run.run
    told["Outlive-Run"] = run.run_id
    start = position(run, str(after), CURSOR) if after and not _of_the_one_before(run, after) else 0
    present = presence.Viewer(name=viewer or seams.new_id(), run_id=run.run_id, seen=start)
    frames = _frames(outlive, present, recorded=viewer is not None)
    return opened(outlive, present, frames, principal, rotate=rotate, heartbeat=heartbeat, headers=told)


def thread_stream(
    outlive: Outlive,
    thread: Thread,
    *,
    after: int | str | None = None,
    rotate: float | None = ROTATE_SECONDS,
    heartbeat: float | None = HEARTBEAT_SECONDS,
    headers: Mapping[str, str] | None = None,
    principal: Principal = NOBODY,
) -> sse.EventStream:
    """Return a response that streams the events of all runs of a thread, in the thread's order, for ever.

    The handler has authenticated its caller, and read ``thread`` with the caller's tenant.  ``after`` is
    where to go on: the text of ``Last-Event-ID`` of such a stream, or a number of the thread's sequence;
    nothing or "" is the start.  While it is open, every live run of the thread counts as watched.  The rest
    is as in ``stream``.

    Raises ``InvalidCursor``.
    """
    start = thread_position(thread, str(after), CURSOR) if after else 0
    present = presence.Viewer(name=seams.new_id(), run_id="", seen=start, thread_id=thread.thread_id)
    frames = _thread_frames(outlive, present, thread.thread_id)
    told = headers or {}
    return opened(outlive, present, frames, principal, rotate=rotate, heartbeat=heartbeat, headers=told)


def coming_thread_stream(
    outlive: Outlive,
    name: str,
    *,
    rotate: float | None = ROTATE_SECONDS,
    heartbeat: float | None = HEARTBEAT_SECONDS,
    headers: Mapping[str, str] | None = None,
    principal: Principal = NOBODY,
) -> sse.EventStream:
    """Return a stream of a thread that is not there yet, which begins with the thread's first run.

    One of somebody else is not there for this ``principal`` either.  The rest is as in ``thread_stream``.
    """
    present = presence.Viewer(name=seams.new_id(), run_id="", seen=0)
    frames = _coming_frames(outlive, present, name, principal.tenant)
    told = headers or {}
    return opened(outlive, present, frames, principal, rotate=rotate, heartbeat=heartbeat, headers=told)


async def _coming_frames(
    outlive: Outlive, present: presence.Viewer, name: str, tenant: str
) -> AsyncGenerator[bytes, None]:
    present.thread_id = (await _arrival(outlive, name, tenant)).thread_id
    async with aclosing(_thread_frames(outlive, present, present.thread_id)) as frames:
        async for piece in frames:
            yield piece


async def _arrival(outlive: Outlive, name: str, tenant: str) -> Thread:
    """Wait for a thread.  Whoever makes it may hint at its first run; else it is looked for at each poll."""
    with outlive.store.hub.watch(wakeup.QUEUE) as waiter:
        while True:
            waiter.clear()
            try:
                return await outlive.thread(name, tenant=tenant)
            except errors.NotFound:
                await waiter.wait()


def opened(
    outlive: Outlive,
    present: presence.Viewer,
    frames: AsyncGenerator[bytes, None],
    principal: Principal,
    *,
    rotate: float | None,
    heartbeat: float | None,
    headers: Mapping[str, str],
    error_frame: Callable[[Exception], bytes] = sse.error_frame,
    kind: type[sse.EventStream] = sse.EventStream,
) -> sse.EventStream:
    """Return a response that ends with its principal's credentials and tells presence how its viewer left."""
    ending = outlive.shutdown if principal.lasting else auth.Ending(outlive.shutdown)

    async def closed(how: sse.Close) -> None:
        if how is not sse.Close.HEAD:  # it never joined
            thrown_out = how is sse.Close.SHUTDOWN and not outlive.shutdown.is_set()
            left = presence.Left.DISCONNECT if thrown_out else _LEFT.get(how, presence.Left.OURS)
            outlive.presence.leave(present, left)

    return kind(
        frames if principal.lasting else auth.guarded(frames, principal, ending),
        shutdown=ending,
        rotate_after=rotate,
        heartbeat=heartbeat,
        on_close=closed,
        headers=headers,
        error_frame=error_frame,
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
    try:
        async with aclosing(subscription.looks(outlive.store, present.run_id, after=present.seen)) as looks:
            async for look in looks:
                if not present.seen and look.events[0].seq > 1:
                    yield _pruned_frame(look.events[0].seq, f"/runs/{present.run_id}")
                for piece, seen in look.once(_pieces):
                    yield piece
                    present.seen = seen
                outlive.presence.delivered(present, look.events[-1].created_at)
    except errors.Deleted as gone:
        yield _deleted_frame(gone)


async def _thread_frames(
    outlive: Outlive, present: presence.Viewer, thread_id: str
) -> AsyncGenerator[bytes, None]:
    await outlive.presence.join(present)
    make = _thread_pieces(thread_id)
    try:
        async with aclosing(subscription.thread_looks(outlive.store, thread_id, after=present.seen)) as looks:
            async for look in looks:
                if not present.seen and look.events[0].thread_seq > 1:
                    yield _pruned_frame(look.events[0].thread_seq, None)
                for piece, seen in look.once(make):
                    yield piece
                    present.seen = seen
                outlive.presence.delivered(present, look.events[-1].created_at)
    except errors.Deleted as gone:
        yield _deleted_frame(gone)


def _deleted_frame(gone: errors.Deleted) -> bytes:
    """Say that the thread was deleted.  It has no id: whoever asks again is answered with 404."""
    return sse.frame(event="deleted", data=json.dumps({"code": gone.code, "title": gone.message}))


def _pruned_frame(oldest: int, snapshot: str | None) -> bytes:
    """Say that what was before ``oldest`` is not kept.  It has no id: no cursor may point before it."""
    return sse.frame(event="pruned", data=json.dumps({"oldest": oldest, "snapshot": snapshot}))


def _pieces(events: Sequence[Event]) -> list[tuple[bytes, int]]:
    return joined([(frame(event), event.seq) for event in events])


@functools.lru_cache(maxsize=1024)  # viewers of one thread share what the same function makes
def _thread_pieces(thread_id: str) -> Callable[[Sequence[Event]], list[tuple[bytes, int]]]:
    def pieces(events: Sequence[Event]) -> list[tuple[bytes, int]]:
        return joined([(thread_frame(event, thread_id), event.thread_seq) for event in events])

    return pieces


def joined(framed: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Join frames to what is sent at once, each with the last seq in it.

    A write for each would cost more than all else about an event.
    """
    pieces: list[tuple[bytes, int]] = []
    frames: list[bytes] = []
    size = 0
    for one, seq in framed:
        frames.append(one)
        size += len(one)
        if size >= PIECE_BYTES:
            pieces.append((b"".join(frames), seq))
            frames, size = [], 0
    return [*pieces, (b"".join(frames), framed[-1][1])] if frames else pieces


def frame(event: Event) -> bytes:
    """Return an event as the bytes of one server-sent event: its id is its cursor."""
    data = f'{{"epoch":{event.epoch},"mode":{_quoted(event.mode)},"data":{_located(event)}}}'
    return _framed(event.kind, data, event.cursor)


def thread_frame(event: Event, thread_id: str) -> bytes:
    """Return an event as it is on its thread's stream, where it says which run it is of."""
    data = (
        f'{{"run_id":"{event.run_id}","seq":{event.seq},"epoch":{event.epoch},'
        f'"mode":{_quoted(event.mode)},"data":{_located(event)}}}'
    )
    return _framed(event.kind, data, subscription.thread_cursor(thread_id, event.thread_seq))


def _located(event: Event) -> str:
    return large.located(event.payload, event.run_id, event.seq)


def _framed(kind: EventKind, data: str, cursor: str) -> bytes:
    if data.isascii() and "\n" not in data and "\r" not in data:  # as everything is that we write ourselves
        return f"event: {kind.value}\ndata: {data}\nid: {cursor}\n\n".encode("ascii")
    return sse.frame(data=data, id=cursor, event=kind.value)


@functools.lru_cache(maxsize=1024)
def _quoted(mode: str | None) -> str:
    return json.dumps(mode)


def shown(event: Event) -> dict[str, Any]:
    """Return an event as it is in a page."""
    return {
        "id": event.cursor,
        "seq": event.seq,
        "epoch": event.epoch,
        "kind": event.kind.value,
        "mode": event.mode,
        "data": json.loads(_located(event)),
    }


def thread_shown(event: Event, thread_id: str) -> dict[str, Any]:
    """Return an event as it is in a page of its thread's."""
    cursor = subscription.thread_cursor(thread_id, event.thread_seq)
    return shown(event) | {"id": cursor, "run_id": event.run_id}


def thread_position(thread: Thread, cursor: str, place: str) -> int:
    """Read a client's cursor on a thread; the error names the ``place`` where the client put it."""
    try:
        return subscription.parse_thread_cursor(cursor, thread)
    except errors.InvalidCursor as failure:
        failure.field = place
        raise


def position(run: Run, cursor: str, place: str) -> int:
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


def at_the_end(run: Run, after: int) -> bool:
    """True if nothing will ever follow: clients come back for more unless a 204 tells them."""
    return run.state.terminal and after == run.last_seq
