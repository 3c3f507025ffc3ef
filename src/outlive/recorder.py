"""Writes an attempt's chunks to the log in groups, in order, under the fence.

Decides when to commit: the first chunk at once, then whatever gathered within ``GROUP_SECONDS`` or as soon as
``GROUP_EVENTS`` wait.  Nothing is published before it is committed.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Sequence

from outlive import agents, encoding, failpoints, large, seams
from outlive.gathering import Gathering
from outlive.lease import Held, Keeper
from outlive.model import Claim, Event, EventKind, NewEvent, Stored
from outlive.store import Store, bodies, moves, wakeup

GROUP_SECONDS = 0.01
GROUP_EVENTS = 128
MOST_PER_COMMIT = 256
MOST_WAITING = 512
MOST_WAITING_BYTES = 8 * 1024 * 1024
MOST_HANDED_BYTES = 1024 * 1024
"""A follower holds as much for as long as its client does not read on."""
MAX_EVENT_BYTES = large.MAX_EVENT_BYTES


class Recorder:
    """The log of one attempt.  ``put`` from the agent's side, ``run`` from the writer's."""

    def __init__(
        self,
        store: Store,
        keeper: Keeper,
        held: Held,
        *,
        last_seq: int,
        local: seams.Seams,
        max_event_bytes: int = MAX_EVENT_BYTES,
        gathering: Gathering[agents.Chunk] | None = None,
    ) -> None:
        self.last_seq = last_seq
        self._store = store
        self._keeper = keeper
        self._held = held
        self._local = local
        self._waiting: deque[NewEvent] = deque()
        self._bytes = 0
        self._enough = asyncio.Event()
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._warned = False
        self._most = max_event_bytes
        self._warned_of_size = False
        self._gathering = gathering
        self._in_order = asyncio.Lock()

    async def put(self, item: agents.Chunk | agents.Note) -> None:
        """Queue an item; waits while too much is uncommitted, so a fast agent cannot fill the memory."""
        if isinstance(item, agents.Note):
            self.note(item.code, item.message)
        elif self._gathering is None:
            await self._chunk(item)
        else:
            await self._gathered(self._gathering, item)
        if not self._room.is_set():
            await self._room.wait()
        elif self._enough.is_set():
            await asyncio.sleep(0)  # an agent that never awaits would otherwise starve the writer

    async def _chunk(self, item: agents.Chunk) -> None:
        encoded = encoding.encode(item.data)
        text = encoded.text
        if len(text) > large.INLINE_BYTES:
            text = await self._set_aside(text, item.data)
        self._add(NewEvent(kind=EventKind.CHUNK, payload=text, mode=_storable(item.mode)))
        self.warn_of(encoded)

    async def _gathered(self, gathering: Gathering[agents.Chunk], item: agents.Chunk) -> None:
        async with self._in_order:  # both the agent's task and the writer's take from the gathering
            for chunk in gathering.feed(item, self._local.monotonic()):
                await self._chunk(chunk)
        if gathering.waiting:
            self._some.set()

    async def complete(self) -> None:
        """Queue what was gathered: the agent has come to its own end."""
        if self._gathering is not None:
            async with self._in_order:
                for chunk in self._gathering.rest(complete=True):
                    await self._chunk(chunk)

    async def _release(self, gathering: Gathering[agents.Chunk]) -> None:
        """Queue what has been gathered for long enough, or everything if nothing will follow."""
        async with self._in_order:
            now = self._local.monotonic()
            for chunk in gathering.rest(complete=False) if self._closing else gathering.due(now):
                await self._chunk(chunk)
        if not (self._waiting or gathering.waiting):
            self._some.clear()

    async def _set_aside(self, body: str, value: object) -> str:
        """Store a large body before the event is: nobody is ever told of one that is not there."""
        if len(body) > self._most:
            if not self._warned_of_size:
                self._warned_of_size = True
                self.note("event_too_large", f"Replaced by a placeholder: {len(body)} bytes in one event.")
            return large.placeholder(value, len(body), self._most)
        await self._keeper.write(self._held, bodies.keep(self._held.claim, body))
        return large.reference(body)

    def warn_of(self, encoded: encoding.Encoded) -> None:
        """Queue a warning, once per attempt, if something could not be written as JSON."""
        if encoded.placeholders and not self._warned:
            self._warned = True
            first = encoded.placeholders[0]
            where = first.path or "the whole value"
            self.note("unencodable", f"Replaced by a placeholder: {first.type} at {where} ({first.why}).")

    def note(self, code: str, message: str) -> None:
        """Queue a warning."""
        payload = encoding.encode({"code": code, "message": message}).text
        self._add(NewEvent(kind=EventKind.NOTE, payload=payload))

    def _add(self, event: NewEvent) -> None:
        self._waiting.append(event)
        self._bytes += len(event.payload)
        self._some.set()
        if len(self._waiting) >= GROUP_EVENTS:
            self._enough.set()
        if len(self._waiting) >= MOST_WAITING or self._bytes >= MOST_WAITING_BYTES:
            self._room.clear()

    async def run(self) -> None:
        """Commit groups until ``close``; raises ``Fenced`` or ``StoreUnavailable``."""
        quiet_until = 0.0
        while not self._closing:
            await self._some.wait()
            await self._gather(quiet_until - self._local.monotonic())
            quiet_until = self._local.monotonic() + GROUP_SECONDS
            if self._gathering is not None:
                await self._release(self._gathering)
            while len(self._waiting) >= GROUP_EVENTS or (self._waiting and not self._closing):
                await self._commit(self._take())
                if len(self._waiting) < GROUP_EVENTS:
                    break
        if self._gathering is not None:
            await self._release(self._gathering)  # it may have closed while nothing was due

    async def _gather(self, seconds: float) -> None:
        if seconds <= 0 or self._enough.is_set() or self._closing:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._enough.wait()
        except TimeoutError:
            return

    def _take(self) -> tuple[NewEvent, ...]:
        batch = tuple(self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_PER_COMMIT)))
        self._bytes -= sum(len(event.payload) for event in batch)
        if len(self._waiting) < GROUP_EVENTS:
            self._enough.clear()
        if not (self._waiting or (self._gathering is not None and self._gathering.waiting)):
            self._some.clear()
        if len(self._waiting) < MOST_WAITING and self._bytes < MOST_WAITING_BYTES:
            self._room.set()
        return batch

    async def _commit(self, batch: tuple[NewEvent, ...]) -> None:
        if not batch:
            return
        since = self._local.monotonic()
        step = moves.append(self._held.claim, batch, self.last_seq, self._keeper.timing.lease)
        failpoints.reach("recorder.append")
        appended = await self._keeper.write(self._held, step)
        self.last_seq = appended.last_seq
        self._keeper.extend(self._held, since)
        claim = self._held.claim
        announce(self._store, claim, batch, appended.last_seq, appended.stored)
        if appended.stop_requested:
            self._store.hub.wake((wakeup.STOP,))

    def close(self) -> None:
        """Let ``run`` return after the commit in flight; what still waits is the tail."""
        self._closing = True
        self._some.set()
        self._enough.set()

    def tail(self) -> tuple[NewEvent, ...]:
        """Take what was never committed, for the transaction that ends the attempt."""
        rest = tuple(self._waiting)
        self._waiting.clear()
        self._room.set()
        return rest


def announce(
    store: Store, claim: Claim, batch: Sequence[NewEvent], last_seq: int, stored: Stored | None
) -> None:
    """Tell of events that are committed, and spare whoever follows the run here the reading of them."""
    topic = wakeup.run_topic(claim.run_id)
    store.announce(topic, wakeup.thread_topic(claim.thread_id))
    if stored is not None and sum(len(event.payload) for event in batch) <= MOST_HANDED_BYTES:
        store.hub.hand(topic, functools.partial(_committed, claim, batch, last_seq, stored))


def _committed(claim: Claim, batch: Sequence[NewEvent], last_seq: int, stored: Stored) -> list[Event]:
    """Return events as a reader will find them."""
    return [
        Event(
            run_id=claim.run_id,
            seq=last_seq - behind,
            thread_seq=stored.thread_seq - behind,
            epoch=claim.epoch,
            kind=new.kind,
            mode=new.mode,
            payload=new.payload,
            created_at=stored.at,
        )
        for behind, new in zip(range(len(batch) - 1, -1, -1), batch, strict=True)
    ]


def _storable(mode: object) -> str | None:
    """PostgreSQL's text holds no NUL, and UTF-8 no lone surrogate; a mode is not worth a failed run."""
    if mode is None:
        return None
    try:
        # The characters it holds: a subclass may say anything, an enumeration its member's name.
        text = str.__str__(mode) if isinstance(mode, str) else str(mode)
    except Exception:  # whatever somebody's __str__ raises
        text = "?"
    return text.encode("utf-8", "replace").decode().replace("\0", "?")
