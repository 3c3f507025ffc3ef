"""Keeping the right to drive runs, and knowing when it is gone.

Renewal runs in a thread of its own: a node that blocks the event loop must not cost the other runs their
leases.  It names exactly the claims that this process drives, so a claim whose reply was lost is never
renewed and expires.  Safety is the database's fence; what is here is politeness: stop oneself before the row
expires, and stop vouching for an event loop that no longer turns.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from outlive import errors, seams, signals
from outlive.model import Claim, Renewed
from outlive.states import Reason
from outlive.store import Store, reads, wakeup


class Halt(StrEnum):
    """Why an attempt must end before its agent is done."""

    STOP = "stop"
    SHUTDOWN = "shutdown"
    LOST = "lost"


_RANK = {Halt.SHUTDOWN: 0, Halt.STOP: 1, Halt.LOST: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds.  ``lease`` must exceed what the database may take for one write.

    ``margin`` is given up at the end of the trust window; ``stall_limit`` is how long an event loop may
    stand still before its leases are left to expire.
    """

    lease: float = 15.0
    renew_every: float = 0.25
    margin: float = 1.0
    stall_after: float = 2.0
    stall_limit: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.renew_every * 3 <= self.lease - self.margin:
            raise errors.Misconfigured(
                "A lease must span at least three renewals and its margin.", hint="Raise the lease."
            )


@dataclass(kw_only=True, eq=False, slots=True)
class Held:
    """One claim that this process drives."""

    claim: Claim
    trusted_until: float
    halt: Halt | None = None
    reason: Reason | None = None
    halted: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, halt: Halt, reason: Reason | None = None) -> None:
        """Ask the attempt to end; a stop overrides a shutdown, and a lost lease overrides both."""
        if self.halt is None or _RANK[halt] > _RANK[self.halt]:
            self.halt, self.reason = halt, reason
        self.halted.set()


class Keeper:
    """The claims of one process and the thread that renews them."""

    def __init__(
        self,
        store: Store,
        *,
        timing: Timing,
        happenings: signals.Signals,
        local: seams.Seams = seams.REAL,
    ) -> None:
        self.timing = timing
        self._store = store
        self._signals = happenings
        self._local = local
        self._held: dict[Claim, Held] = {}
        self._missed: set[Claim] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._ticked = 0.0
        self._stalled = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._listening: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ claims

    def hold(self, claim: Claim, since: float) -> Held:
        """Drive ``claim``, trusted from ``since`` (taken before the claim was sent to the database)."""
        held = Held(claim=claim, trusted_until=self._trust(since))
        self._held[claim] = held
        return held

    def extend(self, held: Held, since: float) -> None:
        """Note that a write begun at ``since`` extended the lease."""
        held.trusted_until = max(held.trusted_until, self._trust(since))

    def release(self, held: Held) -> None:
        """Stop renewing a claim."""
        self._held.pop(held.claim, None)
        self._missed.discard(held.claim)

    def trust_left(self, held: Held) -> float:
        """Seconds for which this process may still believe that it holds the run."""
        return held.trusted_until - self._local.monotonic()

    def end_all(self, halt: Halt) -> None:
        """Ask every attempt of this process to end."""
        for held in list(self._held.values()):
            held.end(halt)

    def _trust(self, since: float) -> float:
        return since + self.timing.lease - self.timing.margin

    # ------------------------------------------------------------ lifetime

    async def start(self) -> None:
        """Start the renewing thread and the task that listens for stop requests."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ticked = self._local.monotonic()
        self._listening = self._loop.create_task(self._listen_for_stops())
        self._thread = threading.Thread(target=self._main, name="outlive-lease", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop renewing; claims still held are left to expire."""
        self._stopping.set()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        while not self._stopping.wait(self.timing.renew_every):
            self.watch_loop()
            self.renew_once()

    # ------------------------------------------------------------ one round, callable step by step

    def renew_once(self) -> None:
        """Renew every claim once, ask again for those that a lock hid, and act on lost trust.  Blocks."""
        since = self._local.monotonic()
        claims = [] if self._given_up(since) else list(self._held)
        missing: Sequence[Claim] = claims
        try:
            for _ in range(3):
                if missing:
                    missing = self._apply(missing, self._store.renew(missing, self.timing.lease), since)
        except errors.Unavailable as failure:
            self._signals.emit(signals.BackgroundFailed(duty="renewal", error=str(failure.__cause__)))
        else:
            self._suspect(missing)
        for held in list(self._held.values()):
            if self.trust_left(held) <= 0:
                self._on_loop(held, Halt.LOST, None)

    def _apply(self, asked: Sequence[Claim], renewed: Sequence[Renewed], since: float) -> list[Claim]:
        answers = {(answer.run_id, answer.epoch): answer for answer in renewed}
        missing = []
        for claim in asked:
            held, answer = self._held.get(claim), answers.get((claim.run_id, claim.epoch))
            if held is None:
                continue
            if answer is None:
                missing.append(claim)
                continue
            self._missed.discard(claim)
            self.extend(held, since)
            if answer.stop_requested:
                self._on_loop(held, Halt.STOP, answer.stop_reason)
        return missing

    def _suspect(self, missing: Sequence[Claim]) -> None:
        """A claim that three renewals did not find twice in a row is looked up instead of guessed about."""
        again = [claim for claim in missing if claim in self._missed]
        self._missed.update(missing)
        if again and self._loop is not None:
            self._loop.call_soon_threadsafe(self._store.hub.wake, (wakeup.STOP,))

    def _on_loop(self, held: Held, halt: Halt, reason: Reason | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(held.end, halt, reason)

    # ------------------------------------------------------------ the event loop's pulse

    def watch_loop(self) -> None:
        """Report an event loop that has not turned for ``stall_after`` seconds, once per stall."""
        if self._loop is None or self._loop.is_closed():
            return
        quiet = self._local.monotonic() - self._ticked
        if quiet > self.timing.stall_after and not self._stalled:
            self._stalled = True
            self._signals.emit(signals.LoopStalled(seconds=round(quiet, 1), where=self._where()))
        self._loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        self._ticked = self._local.monotonic()
        self._stalled = False

    def _given_up(self, now: float) -> bool:
        return self._loop is not None and now - self._ticked > self.timing.stall_limit

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return "unknown"
        stack = traceback.extract_stack(frame)
        names = [f"{entry.name} ({entry.filename.rsplit('/', 1)[-1]}:{entry.lineno})" for entry in stack]
        return " < ".join(reversed(names[-3:]))

    # ------------------------------------------------------------ stop requests

    async def _listen_for_stops(self) -> None:
        with self._store.hub.watch(wakeup.STOP) as waiter:
            while True:
                await waiter.wait()
                waiter.clear()
                try:
                    await self.look_for_stops()
                except errors.Unavailable as failure:
                    self._signals.emit(signals.BackgroundFailed(duty="stop requests", error=str(failure)))

    async def look_for_stops(self) -> None:
        """Read which claims still stand and which were asked to stop, and end those attempts."""
        claims = list(self._held)
        if not claims:
            return
        standing = {
            (answer.run_id, answer.epoch): answer for answer in await self._store.read(reads.held(claims))
        }
        for claim in claims:
            held, answer = self._held.get(claim), standing.get((claim.run_id, claim.epoch))
            if held is None:
                continue
            if answer is None:
                held.end(Halt.LOST)
            elif answer.stop_requested:
                held.end(Halt.STOP, answer.stop_reason)
