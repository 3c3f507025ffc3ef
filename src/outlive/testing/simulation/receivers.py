"""Who is told of runs' ends: what they heard, and how they answer.

Decides what a receiver can do to a notification: take it, refuse it, or never answer.  It knows nothing of
runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from outlive import outbox, seams, signals
from outlive.notifications import Answer, Came, Notification, Webhooks, new_secret
from outlive.store import Store
from outlive.testing.simulation.history import History, Told

WEBHOOKS = Webhooks(secrets=(new_secret(bytes(32)),), timeout=1.0, margin=2.0, tries=1000, max_age=1e9)
TWICE = ("job", "once")
"""Agents whose runs two receivers are told of."""
ANSWERS_AFTER = 0.3
"""Virtual seconds after which a receiver answers."""
REFUSES, HANGS = 0.12, 0.06
"""How likely one try is refused, and how likely it never gets an answer."""


def who(tenant: str, agent: str, url: str | None) -> str | None:
    """Return who is told of a run's end; of those of strangers nobody is."""
    del url
    if tenant:
        return None
    names = ("r0", "r1") if agent in TWICE else ("r0",)
    told = [{"receiver": name, "url": f"https://{name}.example", "audience": "service"} for name in names]
    return json.dumps(told)


@dataclass(slots=True)
class Receivers:
    """All of them, as far as they can be told apart from here."""

    history: History
    now: Callable[[], float]
    roll: Callable[[], float]

    async def hear(self, sent: Notification, process: str) -> Answer:
        """Be told, and answer."""
        body = sent.body or ""
        self.history.told.append(
            Told(self.now(), process, sent.notification_id, sent.receiver, sent.run_id, body)
        )
        luck = self.roll()
        await asyncio.sleep(ANSWERS_AFTER if luck >= HANGS else WEBHOOKS.timeout)
        if luck < HANGS + REFUSES:
            return Answer(came=Came.MISSED, status=None if luck < HANGS else 500, why="no luck", theirs=True)
        self.history.took[sent.notification_id] = self.now()
        return Answer(came=Came.DELIVERED, status=204)


@dataclass(slots=True)
class Line:
    """One process's way to the receivers."""

    receivers: Receivers
    process: str

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def send(self, sent: Notification) -> Answer:
        """Tell once."""
        return await self.receivers.hear(sent, self.process)


def dispatcher(
    store: Store, receivers: Receivers, process: str, happenings: signals.Signals, local: seams.Seams
) -> outbox.Dispatcher:
    """Return what sends in one process: the real one, but for the wire."""
    return outbox.Dispatcher(
        store,
        WEBHOOKS,
        Line(receivers, process),
        happenings=happenings,
        waits=lambda tries: min(0.2 * tries, 2.0),
        circuit=lambda failures: min(0.5 * failures, 2.0),
        local=local,
    )
