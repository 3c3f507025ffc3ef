"""The direct PostgreSQL connection: hints between processes, and the token that dies with this one.

Hints are sent off the write path and coalesced: a NOTIFY inside a transaction takes a lock that makes every
commit of the database queue behind it.  They carry topics only.  Whether they arrive is tested at start and
at every reconnect; while they do not, readers poll more often, and that is said aloud.

A process that hears nobody else says nothing.  Whoever begins to listen, or does so again, says hello and is
answered; everybody is heard from every ``PROBE_EVERY`` seconds.  One who was silent and hears somebody makes
up for all that it did not say with one hint about everything, so that a newcomer misses nothing for longer
than the two take to hear each other.  One who cannot hear is never silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing

import psycopg

from outlive import signals
from outlive.model import Row
from outlive.store import sql
from outlive.store.connection import Connection, connect
from outlive.store.wakeup import Hub

CHANNEL = "outlive"
MOST_BYTES = 7_000
"""PostgreSQL refuses a NOTIFY payload of 8000 bytes or more."""
PROBE = "probe:"
HELLO = "hello:"
HERE = "here"
EVERYTHING = "*"
HELLO_SECONDS = 2.0
"""Seconds in which a hello is answered; one that answers later is spoken to from then on."""
COALESCE_SECONDS = 0.005
"""Seconds between two notifications of one process; what gathers meanwhile travels together."""
PROBE_SECONDS = 2.0
POLL_WITHOUT_HINTS = 0.1
RECONNECT_SECONDS = 0.5
ANSWER_SECONDS = 5.0
"""A server that is frozen rather than gone keeps its connections open and never answers."""
PROBE_EVERY = 30.0
OTHERS_SECONDS = 4 * PROBE_EVERY
"""Seconds for which somebody who was heard counts as listening."""
_BROKEN = (psycopg.Error, OSError)  # TimeoutError is an OSError


def token_of(worker: str) -> int:
    """The advisory lock key of a worker: 63 bits made of its id, whatever that looks like."""
    digest = hashlib.blake2b(worker.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF_FFFF_FFFF


class Direct:
    """Listens, notifies, and holds tokens, over two connections of its own that it re-opens for ever."""

    def __init__(
        self, dsn: str, blocks: Mapping[str, sql.Block], hub: Hub, happenings: signals.Signals
    ) -> None:
        self._dsn = dsn
        self._blocks = blocks
        self._hub = hub
        self._signals = happenings
        self._me = secrets.token_hex(8)
        self._workers: set[str] = set()
        self._held: set[str] = set()
        self._listener: Connection | None = None
        self._speaker: Connection | None = None
        self._pending: set[str] = set()
        self._spoken = asyncio.Event()
        self._speaking = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._usual_poll = hub.poll
        self._degraded = False
        self._word = ""
        self._heard_until = 0.0
        self._asking_until = math.inf
        self.listening = False

    async def open(self) -> None:
        """Connect and test that a NOTIFY comes back; raises ``psycopg.Error`` if there is no server."""
        await self._connect()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen()), loop.create_task(self._speak())]

    async def close(self) -> None:
        """Stop listening and drop the tokens."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self._disconnect()

    def tell(self, topics: Iterable[str]) -> None:
        """Send ``topics`` to the other processes, if any, soon: they may hear even where we cannot."""
        if self._speaker is not None and not self._alone:
            self._pending.update(topics)
            self._spoken.set()

    @property
    def _alone(self) -> bool:
        return self.listening and asyncio.get_running_loop().time() >= max(
            self._heard_until, self._asking_until
        )

    def _hear(self, payload: str) -> None:
        """Take in what another process said."""
        sender, *topics = payload.split(" ")
        if sender in (self._me, self._word):
            return  # our own waiters were woken when the hint was given
        alone = self._alone
        self._heard_until = asyncio.get_running_loop().time() + OTHERS_SECONDS
        if alone or sender.startswith(HELLO):
            self.tell((EVERYTHING if alone else HERE,))
        if EVERYTHING in topics:
            self._hub.wake_all()
        else:
            self._hub.wake(topics)

    async def hold(self, worker: str) -> None:
        """Hold ``worker``'s token on the speaking connection, now and after each reconnect."""
        self._workers.add(worker)
        if self.listening and self._speaker is not None:
            with contextlib.suppress(*_BROKEN):  # the reconnect that follows holds it
                async with self._speaking:
                    await self._hold_tokens(self._speaker)

    async def dead(self, workers: Collection[str]) -> set[str]:
        """Return the workers whose token nobody holds; empty when that cannot be asked now."""
        if self._speaker is None:
            return set()
        try:
            async with self._speaking:
                rows = await self._run(self._speaker, "live_tokens")
        except _BROKEN:
            return set()
        live = {row["token"] for row in rows}
        return {worker for worker in workers if worker and token_of(worker) not in live}

    # ------------------------------------------------------------ connections

    async def _connect(self) -> None:
        self._listener = await connect(self._dsn)
        self._speaker = await connect(self._dsn)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._listener.execute(f"LISTEN {CHANNEL}")
        self._asking_until = math.inf
        self._set_listening(await self._probe(HELLO))
        self._asking_until = asyncio.get_running_loop().time() + HELLO_SECONDS
        if self.listening:
            await self._hold_tokens(self._speaker)

    async def _hold_tokens(self, speaker: Connection) -> None:
        # A server that has not noticed the death of our last connection still gives its token to it, so
        # what is refused now is asked for again after the next probe.
        for worker in self._workers - self._held:
            if (await self._run(speaker, "hold_token", token=token_of(worker)))[0]["held"]:
                self._held.add(worker)

    async def _disconnect(self) -> None:
        for connection in (self._listener, self._speaker):
            if connection is not None:
                await connection.close()
        self._listener = self._speaker = None
        self._held.clear()
        self.listening = False

    async def _probe(self, kind: str = PROBE) -> bool:
        """Say whether a NOTIFY reaches our LISTEN; through a transaction pooler it never does."""
        assert self._listener is not None
        assert self._speaker is not None
        word = self._word = kind + secrets.token_hex(8)
        await self._run(self._speaker, "notify", channel=CHANNEL, payload=word)
        async with aclosing(self._listener.notifies(timeout=PROBE_SECONDS)) as notes:
            async for note in notes:
                if note.payload == word:
                    return True
                self._hear(note.payload)
        return False

    def _set_listening(self, works: bool, why: str = "NOTIFY does not reach LISTEN") -> None:
        """Say once that hints stopped arriving, and once that they arrive again."""
        self._hub.poll = self._usual_poll if works else min(self._usual_poll, POLL_WITHOUT_HINTS)
        if works and self._degraded:
            self._signals.emit(signals.WakeupsRestored())
        elif not works and not self._degraded:
            self._signals.emit(signals.WakeupsDegraded(why=why))
        self._degraded = not works
        self.listening = works

    async def _run(self, connection: Connection, name: str, **params: object) -> list[Row]:
        return await connection.fetch(self._blocks[name].statements[0], params, ANSWER_SECONDS)

    # ------------------------------------------------------------ duties

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except _BROKEN as failure:
                self._set_listening(False, why=f"the direct connection failed: {type(failure).__name__}")
            await self._reconnect()

    async def _listen_once(self) -> None:
        while self._listener is not None:
            # A connection whose peer vanished without FIN stays silent; the probe finds that out.
            async with aclosing(self._listener.notifies(timeout=PROBE_EVERY)) as notes:
                async for note in notes:
                    self._hear(note.payload)
            async with self._speaking:
                if not await self._probe():
                    raise psycopg.OperationalError("the probe did not come back")
                if self._speaker is not None:
                    await self._hold_tokens(self._speaker)
            self._hub.wake_all()  # the probe may have dropped a hint that came with its own word

    async def _reconnect(self) -> None:
        while True:
            await self._disconnect()
            try:
                await self._connect()
            except _BROKEN:
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                self._hub.wake_all()
                return

    async def _speak(self) -> None:
        while True:
            await self._spoken.wait()
            self._spoken.clear()
            topics, self._pending = self._pending, set()
            try:
                async with self._speaking:
                    for payload in _payloads(self._me, topics):
                        if self._speaker is not None:
                            await self._run(self._speaker, "notify", channel=CHANNEL, payload=payload)
                await asyncio.sleep(COALESCE_SECONDS)
            except _BROKEN:
                # A lost hint costs a poll interval; the listener sees the dead connection and re-opens both.
                self._hub.poll = min(self._hub.poll, POLL_WITHOUT_HINTS)


def _payloads(sender: str, topics: Iterable[str]) -> list[str]:
    payloads = [sender]
    for topic in topics:
        longer = f"{payloads[-1]} {topic}"
        if len(topic.encode()) > MOST_BYTES:
            continue  # whoever waits for it polls
        if len(longer.encode()) > MOST_BYTES:
            payloads.append(f"{sender} {topic}")
        else:
            payloads[-1] = longer
    return [payload for payload in payloads if payload != sender]
