"""Clients: they ask, leave, come back by cursor, repeat themselves with the same key, and stop runs.

A client lives outside of every process and talks to one at a time; when that one does not answer, it tries
the next, as a browser behind a load balancer does.  What it was told is history.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from outlive import errors, presence, subscription
from outlive.model import Event, EventKind, Submitted
from outlive.testing.simulation.history import Answer, Transcript
from outlive.testing.simulation.plan import PROCESSES, Op, Want
from outlive.testing.simulation.process import POLICIES, Fleet, Process

T = TypeVar("T")
PATIENCE = 4.0
"""Seconds that a client waits for an answer before it asks another process."""
SILENCE = 6.0
"""Seconds without anything on a stream before a client connects again: heartbeats would have come."""
TRIES = 12


class _NoAnswerError(Exception):
    """The process did not answer, or answered that it cannot now."""


@dataclass(eq=False)
class Clients:
    """Everybody outside."""

    fleet: Fleet
    ops: Mapping[int, Op]
    runs: dict[int, str] = field(default_factory=dict)

    async def act(self, op: Op) -> None:
        """Carry out one operation, from its time on."""
        await asyncio.sleep(op.at)
        match op.want:
            case Want.ASK:
                await self._ask(op)
            case Want.FIRE:
                await self._submit(op, watched=False)
            case Want.STOP:
                await self._stop(op)
            case Want.WATCH:
                await self._watch_target(op)
            case Want.AGAIN:
                await self._again(op)
            case _:
                assert_never(op.want)

    # ------------------------------------------------------------ asking

    async def _ask(self, op: Op) -> None:
        submitted, viewer = await self._submit(op, watched=True)
        if submitted is None:
            return
        run_id, after = submitted.run.run_id, 0
        after = await self._stream(op, run_id, after, viewer=viewer, leaves=op.leaves_after)
        if op.leaves_after is None or op.away is None or after < 0:
            return
        await asyncio.sleep(op.away)
        await self._stream(op, run_id, after, viewer=None, leaves=None)

    async def _again(self, op: Op) -> None:
        """Say the same once more, through another door: a retry, a double click, a person coming back."""
        first = self.ops.get(op.target)
        if first is not None and first.want in (Want.ASK, Want.FIRE):
            again = dataclasses.replace(first, number=op.number, via=op.via, leaves_after=None)
            await self._ask(again)

    async def _submit(self, op: Op, *, watched: bool) -> tuple[Submitted | None, str | None]:
        body = {
            "warm": op.warm,
            "stubborn": op.stubborn,
            "steps": op.steps,
            "pace": op.pace,
            "chunks": op.chunks,
            "fails_at": op.fails_at,
        }
        key = op.key
        if key.startswith("shared"):  # one intent, one body: whoever shares the key means the same
            fails_at = 0 if op.strays else None
            body = {
                "warm": 0.0,
                "stubborn": 0.0,
                "steps": 2,
                "pace": 0.4,
                "chunks": 1,
                "fails_at": fails_at,
            }
            op_agent, thread = "job", None if key == "shared0" else "t0"
        else:
            op_agent, thread = op.agent, op.thread
        viewer = f"v{op.number}" if watched else None
        for attempt in range(TRIES):
            process = self._process(op.via, attempt)
            named = f"{viewer}-{attempt}" if viewer else None
            asked_at = self.fleet.loop.time()
            not_before = self._delayed(op)
            try:
                submitted = await self._call(
                    process,
                    process.commands.submit(
                        op_agent, body, thread=thread, key=key, not_before=not_before, viewer=named
                    ),
                )
            except _NoAnswerError:
                await asyncio.sleep(0.3)
                continue
            except errors.Refused as refused:
                self._answer(op, asked_at, "refused", refused.run_id or "", refused.code, "", key)
                return None, None
            run = submitted.run
            self.runs.setdefault(op.number, run.run_id)
            self.fleet.history.policies[run.run_id] = POLICIES[run.agent].to_dict()
            told = (submitted.admitted.value, run.state.value, key, str(body))
            self._answer(op, asked_at, "submitted", run.run_id, *told)
            return submitted, named
        return None, None

    def _delayed(self, op: Op) -> float | None:
        return None if op.delayed is None else (self.fleet.database.now_ms / 1000) + op.delayed

    # ------------------------------------------------------------ streaming

    async def _watch_target(self, op: Op) -> None:
        run_id = self.runs.get(op.target)
        if run_id is not None:
            await self._stream(op, run_id, 0, viewer=None, leaves=op.leaves_after)

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
            serving = process.sandbox.spawn(_serve(process, got, name, inbox))
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

    # ------------------------------------------------------------ stopping

    async def _stop(self, op: Op) -> None:
        run_id = self.runs.get(op.target)
        if run_id is None:
            return
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
        task = process.sandbox.spawn(work)
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


async def _serve(process: Process, got: Transcript, name: str, inbox: asyncio.Queue[Event | None]) -> None:
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
    except errors.OutliveError:
        left, got.ours = presence.Left.OURS, True
    finally:
        process.presence.leave(present, left)
        inbox.put_nowait(None)


async def _hang_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
