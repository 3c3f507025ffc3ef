"""Sends what runs' ends have written into the outbox, until it is delivered or given up.

Decides who is sent to next, how much at once, and what becomes of a try.  Any number of processes may do so
side by side: a row is in one hand at a time, for the length of a lease, and what a process that died had in
hand is sent again by another.  So a receiver hears of an end at least once, always in the same words.

A receiver that is slow has at most ``per_receiver`` tries under way in a process; one that does not answer is
left alone by all of them (its circuit is in the record), then tried by one row at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

from outlive import errors, failpoints, names, seams, signals, spans
from outlive.notifications import Answer, Came, Delivery, Notification, Webhooks, compose
from outlive.store import Store, outbox_moves, wakeup
from outlive.store.outbox_moves import Buried, Miss

TIDY_EVERY = 60.0
BATCH = 500
LOOK = 256
"""Receivers that one look considers."""
CLOSING = 5.0
MOST = 1000


class Sender(Protocol):
    """The way out; see ``webhooks``."""

    async def open(self) -> None:
        """Get ready."""
        ...

    async def send(self, sent: Notification) -> Answer:
        """Try once; whatever goes wrong on the way is an answer too."""
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...


Waits = Callable[[int], float]
"""Seconds to wait after so many tries, or failures."""


class Dispatcher:
    """One process's share of the sending."""

    def __init__(
        self,
        store: Store,
        webhooks: Webhooks,
        sender: Sender,
        *,
        happenings: signals.Signals,
        waits: Waits,
        circuit: Waits,
        local: seams.Seams = seams.REAL,
    ) -> None:
        """``waits`` is for a notification, ``circuit`` for a receiver that has failed too often in a row."""
        self._store = store
        self._webhooks = webhooks
        self._sender = sender
        self._signals = happenings
        self._waits = waits
        self._circuit = circuit
        self._local = local
        self._compose = functools.partial(compose, webhooks=webhooks)
        self._sending: dict[asyncio.Task[None], str] = {}
        self._last = ""
        self._held_back = False
        self._waiter: wakeup.Waiter | None = None
        self._tidied = local.monotonic()

    async def run(self) -> None:
        """Send for ever: at each hint, and at least once in a poll interval."""
        await self._sender.open()
        with self._store.hub.watch(wakeup.OUTBOX) as waiter:
            self._waiter = waiter
            while True:
                waiter.clear()
                try:
                    await self.look_once()
                    await self._tidy()
                except Exception as failure:  # one row that cannot be read must not end the sending
                    self._signals.emit(signals.BackgroundFailed(duty="outbox", error=repr(failure)))
                await waiter.wait(self._store.hub.poll * (0.8 + 0.4 * self._local.random()))

    async def close(self) -> None:
        """Let what is being sent come to its end, for a few seconds; the record knows what did not."""
        if self._sending:
            await asyncio.wait(set(self._sending), timeout=CLOSING)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._sender.close()

    async def look_once(self) -> int:
        """Take what is due, as far as there is room, and begin to send it; returns how many that are."""
        under_way = Counter(self._sending.values())
        of_tenant = Counter(map(_tenant, self._sending.values()))
        most, room = self._webhooks.per_receiver, self._webhooks.at_once - len(self._sending)
        busy = [receiver for receiver, count in under_way.items() if count >= most]
        self._held_back = bool(busy) or room <= 0
        begun = 0
        if room <= 0:
            return 0
        for receiver in await self._store.read(outbox_moves.due(busy, LOOK, self._last)):
            tenant = _tenant(receiver)
            share = min(most - under_way[receiver], room - begun, self._bound(tenant) - of_tenant[tenant])
            self._last = (
                receiver  # the next look goes on behind it, whatever comes of it: everybody has a turn
            )
            if share > 0:
                failpoints.reach("outbox.due")
                taken = await self._take(receiver, share)
                begun += taken
                of_tenant[tenant] += taken
            self._held_back = self._held_back or share <= 0
            if begun >= room:
                break
        return begun

    def _bound(self, tenant: str) -> int:
        """A tenant with a thousand receivers that hang has half of what can be sent at once, and no more."""
        return max(self._webhooks.at_once // 2, 1) if tenant else self._webhooks.at_once

    async def _take(self, receiver: str, share: int) -> int:
        lease = self._webhooks.timeout + self._webhooks.margin
        step = outbox_moves.take(receiver, share, self._local.new_id(), lease, self._compose)
        taken = await self._store.write(step)
        failpoints.reach("outbox.taken")
        self._bury(taken.buried)
        self._held_back = self._held_back or len(taken.rows) == share
        for sent in taken.rows:
            task = asyncio.get_running_loop().create_task(self._tell(sent))
            self._sending[task] = receiver
            task.add_done_callback(self._over)
        return len(taken.rows)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._signals.emit(signals.BackgroundFailed(duty="outbox", error=repr(failure)))
        if self._held_back and self._waiter is not None:
            self._waiter.set()

    async def _tell(self, sent: Notification) -> None:
        told = {"notification_id": sent.notification_id, "run_id": sent.run_id}
        trying = spans.Notifying(**told, attempts=sent.attempts, traceparent=sent.traceparent)
        with self._signals.during(trying):
            await self._try(sent)

    async def _try(self, sent: Notification) -> None:
        answer = await self._sender.send(sent)
        failpoints.reach("outbox.sent")
        match answer.came:
            case Came.DELIVERED:
                seconds = await self._store.write(outbox_moves.delivered(sent, answer.status or 200))
                failpoints.reach("outbox.delivered")
                if seconds is not None:
                    self._delivered(sent, seconds)
            case Came.GONE:
                self._bury(await self._store.write(outbox_moves.gone(sent, answer.status or 410)))
            case Came.MISSED:
                await self._miss(sent, answer)
            case _:
                assert_never(answer.came)

    def _delivered(self, sent: Notification, seconds: float) -> None:
        self._signals.emit(
            signals.NotificationDelivered(
                notification_id=sent.notification_id,
                run_id=sent.run_id,
                attempts=sent.attempts,
                seconds=seconds,
            )
        )

    async def _miss(self, sent: Notification, answer: Answer) -> None:
        delay = max(self._waits(sent.attempts), answer.after)
        last = sent.attempts >= self._webhooks.tries
        miss = Miss(
            why=answer.why,
            status=answer.status,
            delay=delay,
            last=last,
            theirs=answer.theirs,
            pause=lambda failures: max(self._pause(failures), answer.after),
        )
        if not await self._store.write(outbox_moves.missed(sent, miss)):
            return
        failpoints.reach("outbox.put_off")
        self._signals.emit(
            signals.NotificationFailed(
                notification_id=sent.notification_id,
                run_id=sent.run_id,
                attempts=sent.attempts,
                error=answer.why,
                again_in=None if last else delay,
            )
        )
        if last:
            self._bury([Buried(notification_id=sent.notification_id, run_id=sent.run_id, why=answer.why)])

    def _pause(self, failures: int) -> float:
        return self._circuit(failures - outbox_moves.TRIP + 1) if failures >= outbox_moves.TRIP else 0.0

    def _bury(self, buried: Iterable[Buried]) -> None:
        for each in buried:
            self._signals.emit(
                signals.NotificationDead(
                    notification_id=each.notification_id, run_id=each.run_id, why=each.why
                )
            )

    async def _tidy(self) -> None:
        if self._local.monotonic() - self._tidied >= TIDY_EVERY:
            self._tidied = self._local.monotonic()
            await self.tidy_once()

    async def tidy_once(self) -> int:
        """Give up what is too old, and delete what ended long ago; returns how many rows were deleted."""
        while buried := await self._store.write(outbox_moves.expire(self._webhooks.max_age, BATCH)):
            self._bury(buried)
        deleted = 0
        while gone := await self._store.write(outbox_moves.prune(self._webhooks.retention, BATCH)):
            deleted += gone
        return deleted


class Desk:
    """The outbox as people and programs see it: look, and send again."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def newest(
        self, *, tenant: str = "", limit: int = 50, state: Delivery | None = None, before: str | None = None
    ) -> list[Notification]:
        """Return up to ``limit`` notifications (1 to 1000), newest first, older than ``before``."""
        _check_limit(limit)
        names.check_name("before", before)
        return await self._store.read(
            outbox_moves.notifications(tenant, limit=limit, state=state, before=before)
        )

    async def of_run(
        self, run_id: str, *, tenant: str = "", limit: int = 50, state: Delivery | None = None
    ) -> list[Notification]:
        """Return the notifications of one run's end."""
        _check_limit(limit)
        names.check_name("run_id", run_id)
        return await self._store.read(outbox_moves.of_run(run_id, tenant, limit=limit, state=state))

    async def show(self, notification_id: str, *, tenant: str | None = "") -> Notification:
        """Return one notification; raises ``NotFound``."""
        names.check_name("notification_id", notification_id)
        return await self._store.read(outbox_moves.notification(notification_id, tenant))

    async def resend(self, notification_id: str, *, tenant: str | None = "") -> Notification:
        """Have one sent again, in the same words and with the same id; raises ``NotFound``.

        Also one that was delivered.  Its receiver is taken to be well, and its address to be there.
        """
        names.check_name("notification_id", notification_id)
        again = await self._store.write(outbox_moves.resend(notification_id, tenant))
        self._store.announce(wakeup.OUTBOX)
        return again


def _tenant(receiver: str) -> str:
    return receiver.rpartition(" ")[0]


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise errors.InvalidInput(f"limit must be between 1 and {MOST}.", field="limit")
