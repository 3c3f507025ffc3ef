"""The effects of one attempt at one run: what is on its way, and how their ends get onto the record.

Decides what happens to the ledger's writes when the agent is cut: they belong to tasks of their own, which
nothing that the agent does or suffers can cancel.  When a call may begin is ``calling``'s to say.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from outlive import agents, encoding, errors, failpoints, ledger, seams, signals, spans
from outlive.lease import Halt, Held, Keeper
from outlive.ledger import Effect, EffectState
from outlive.model import Claim, Run
from outlive.store import Store, effect_moves, wakeup
from outlive.store.effect_moves import Answer
from outlive.store.script import Script

T = TypeVar("T")
CURRENT: ContextVar[Ledger | None] = ContextVar("outlive_ledger", default=None)
_LEFT: set[asyncio.Task[Any]] = set()
"""What is still to be written down, also of attempts that have ended: a loop holds its tasks only weakly."""
LONGEST_EVIDENCE = 10.0
"""Seconds that a late holder may take to leave what it knows."""


class Ledger:
    """One attempt's part of the ledger.  Belongs to its loop's thread, except for what says otherwise.

    ``used``: something of this attempt went to the ledger.  ``closing`` is set once the agent is being cut.
    """

    def __init__(
        self,
        run: Run,
        *,
        held: Held,
        keeper: Keeper,
        store: Store,
        happenings: signals.Signals,
        note: Callable[[str, str], None],
        local: seams.Seams = seams.REAL,
    ) -> None:
        self.run = run
        self.local = local
        self.held = held
        self.store = store
        self.note = note
        self.used = False
        self.closing = False
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._keeper = keeper
        self._signals = happenings
        self._busy: dict[tuple[str, str], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cut = asyncio.Event()

    @property
    def claim(self) -> Claim:
        """The proof that a start needs."""
        return self.held.claim

    @property
    def trusted(self) -> bool:
        """Whether this process may still believe that it holds the run: looked at right before a call."""
        return self._keeper.trust_left(self.held) > 0

    # ------------------------------------------------------------ what is on its way

    @asynccontextmanager
    async def alone(self, name: str, key: str) -> AsyncIterator[None]:
        """Let one of this attempt's parallel nodes at a time have to do with an effect.

        What the ledger shows as started by this attempt is then never another node's call on its way.
        """
        while (other := self._busy.get((name, key))) is not None:
            await other.wait()
        mine = self._busy[name, key] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[name, key]
            mine.set()
            self.store.announce(topic(self.run.tenant, name, key))

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` out of reach of the agent's cancellation; the attempt's end waits for it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        _LEFT.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _LEFT.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it sees it; nobody may be left to

    def cut(self) -> None:
        """The agent is being cut: who waits for that, to end as stopped and not as failed, may go."""
        self.closing = True
        self._cut.set()

    async def cut_short(self, seconds: float) -> None:
        """Wait until the agent is cut, as one that must stop will be."""
        self.store.hub.wake((wakeup.STOP,))
        try:
            async with asyncio.timeout(seconds):
                await self._cut.wait()
        except TimeoutError:
            return

    async def settled(self, seconds: float) -> None:
        """Wait until no call and no write is on its way, for so many seconds at most."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    # ------------------------------------------------------------ the ledger's writes

    async def write(self, script: Script[T]) -> T:
        """Make a move that needs the claim; the attempt is lost if it no longer stands or cannot be told."""
        self.used = True
        try:
            return await self._keeper.write(self.held, script)
        except (errors.Fenced, errors.Unavailable):
            self.held.end(Halt.LOST)
            raise

    async def finish(self, effect: Effect, answer: Answer) -> None:
        """Store an answer; raises ``Fenced`` if it came too late to be more than evidence."""
        failpoints.reach("effects.answered")
        try:
            if effect.compensates or not await self._finish_plainly(effect, answer):
                await self._finish_late(effect, answer)
        except (errors.Fenced, errors.Unavailable):
            self.held.end(Halt.LOST)
            raise
        self._tell(effect, answer.state)

    async def _finish_late(self, effect: Effect, answer: Answer) -> None:
        claim = self.claim
        step = effect_moves.finish(claim, effect, answer)
        if not await self.store.write(step, budget=LONGEST_EVIDENCE):
            self.tell(
                signals.StaleWriteRefused(run_id=claim.run_id, epoch=claim.epoch, write=signals.Write.EFFECT)
            )
            raise errors.Fenced(run_id=claim.run_id, effect_id=effect.effect_id)

    async def _finish_plainly(self, effect: Effect, answer: Answer) -> bool:
        try:
            return await self._keeper.write(
                self.held, effect_moves.finish_plainly(self.claim, effect, answer)
            )
        except errors.Unavailable:
            return False  # no trust is left: the evidence needs none

    def leave_unknown(self, effect: Effect) -> None:
        """Have it noted that a call was cut, without waiting; a loop that has stopped can do nothing more."""
        if self.loop.is_running():
            self.spawn(self.mark_unknown(effect))

    async def mark_unknown(self, effect: Effect) -> None:
        """Note that a call was cut; if that cannot be written, the lost claim says the same."""
        if await self.store.write(effect_moves.cut(effect), budget=LONGEST_EVIDENCE):
            self._tell(effect, EffectState.UNKNOWN)

    def during(self, stretch: spans.Stretch) -> AbstractContextManager[spans.Open]:
        """Have a stretch of work traced, if anybody traces."""
        return self._signals.during(stretch)

    def tell(self, happening: signals.Happening) -> None:
        """Tell whoever listens to this process."""
        self._signals.emit(happening)

    def _tell(self, effect: Effect, state: EffectState) -> None:
        failpoints.reach("effects.recorded")
        self.tell(
            signals.EffectSettled(
                run_id=self.run.run_id, effect_id=effect.effect_id, name=effect.name, state=state.value
            )
        )


def current() -> Ledger:
    """Return the ledger of the attempt that this code runs in; raises ``Misconfigured`` outside of one."""
    current = CURRENT.get()
    if current is None:
        raise errors.Misconfigured(
            "There is no run here that an effect could belong to.",
            hint="Call it from an agent; in a thread of your own run it within contextvars.copy_context().",
        )
    return current


def topic(tenant: str, name: str, key: str) -> str:
    """What who waits for an effect listens to."""
    return f"effect:{ledger.effect_id(tenant, name, key, 0)}"


def answer_of(value: Any, current: Ledger) -> tuple[Answer, Any]:
    """Return a call's value as it is stored, and as every attempt gets it, this one included."""
    encoded = encoding.encode(value)
    if encoded.placeholders:
        first = encoded.placeholders[0]
        current.note("effect_inexact", f"An effect's result lost {first.type} at {first.path}: {first.why}.")
    return Answer(result=encoded.text), agents.restored(encoded.text)
