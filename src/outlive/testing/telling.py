"""Kills a process around a notification, lets another go on, and says what the receiver heard.

Decides the points and what must come of each.  Used by the tests and by the laboratory alike.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import outlive
from outlive import notifications, policy, runtime, seams
from outlive.model import Run, Submission
from outlive.store import moves
from outlive.testing.processes import Process
from outlive.testing.receiver import Receiver, Reply, Told

AGENTS = "outlive.testing.telling:agents"
SECRET = notifications.new_secret(bytes(range(32)))
OPTIONS: Mapping[str, Any] = {
    "secrets": [SECRET],
    "networks": ["127.0.0.0/8"],
    "timeout": 2.0,
    "margin": 0.5,
    "delay": 0.2,
}
SHORT = {"lease": 1.5, "renew_every": 0.3, "margin": 0.2}
"""Seconds: so that a dead process is replaced soon."""
WITHIN = 40.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Where the process dies: at a failpoint, or (``armed`` empty) while the receiver works.

    ``heard``: how often the receiver must hear of it.  ``replies``: how it answers first.
    """

    name: str
    armed: str
    heard: int
    replies: tuple[Reply, ...] = ()


POINTS = (
    Point(name="before the end is committed", armed="finish=kill", heard=1),
    Point(name="after the commit", armed="outbox.due=kill", heard=1),
    Point(name="in hand, before it is sent", armed="outbox.taken=kill", heard=1),
    Point(name="while the receiver works", armed="", heard=2, replies=(Reply(hang=True),)),
    Point(name="after the answer, before that is noted", armed="outbox.sent=kill", heard=2),
    Point(
        name="after a failure, before the next try",
        armed="outbox.put_off=kill",
        heard=2,
        replies=(Reply(status=500),),
    ),
    Point(name="after the answer is noted", armed="outbox.delivered=kill", heard=1),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of it: the run, what the receiver was told of its end, and what the outbox says."""

    run: Run
    told: tuple[Told, ...]
    state: str
    attempts: int

    @property
    def same(self) -> bool:
        """Whether it was the same id and the same words each time."""
        return len({(each.id, each.body) for each in self.told}) == 1


@outlive.agent("brief", policy=policy.job(on_busy="enqueue"))
async def brief(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Ends at once."""
    yield context.input


agents = [brief]


async def crash(database: str, point: Point) -> Outcome:
    """Submit a run to a process that dies at ``point``; another one goes on until the receiver has it."""
    with Receiver(*point.replies) as receiver:
        async with runtime.Outlive(database, [], slots=0) as api:
            async with _process(database, point.armed) as first:
                run_id = await _submit(api, receiver.url)
                if not point.armed:
                    await receiver.heard(1, WITHIN)
                    first.kill()
                await first.ended(within=WITHIN)
                receiver.release()
            async with _process(database) as second:
                await receiver.heard(point.heard, WITHIN)
                # Whatever else there was to say comes before this: it is said receiver by receiver, in order.
                last = await _submit(api, receiver.url)
                await second.heard("NotificationDelivered", within=WITHIN, run_id=last)
            [row] = await api.notifications.of_run(run_id)
            told = tuple(each for each in receiver.told if json.loads(each.body)["data"]["run_id"] == run_id)
            return Outcome(run=await api.run(run_id), told=told, state=row.state.value, attempts=row.attempts)


def _process(database: str, points: str = "") -> Process:
    return Process(database, AGENTS, timing=SHORT, points=points, webhooks=OPTIONS)


async def _submit(api: runtime.Outlive, url: str) -> str:
    """Submit by hand: this process knows none of the agents, and sends nothing."""
    hooks = notifications.Webhooks(**OPTIONS)
    new = Submission(
        run_id=seams.new_id(),
        tenant="",
        agent="brief",
        input="1",
        fingerprint="",
        policy=brief.policy,
        notify=hooks.notify("", "brief", url),
    )
    return (await api.store.write(moves.submit(new, None))).run.run_id
