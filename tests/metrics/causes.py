"""For each metric, how what it counts is made to happen, and what exactly is then to be read."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import outlive
from core import record, support
from outlive import Reason, State, effects, presence, seams, signals
from outlive.http import streaming
from outlive.metrics import Metrics
from outlive.testing import hearing, receiver
from schedules import support as schedules

LABELS = dict[str, str]


@dataclass(kw_only=True)
class Scene:
    """A runtime and what its agents wait for."""

    served: outlive.Outlive
    database: str
    metrics: Metrics
    heard: hearing.Hearing
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def running(self, agent: str = "waits", **how: Any) -> str:
        """A run whose agent has begun."""
        run = (await self.served.submit(agent, **how)).run
        await support.seen(self.served, run.run_id, 1)
        return run.run_id

    async def ran(self, agent: str, **how: Any) -> str:
        """A run that has ended."""
        run = (await self.served.submit(agent, **how)).run
        await self.heard.of(signals.RunEnded, run_id=run.run_id)
        return run.run_id

    def tell(self, happening: signals.Happening) -> None:
        """Let something happen that takes a broken database, a dead process or a receiver."""
        self.served.signals.emit(happening)


def agents(scene: Callable[[], Scene]) -> list[Any]:
    """What the scenes run."""

    @support.job("quick")
    async def quick(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    @support.job("waits")
    async def waits(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await scene().open.wait()
        yield 2

    @support.job("goes_on")
    async def goes_on(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await scene().open.wait()
        yield 2
        await asyncio.Event().wait()

    @support.job("untidy")
    async def untidy(context: outlive.Context) -> AsyncGenerator[Any, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("while closing")

    @support.job("stubborn", stop_deadline=0.1)
    async def stubborn(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        while not scene().open.is_set():
            try:
                await scene().open.wait()
            except asyncio.CancelledError:
                continue

    return [quick, waits, goes_on, untidy, stubborn, *_buyers()]


def _buyers() -> list[Any]:
    @support.job("buys")
    async def buys(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield await effects.once("charge", key="k", call=lambda: {"ok": True})

    @support.job("unsure", on_unknown="fail")
    async def unsure(context: outlive.Context) -> AsyncGenerator[Any, None]:
        def call() -> None:
            raise ConnectionError

        yield await effects.once("charge", key="k", call=call)

    @support.job("asks")
    async def asks(context: outlive.Context) -> AsyncGenerator[Any, None]:
        def call() -> None:
            raise ConnectionError

        yield await effects.once("charge", key="k", call=call)

    return [buys, unsure, asks]


Cause = Callable[[Scene], Awaitable[None]]
CAUSES: dict[str, tuple[Cause, dict[str, float], LABELS]] = {}
"""By metric: the cause, the exported names that must have moved, by how much, and under which labels."""


def cause(name: str, _amount: float = 1.0, _part: str = "", /, **labels: str) -> Callable[[Cause], Cause]:
    def keep(made: Cause) -> Cause:
        CAUSES[name] = (made, {name + _part: _amount}, labels)
        return made

    return keep


def told(
    name: str, happening: signals.Happening, part: str = "_total", amount: float = 1.0, **labels: str
) -> None:
    async def tell(scene: Scene) -> None:
        scene.tell(happening)

    CAUSES[name] = (tell, {name + part: amount}, labels)


@cause("outlive_runs_submitted", 1.0, "_total", agent="quick")
@cause("outlive_runs_claimed", 1.0, "_total")
@cause("outlive_runs_ended", 1.0, "_total", state="succeeded", reason="")
@cause("outlive_finalisation_seconds", 1.0, "_count")
async def _a_run(scene: Scene) -> None:
    await scene.ran("quick")


@cause("outlive_stops_requested", 1.0, "_total", reason="requested")
async def _a_stop(scene: Scene) -> None:
    run_id = await scene.running()
    await scene.served.stop(run_id)
    await scene.heard.of(signals.RunEnded, state=State.STOPPED)


@cause("outlive_cleanups_failed", 1.0, "_total")
async def _untidy(scene: Scene) -> None:
    await scene.served.stop(await scene.running("untidy"))
    await scene.heard.of(signals.RunEnded, state=State.STOPPED)


@cause("outlive_slots_leaked", 1.0, "_total")
async def _stubborn(scene: Scene) -> None:
    await scene.served.stop(await scene.running("stubborn"))
    await scene.heard.of(signals.RunEnded, state=State.STOPPED)


@cause("outlive_effects_settled", 1.0, "_total", effect="charge", state="done")
async def _buys(scene: Scene) -> None:
    await scene.ran("buys")


@cause("outlive_effects_waiting", 1.0, "_total", effect="charge")
async def _asks(scene: Scene) -> None:
    await scene.served.submit("asks")
    await scene.heard.of(signals.EffectWaits)


@cause("outlive_effects_unknown")
async def _unsure(scene: Scene) -> None:
    await scene.ran("unsure")


@cause("outlive_stale_writes_refused", 1.0, "_total", write="event")
@cause("outlive_leases_lost", 1.0, "_total")
async def _displaced(scene: Scene) -> None:
    run_id = await scene.running("goes_on")
    record.execute(scene.database, f"UPDATE runs SET epoch = epoch + 1 WHERE run_id = '{run_id}'")
    scene.open.set()
    await scene.heard.of(signals.LeaseLost)


@cause("outlive_leases_expired", 1.0, "_total", by="expiry")
async def _expired(scene: Scene) -> None:
    await scene.served.submit("quick", not_before=4e9)
    record.execute(
        scene.database,
        "INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, payload, created_at)"
        " SELECT run_id, 1, thread_id, 1, 1, 'attempt', '{}', created_at FROM runs",
    )
    record.execute(scene.database, "UPDATE threads SET last_seq = 1")
    record.execute(
        scene.database,
        "UPDATE runs SET state = 'running', epoch = 1, claim_token = 'c', worker = 'gone', lease_until = 1,"
        " renewed_at = 1, last_seq = 1, not_before = NULL, started_at = created_at",
    )
    await scene.heard.of(signals.RunEnded)


@cause("outlive_recordings_failed", 1.0, "_total")
async def _unrecorded(scene: Scene) -> None:
    await scene.running("goes_on")
    with support.failing_once("recorder.append"):
        scene.open.set()
        await scene.heard.of(signals.RecordingFailed)


@cause("outlive_event_lag_seconds", 1.0, "_count")
async def _lag(scene: Scene) -> None:
    run_id = await scene.running()
    present = presence.Viewer(name=seams.new_id(), run_id=run_id, seen=2)
    frames = streaming._frames(scene.served, present, recorded=False)
    async with aclosing(frames), asyncio.timeout(support.WITHIN):
        waiting = asyncio.get_running_loop().create_task(anext(frames))
        await support.until(lambda: scene.served.presence.watching and not scene.served.presence._tasks)
        scene.open.set()
        await waiting
        async for _ in frames:
            break
    scene.served.presence.leave(present, presence.Left.DISCONNECT)


async def _midnight(scene: Scene, *, pause: bool) -> None:
    """A daily schedule that nothing has looked at for a day: one slot has come."""
    made = await scene.served.schedule("0 0 * * *", "quick", missed="latest")
    if pause:
        made = await scene.served.schedules.pause(made.schedule_id)
    await schedules.down_for(scene.served, made, 86_400)


@cause("outlive_schedule_slots_fired", 1.0, "_total")
@cause("outlive_schedule_seconds", 1.0, "_count")
async def _fires(scene: Scene) -> None:
    await _midnight(scene, pause=False)
    await scene.heard.of(signals.ScheduleFired)


@cause("outlive_schedule_slots_skipped", 1.0, "_total", reason="paused")
async def _skips(scene: Scene) -> None:
    await _midnight(scene, pause=True)
    await scene.heard.of(signals.ScheduleSkipped)


@cause("outlive_slots", kind="used")
async def _slot(scene: Scene) -> None:
    await scene.running()


@cause("outlive_runs", state="running", agent="waits")
async def _one_runs(scene: Scene) -> None:
    await scene.running()


@cause("outlive_queue_age_seconds", 60.0, agent="nobody")
async def _waits(scene: Scene) -> None:
    await scene.served.submit("quick", not_before=4e9)
    record.execute(
        scene.database, "UPDATE runs SET agent = 'nobody', not_before = NULL, created_at = created_at - 60000"
    )


@cause("outlive_loop_lag_seconds", 3.0)
async def _lagging(scene: Scene) -> None:
    keeper = scene.served._keeper
    keeper._asked = keeper._local.monotonic() - 3.0
    keeper._tick()


@cause("outlive_subscribers")
async def _watches(scene: Scene) -> None:
    run_id = await scene.running()
    await scene.served.presence.join(presence.Viewer(name="v", run_id=run_id, seen=0))


@cause("outlive_database_answers")
async def _answers(scene: Scene) -> None:
    return None


@cause("outlive_runs_handed_back", 1.0, "_total")
async def _hands_back(scene: Scene) -> None:
    await scene.running()
    await scene.served._worker.shutdown(support.WITHIN)


@cause("outlive_finalisations_failed", 1.0, "_total")
async def _no_verdict(scene: Scene) -> None:
    with support.failing_once("execution.finalise"):
        await scene.served.submit("quick")
        await scene.heard.of(signals.FinalisationFailed)


@cause("outlive_loop_stalls", 1.0, "_total", node="_holds_the_loop (causes.py)")
@cause("outlive_loop_stall_seconds", 1.0, "_count", node="_holds_the_loop (causes.py)")
async def _stalls(scene: Scene) -> None:
    noticed: queue.SimpleQueue[signals.Happening] = queue.SimpleQueue()
    scene.served.signals.listen(noticed.put)
    _holds_the_loop(noticed)
    await scene.heard.of(signals.LoopResumed)


def _holds_the_loop(noticed: queue.SimpleQueue[signals.Happening]) -> None:
    while not isinstance(noticed.get(timeout=support.WITHIN), signals.LoopStalled):
        continue


HOOKED = {"outlive_notification_seconds", "outlive_notification_tries_failed", "outlive_notifications_dead"}
"""Metrics whose scene sends webhooks."""


async def _notified(scene: Scene, wanted: type[Any], *replies: int) -> None:
    with receiver.Receiver(*replies) as hears:
        await scene.served.submit("quick", webhook=hears.url)
        await scene.heard.of(wanted)


@cause("outlive_notification_seconds", 1.0, "_count")
async def _delivered(scene: Scene) -> None:
    await _notified(scene, signals.NotificationDelivered)


@cause("outlive_notification_tries_failed", 2.0, "_total")
async def _misses(scene: Scene) -> None:
    await _notified(scene, signals.NotificationDelivered, 500, 503)


@cause("outlive_notifications_dead", 1.0, "_total")
async def _gone(scene: Scene) -> None:
    await _notified(scene, signals.NotificationDead, 410)


@cause("outlive_background_failures", 1.0, "_total", duty="schedules")
async def _fails(scene: Scene) -> None:
    with support.failing_once("schedules.planned"):
        await scene.heard.of(signals.BackgroundFailed)


told("outlive_store_retries", signals.StoreRetried(script="append", error="e"), script="append")
told("outlive_wakeups_degraded", signals.WakeupsDegraded(why="silent"))
told("outlive_wakeups_restored", signals.WakeupsRestored())


def rows(name: str, sql: str, amount: float = 1.0, **labels: str) -> None:
    """A metric of the database: made to be by a row as other processes leave it."""

    async def write(scene: Scene) -> None:
        await scene.ran("quick")
        record.execute(scene.database, sql)

    CAUSES[name] = (write, {name: amount}, labels)


rows("outlive_threads_torn", "UPDATE threads SET position = 'torn'")
OUTBOX = (
    "INSERT INTO outbox (notification_id, tenant, run_id, kind, receiver, url, audience, state, next_at,"
    " created_at, queued_at) SELECT 'n', '', run_id, 'run.ended', 'x', 'https://x', 'tenant', 'pending',"
    " 4000000000000, created_at, created_at - {ms} FROM runs"
)
rows("outlive_notifications_pending", OUTBOX.format(ms=0))
rows("outlive_notification_age_seconds", OUTBOX.format(ms=90_000), 90.0)
LEFT = (
    "INSERT INTO presence (viewer, run_id, joined_at, lease_until, left_at, cause, last_seq)"
    " SELECT 'v', run_id, created_at, created_at, started_at - 1, 'disconnect', 0 FROM runs"
)


@cause("outlive_unwatched_chunks", 1.0, agent="quick")
@cause("outlive_unwatched_seconds", 7.0, agent="quick")
async def _unwatched(scene: Scene) -> None:
    await scene.ran("quick")
    record.execute(scene.database, LEFT)
    record.execute(scene.database, "UPDATE runs SET started_at = ended_at - 7000")
    record.execute(scene.database, "UPDATE presence SET left_at = left_at - 7000")


@cause("outlive_thrown_away_chunks", 1.0, agent="waits", reason="requested")
@cause("outlive_thrown_away_seconds", 7.0, agent="waits", reason="requested")
async def _thrown_away(scene: Scene) -> None:
    await scene.served.stop(await scene.running())
    await scene.heard.of(signals.RunEnded, state=State.STOPPED, reason=Reason.REQUESTED)
    record.execute(scene.database, "UPDATE runs SET started_at = ended_at - 7000")
