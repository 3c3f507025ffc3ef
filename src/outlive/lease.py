"""Keeping the right to drive runs, and knowing when it is gone.

Renewal runs in a thread of its own: a node that blocks the event loop must not cost the other runs their
leases.  It names exactly the claims that this process drives, so a claim whose reply was lost is never
renewed and expires.  Safety is the database's fence; what is here is politeness: stop oneself before the row
expires, and stop vouching for an event loop that no longer turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from outlive import errors, failpoints, seams, signals
from outlive.model import Claim, Renewed
from outlive.states import Reason
from outlive.store import Store, reads, wakeup
from outlive.store.script import Script


class Halt(StrEnum):
    """Why an attempt must end before its agent is done."""

    STOP = "stop"
    SHUTDOWN = "shutdown"
    LOST = "lost"


T = TypeVar("T")
LONGEST_TRY = 10.0
"""Seconds that one try of a holder's write may take."""
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
    """One claim that this process drives.

    ``ending``: its last write is on the way, so a renewal that misses it from now on says nothing.
    """

    claim: Claim
    trusted_until: float
    halt: Halt | None = None
    reason: Reason | None = None
    ending: bool = False
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
        self._doubted: dict[Claim, Held] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._asked: float | None = None
        self._stalled: str | None = None
        self._longest_lag = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._tasks: list[asyncio.Task[None]] = []

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

    def trust_left(self, held: Held) -> float:
        """Seconds for which this process may still believe that it holds the run."""
        return held.trusted_until - self._local.monotonic()

    async def write(self, held: Held, script: Script[T]) -> T:
        """Run a holder's ``script``, for up to three tries of ``LONGEST_TRY``, while the claim is trusted.

        A loop that stood still makes time-outs fire that say nothing about the database: as long as the
        other thread has kept the lease meanwhile, such a try is repeated.  Raises ``StoreUnavailable``, and
        whatever the script raises.
        """
        for left in (2, 1, 0):
            try:
                return await self._store.write(
                    script, budget=max(0.0, min(LONGEST_TRY, self.trust_left(held)))
                )
            except errors.StoreUnavailable:
                if not left or self.trust_left(held) <= 0:
                    raise
        raise AssertionError

    def end_all(self, halt: Halt) -> None:
        """Ask every attempt of this process to end."""
        for held in list(self._held.values()):
            held.end(halt)

    def _trust(self, since: float) -> float:
        return since + self.timing.lease - self.timing.margin

    # ------------------------------------------------------------ lifetime

    async def start(self) -> None:
        """Start the renewing thread and the tasks that listen for stop requests and watch the trust."""
        self.attach()
        self._thread = threading.Thread(target=self._main, name="outlive-lease", daemon=True)
        self._thread.start()

    def attach(self) -> None:
        """Start what runs on the loop; without a thread, call ``watch_loop`` and ``renew_once``."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._tasks = [
            self._loop.create_task(self._listen_for_stops()),
            self._loop.create_task(self._watch_trust()),
        ]

    async def close(self) -> None:
        """Stop renewing; claims still held are left to expire."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._thread is not None:
            # A database that takes a statement and never answers must not hold up the end.
            await asyncio.to_thread(self._thread.join, self.timing.lease)

    def _main(self) -> None:
        while not self._stopping.wait(self.timing.renew_every):
            try:
                self.watch_loop()
                self.renew_once()
            except Exception as failure:  # a thread that died would cost every lease of this process
                self._failed("renewal", failure)

    def _failed(self, duty: str, failure: BaseException) -> None:
        error = repr(failure.__cause__ or failure)
        self._signals.emit(signals.BackgroundFailed(duty=duty, error=error))

    # ------------------------------------------------------------ one round, callable step by step

    def renew_once(self) -> None:
        """Renew every claim once, and ask again for those that a lock hid.  Blocks."""
        since = self._local.monotonic()
        asked = {} if self._given_up(since) else dict(self._held)
        missing: Sequence[Claim] = list(asked)
        try:
            for _ in range(3):
                if missing:
                    failpoints.reach("lease.renew")
                    renewed = self._store.renew(missing, self.timing.lease)
                    missing = self._apply(asked, missing, renewed, since)
        except errors.Unavailable as failure:
            self._failed("renewal", failure)
        else:
            self._doubt(asked, missing)

    def _apply(
        self, asked: Mapping[Claim, Held], missing: Sequence[Claim], renewed: Sequence[Renewed], since: float
    ) -> list[Claim]:
        answers = {(answer.run_id, answer.epoch): answer for answer in renewed}
        still = []
        for claim in missing:
            answer = answers.get((claim.run_id, claim.epoch))
            if answer is None:
                still.append(claim)
                continue
            self.extend(asked[claim], since)
            if answer.stop_requested:
                self._on_loop(asked[claim].end, Halt.STOP, answer.stop_reason)
        return still

    def _doubt(self, asked: Mapping[Claim, Held], missing: Sequence[Claim]) -> None:
        """Have a claim looked up instead of guessing: a lock hides a row once, but hardly twice.

        Past its trust nothing is put down to a lock.
        """
        doubted = {
            claim: asked[claim]
            for claim in missing
            if claim in self._missed or self.trust_left(asked[claim]) <= 0
        }
        self._missed = set(missing)
        if doubted:
            self._on_loop(self._have_looked_up, doubted)

    def _have_looked_up(self, doubted: Mapping[Claim, Held]) -> None:
        self._doubted.update(doubted)
        self._store.hub.wake((wakeup.STOP,))

    def _on_loop(self, call: Callable[..., object], *args: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(call, *args)

    # ------------------------------------------------------------ trust

    async def _watch_trust(self) -> None:
        """On the loop, not in the renewing thread: a frozen database may hold that one for ever."""
        while True:
            await asyncio.sleep(self.timing.renew_every)
            self.look_at_trust()

    def look_at_trust(self) -> None:
        """End every attempt whose lease this process can no longer vouch for."""
        for held in list(self._held.values()):
            if self.trust_left(held) <= 0:
                held.end(Halt.LOST)

    # ------------------------------------------------------------ the event loop's pulse

    def watch_loop(self) -> None:
        """Report an event loop that has not turned for ``stall_after`` seconds, once per stall.

        Timed from the question, not from the last answer: a slow renewal asks late and proves nothing.
        """
        if self._asked is None:
            self._asked = self._local.monotonic()
            self._on_loop(self._tick)
            return
        quiet = self._local.monotonic() - self._asked
        if quiet > self.timing.stall_after and self._stalled is None:
            self._stalled = where = self._where()
            self._signals.emit(signals.LoopStalled(seconds=round(quiet, 1), where=where))

    def _tick(self) -> None:
        held, where = self._lag(), self._stalled
        self._longest_lag = max(self._longest_lag, held)
        self._asked = None
        self._stalled = None
        if where is not None:
            self._signals.emit(signals.LoopResumed(seconds=round(held, 1), where=where))

    def _lag(self) -> float:
        asked = self._asked
        return 0.0 if asked is None else self._local.monotonic() - asked

    def take_lag(self) -> float:
        """Return the longest that the loop has let a question wait since the last call; from any thread."""
        longest, self._longest_lag = max(self._longest_lag, self._lag()), 0.0
        return longest

    def _given_up(self, now: float) -> bool:
        return self._asked is not None and now - self._asked > self.timing.stall_limit

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
                except Exception as failure:  # a listener that died would leave every stop to the renewals
                    self._failed("stop requests", failure)

    async def look_for_stops(self) -> None:
        """Read which claims still stand and which were asked to stop, and end those attempts."""
        doubted, self._doubted = self._doubted, {}
        claims = {**self._held, **doubted}
        if not claims:
            return
        standing = {
            (answer.run_id, answer.epoch): answer
            for answer in await self._store.read(reads.held(list(claims)))
        }
        for claim, held in claims.items():
            answer = standing.get((claim.run_id, claim.epoch))
            if answer is None:
                self._lost(held, renewal_refused=claim in doubted)
            elif answer.stop_requested:
                held.end(Halt.STOP, answer.stop_reason)

    def _lost(self, held: Held, renewal_refused: bool) -> None:
        if renewal_refused and not held.ending:
            claim, write = held.claim, signals.Write.RENEWAL
            self._signals.emit(signals.StaleWriteRefused(run_id=claim.run_id, epoch=claim.epoch, write=write))
        held.end(Halt.LOST)
