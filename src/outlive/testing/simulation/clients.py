"""Clients: they ask, leave, come back by cursor, repeat themselves with the same key, and stop runs.

A client lives outside of every process and talks to one at a time; when that one does not answer, it tries
the next, as a browser behind a load balancer does.  What it was told is history.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from outlive import errors, presence, subscription
from outlive.model import Event, EventKind, Run, Submitted
from outlive.store import reads
from outlive.testing.simulation.cast import Asked
from outlive.testing.simulation.history import Answer, Feed, Transcript
from outlive.testing.simulation.plan import PROCESSES, Op, Want
from outlive.testing.simulation.process import Fleet, Process

T = TypeVar("T")
PATIENCE = 4.0
"""Seconds that a client waits for an answer before it asks another process."""
SILENCE = 6.0
"""Seconds without anything on a stream before a client connects again: heartbeats would have come."""
TRIES = 12
FEED_SECONDS = 15.0
"""Seconds for which somebody follows a whole thread."""
STRANGER = "stranger"
"""The tenant of those who pry; everybody else is of the tenant without a name."""
WAITING = '"waiting"'


class _NoAnswerError(Exception):
    """The process did not answer, or answered that it cannot now."""


@dataclass(eq=False)
class Clients:
    """Everybody outside."""

    fleet: Fleet
    ops: Mapping[int, Op]
    runs: dict[int, Run] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    async def act(self, op: Op) -> None:
        """Carry out one operation, from its time on."""
        await asyncio.sleep(op.at)
        match op.want:
            case Want.ASK:
                await self._ask(op)
            case Want.FIRE:
                await self._submit(op, self.fleet.cast.asked(op), watched=False)
            case Want.STOP:
                await self._stop(op)
            case Want.WATCH:
                await self._watch_target(op)
            case Want.AGAIN:
                await self._again(op)
            case Want.PRY:
                await self._pry(op)
            case Want.THREAD:
                await self._watch_thread(op)
            case _:
                assert_never(op.want)

    # ------------------------------------------------------------ asking

    async def _ask(self, op: Op) -> None:
        submitted, viewer = await self._submit(op, self.fleet.cast.asked(op), watched=True)
        if submitted is None:
            return
        run_id, after = submitted.run.run_id, 0
        after = await self._stream(op, run_id, after, viewer=viewer, leaves=op.leaves_after)
        if op.leaves_after is not None and op.away is not None and after >= 0:
            await asyncio.sleep(op.away)
            after = await self._stream(op, run_id, after, viewer=None, leaves=None)
        if after < 0:
            await self._read(op, run_id)
        if after < 0 and run_id in self.waiting:
            await self._answer_person(op, submitted.run.thread)

    async def _read(self, op: Op, run_id: str) -> None:
        """Look at the record through another process, right after the end was seen."""
        asked_at, process = self.fleet.loop.time(), self._process(op.via, 1)
        with contextlib.suppress(_NoAnswerError):
            run = await self._call(process, process.store.read(reads.run(run_id, "")))
            self._answer(op, asked_at, "read", run_id, "", run.state.value)

    async def _answer_person(self, op: Op, thread: str) -> None:
        """The agent waits for a person: the answer is a run of its own on the same thread."""
        asked = self.fleet.cast.answer(op, thread)
        if asked is not None:
            await asyncio.sleep(op.away or 0.1)
            submitted, viewer = await self._submit(op, asked, watched=True)
            if submitted is not None:
                await self._stream(op, submitted.run.run_id, 0, viewer=viewer, leaves=None)

    async def _again(self, op: Op) -> None:
        """Say the same once more, through another door: a retry, a double click, a person coming back."""
        first = self.ops.get(op.target)
        if first is not None and first.want in (Want.ASK, Want.FIRE):
            again = dataclasses.replace(first, number=op.number, via=op.via, leaves_after=None)
            await self._ask(again)

    async def _submit(
        self, op: Op, asked: Asked, *, watched: bool, tenant: str = ""
    ) -> tuple[Submitted | None, str | None]:
        """Submit until somebody answers, through one door after the other."""
        viewer = f"v{op.number}-{asked.key}" if watched else None
        for attempt in range(TRIES):
            process = self._process(op.via, attempt)
            named = f"{viewer}-{attempt}" if viewer else None
            asked_at = self.fleet.loop.time()
            submit = process.commands.submit(
                asked.agent,
                asked.input,
                thread=asked.thread,
                key=asked.key,
                tenant=tenant,
                not_before=self._delayed(op),
                viewer=named,
            )
            key, body = f"{tenant}/{asked.key}", str(asked.input)
            try:
                submitted = await self._call(process, submit)
            except _NoAnswerError:
                await asyncio.sleep(0.3)
                continue
            except errors.Refused as refused:
                self._answer(op, asked_at, "refused", refused.run_id or "", refused.code, "", key)
                return None, None
            run = submitted.run
            if not tenant:
                self.runs.setdefault(op.number, run)
            self.fleet.history.policies[run.run_id] = run.policy.to_dict()
            self._answer(
                op, asked_at, "submitted", run.run_id, submitted.admitted.value, run.state.value, key, body
            )
            return submitted, named
        return None, None

    def _delayed(self, op: Op) -> float | None:
        return None if op.delayed is None else (self.fleet.database.now_ms / 1000) + op.delayed

    # ------------------------------------------------------------ prying

    async def _pry(self, op: Op) -> None:
        """Another tenant who got hold of an id asks for what can be asked for, and uses the same key."""
        run, process = self.runs.get(op.target), self._process(op.via, 0)
        if run is None:
            return
        for work in (
            process.commands.stop(run.run_id, tenant=STRANGER),
            process.store.read(reads.run(run.run_id, STRANGER)),
        ):
            asked_at, detail = self.fleet.loop.time(), "told"
            try:
                await self._call(process, work)
            except _NoAnswerError:
                continue
            except errors.NotFound:
                detail = "not found"
            self._answer(op, asked_at, "pry", run.run_id, detail, "")
        if (first := self.ops.get(op.target)) is not None:
            asked = self.fleet.cast.asked(first)
            await self._submit(op, asked, watched=False, tenant=STRANGER)

    # ------------------------------------------------------------ streaming

    async def _watch_target(self, op: Op) -> None:
        run = self.runs.get(op.target)
        if run is not None:
            await self._stream(op, run.run_id, 0, viewer=None, leaves=op.leaves_after)

    async def _stream(
        self, op: Op, run_id: str, after: int, *, viewer: str | None, leaves: int | None
    ) -> int:
        """Follow to the end, over as many connections as it takes; -1 once the end was seen."""
        for attempt in range(TRIES):
            process = self._process(op.via, attempt)
            got = Transcript(f"c{op.number}", process.name, run_id, after, self.fleet.loop.time(), True)
            self.fleet.history.transcripts.append(got)
            inbox: asyncio.Queue[Event | None] = asyncio.Queue()
            name = (
                viewer if attempt == 0 and viewer else f"w{op.number}-{attempt}-{self.fleet.loop.time():.3f}"
            )
            serving = process.sandbox.spawn(_serve(process, got, name, inbox, op.dawdles))
            chunks = 0
            while True:
                try:
                    event = await asyncio.wait_for(inbox.get(), SILENCE)
                except TimeoutError:
                    break
                if event is None:
                    got.closed = True
                    break
                got.events.append(
                    (self.fleet.loop.time(), event.seq, event.epoch, event.kind.value, event.payload)
                )
                after = event.seq
                if event.kind is EventKind.END:
                    got.ended = True
                    if WAITING in event.payload:
                        self.waiting.add(run_id)
                    return -1
                chunks += event.kind is EventKind.CHUNK
                if leaves is not None and chunks >= leaves:
                    break
            got.cut, got.left_at = True, self.fleet.loop.time()
            if process.up:
                process.sandbox.spawn(_hang_up(serving))
            if leaves is not None and chunks >= leaves:
                return after
            await asyncio.sleep(0.3)
        return after

    async def _watch_thread(self, op: Op) -> None:
        """Follow everything on a thread for a while; a thread has no end."""
        run, loop = self.runs.get(op.target), self.fleet.loop
        if run is None:
            return
        got = Feed(f"c{op.number}", run.thread_id, loop.time())
        self.fleet.history.feeds.append(got)
        until = loop.time() + FEED_SECONDS
        for attempt in itertools.count():
            await self._feed(got, self._process(op.via, attempt), until)
            got.left_at = loop.time()
            if loop.time() >= until - 0.3:
                return
            await asyncio.sleep(0.3)

    async def _feed(self, got: Feed, process: Process, until: float) -> None:
        """Follow through one process until it has been silent for long."""
        if not process.up:
            return
        loop, inbox = self.fleet.loop, asyncio.Queue[Event]()
        after = got.events[-1][1] if got.events else 0
        serving = process.sandbox.spawn(_serve_thread(process, got.thread_id, after, inbox))
        while (left := min(SILENCE, until - loop.time())) > 0:
            try:
                event = await asyncio.wait_for(inbox.get(), left)
            except TimeoutError:
                break
            got.events.append((loop.time(), event.thread_seq, event.run_id, event.seq))
        if process.up:
            process.sandbox.spawn(_hang_up(serving))

    # ------------------------------------------------------------ stopping

    async def _stop(self, op: Op) -> None:
        run = self.runs.get(op.target)
        if run is None:
            return
        run_id = run.run_id
        for attempt in range(TRIES):
            process = self._process(op.via, attempt)
            asked_at = self.fleet.loop.time()
            try:
                answer = await self._call(process, process.commands.stop(run_id, tenant=""))
            except _NoAnswerError:
                await asyncio.sleep(0.3)
                continue
            self._answer(op, asked_at, "stop", run_id, answer.outcome.value, answer.run.state.value)
            return

    # ------------------------------------------------------------ plumbing

    def _process(self, first: str, attempt: int) -> Process:
        names = list(PROCESSES)
        start = names.index(first)
        return self.fleet.current[names[(start + attempt) % len(names)]]

    async def _call(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        if not process.up:
            work.close()
            raise _NoAnswerError
        task = process.sandbox.spawn(_received(process, work))
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
        if not done:
            if not process.sandbox.dead:
                process.sandbox.spawn(_hang_up(task))
            raise _NoAnswerError
        try:
            return task.result()
        except (errors.Unavailable, asyncio.CancelledError):
            raise _NoAnswerError from None

    def _answer(  # noqa: PLR0917 - one line per caller
        self,
        op: Op,
        asked_at: float,
        what: str,
        run_id: str,
        detail: str,
        state: str,
        key: str | None = None,
        body: str = "",
    ) -> None:
        now = self.fleet.loop.time()
        self.fleet.history.answers.append(
            Answer(now, asked_at, f"c{op.number}", what, run_id, detail, state, key, body)
        )


async def _received(process: Process, work: Coroutine[Any, Any, T]) -> T:
    """What ``runtime`` does with a request: one that a process reads when it is ending already is refused."""
    if not process.up:
        work.close()
        raise errors.NotReady()
    return await work


async def _serve(
    process: Process, got: Transcript, name: str, inbox: asyncio.Queue[Event | None], dawdles: float
) -> None:
    """What the HTTP layer does for one stream: join, follow, leave."""
    run_id, after = got.run_id, got.after
    present = presence.Viewer(name=name, run_id=run_id, seen=after)
    left = presence.Left.DISCONNECT
    try:
        await process.presence.join(present)
        async with aclosing(subscription.follow(process.store, run_id, after=after)) as events:
            async for event in events:
                inbox.put_nowait(event)
                present.seen = event.seq
                if event.kind is EventKind.END:
                    left = presence.Left.END
                if dawdles:
                    await asyncio.sleep(dawdles)
    except errors.OutliveError:
        left, got.ours = presence.Left.OURS, True
    finally:
        process.presence.leave(present, left)
        inbox.put_nowait(None)


async def _serve_thread(process: Process, thread_id: str, after: int, inbox: asyncio.Queue[Event]) -> None:
    with contextlib.suppress(errors.OutliveError):
        async with aclosing(subscription.follow_thread(process.store, thread_id, after=after)) as events:
            async for event in events:
                inbox.put_nowait(event)


async def _hang_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
