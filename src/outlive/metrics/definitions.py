"""Every metric: its name, its labels, what it means, and the happenings that move it.

Decides what is counted, and nothing about how it is asked for.  The page of documentation, the dashboard and
the alerts are held to this list by tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from outlive import signals

SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
SWEPT = "lost"


class Kind(StrEnum):
    """What a metric is to Prometheus."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class Sample(NamedTuple):
    """What one happening adds: 1 for a counter, an observation for a histogram, under these labels."""

    value: float
    labels: tuple[str, ...] = ()


Reading = Callable[[Any], Sample | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric.  ``sources``: what each kind of happening adds to it; without any it is asked at a scrape.

    ``shared``: it is about the whole database, and every process says the same.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    sources: Mapping[type, Reading] = field(default_factory=dict)
    shared: bool = False

    @property
    def exported(self) -> tuple[str, ...]:
        """The names under which its samples are exported."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.name}_total",)
            case Kind.HISTOGRAM:
                return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
            case Kind.GAUGE:
                return (self.name,)


def _one(*fields: str) -> Reading:
    """One more, under the labels that these fields of the happening say."""

    def read(happening: Any) -> Sample:
        return Sample(1.0, tuple(str(getattr(happening, name)) for name in fields))

    return read


def _counter(name: str, meaning: str, happening: type, **fields: str) -> Metric:
    """A counter of one kind of happening; ``fields`` names a label and the field that it is read from."""
    return Metric(
        name=name,
        kind=Kind.COUNTER,
        meaning=meaning,
        labels=tuple(fields),
        sources={happening: _one(*fields.values())},
    )


def _histogram(name: str, meaning: str, happening: type, read: Reading, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, meaning=meaning, labels=labels, sources={happening: read})


def _gauge(name: str, meaning: str, *labels: str, shared: bool = False) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, meaning=meaning, labels=labels, shared=shared)


def _swept(happening: signals.RunSwept) -> Sample | None:
    return Sample(1.0, (happening.state.value, SWEPT)) if happening.state.terminal else None


def _expired(happening: signals.RunSwept) -> Sample:
    return Sample(1.0, ("proof" if happening.early else "expiry",))


def node(where: str) -> str:
    """Name the code that held the loop, without its line: a label must not have a value per release."""
    innermost = where.split(" < ", 1)[0]
    name, opened, file = innermost.partition(" (")
    return f"{name} ({file.partition(':')[0]})" if opened else name


def _ended(happening: signals.RunEnded) -> Sample:
    return Sample(1.0, (happening.state.value, happening.reason.value if happening.reason else ""))


METRICS = (
    _counter("outlive_runs_submitted", "Runs that a submit made here.", signals.RunSubmitted, agent="agent"),
    _counter("outlive_runs_claimed", "Attempts that began here.", signals.RunClaimed),
    Metric(
        name="outlive_runs_ended",
        kind=Kind.COUNTER,
        meaning="Runs whose end this process put on record, by state and by the reason of a stop. `lost`: the"
        " sweeper ended it.",
        labels=("state", "reason"),
        sources={signals.RunEnded: _ended, signals.RunSwept: _swept},
    ),
    _counter(
        "outlive_runs_handed_back", "Runs that shutdown put back into the queue.", signals.RunHandedBack
    ),
    Metric(
        name="outlive_leases_expired",
        kind=Kind.COUNTER,
        meaning="Runs that were taken from an executor that is gone, by `expiry` of the lease or by `proof`"
        " that its process is dead.",
        labels=("by",),
        sources={signals.RunSwept: _expired},
    ),
    _counter("outlive_stops_requested", "Stops that were asked for.", signals.StopRequested, reason="reason"),
    _counter(
        "outlive_stale_writes_refused",
        "Writes of executors that no longer held their run, refused by the fence, by what they wrote.",
        signals.StaleWriteRefused,
        write="write",
    ),
    _counter(
        "outlive_leases_lost",
        "Attempts given up because their lease could not be trusted.",
        signals.LeaseLost,
    ),
    _counter(
        "outlive_recordings_failed",
        "Attempts that ended because events could not be stored.",
        signals.RecordingFailed,
    ),
    _counter(
        "outlive_finalisations_failed",
        "Verdicts that could not be stored within their deadline.",
        signals.FinalisationFailed,
    ),
    Metric(
        name="outlive_finalisation_seconds",
        kind=Kind.HISTOGRAM,
        meaning="From the end of an agent until its verdict was on record.",
        sources={signals.RunEnded: lambda happening: Sample(happening.seconds)},
    ),
    _counter("outlive_slots_leaked", "Stopped agents that did not return in time.", signals.SlotLeaked),
    _counter("outlive_cleanups_failed", "Agents whose closing raised.", signals.CleanupFailed),
    Metric(
        name="outlive_loop_stalls",
        kind=Kind.COUNTER,
        meaning="Times that the event loop stood still, by the code that held it.",
        labels=("node",),
        sources={signals.LoopStalled: lambda happening: Sample(1.0, (node(happening.where),))},
    ),
    _histogram(
        "outlive_loop_stall_seconds",
        "For how long it stood still.",
        signals.LoopResumed,
        lambda happening: Sample(happening.seconds, (node(happening.where),)),
        "node",
    ),
    _counter(
        "outlive_effects_settled",
        "Calls of effects that ended, by how.",
        signals.EffectSettled,
        effect="name",
        state="state",
    ),
    _counter(
        "outlive_effects_waiting",
        "Times that a run began to wait for a person's word.",
        signals.EffectWaits,
        effect="name",
    ),
    _histogram(
        "outlive_notification_seconds",
        "From a run's end until a receiver had its notification.",
        signals.NotificationDelivered,
        lambda happening: Sample(happening.seconds),
    ),
    _counter("outlive_notification_tries_failed", "Tries that failed.", signals.NotificationFailed),
    _counter("outlive_notifications_dead", "Notifications that were given up.", signals.NotificationDead),
    _counter("outlive_schedule_slots_fired", "Slots of schedules that became runs.", signals.ScheduleFired),
    _histogram(
        "outlive_schedule_seconds",
        "From a slot until its run was made: more than a moment if it was missed and caught up.",
        signals.ScheduleFired,
        lambda happening: Sample(happening.seconds),
    ),
    Metric(
        name="outlive_schedule_slots_skipped",
        kind=Kind.COUNTER,
        meaning="Slots of schedules that became none, by why.",
        labels=("reason",),
        sources={
            signals.ScheduleSkipped: lambda happening: Sample(float(happening.slots), (happening.reason,))
        },
    ),
    _counter("outlive_store_retries", "Transactions repeated.", signals.StoreRetried, script="script"),
    _counter(
        "outlive_background_failures",
        "Duties that failed and are tried again.",
        signals.BackgroundFailed,
        duty="duty",
    ),
    _counter("outlive_wakeups_degraded", "Times that wake-ups stopped coming.", signals.WakeupsDegraded),
    _counter("outlive_wakeups_restored", "Times that they came again.", signals.WakeupsRestored),
    Metric(
        name="outlive_event_lag_seconds",
        kind=Kind.HISTOGRAM,
        meaning="From the commit of an event, by the database's clock, until it was handed to a viewer's"
        " connection, by this process's. Only what was committed while the viewer was there.",
    ),
    _gauge("outlive_slots", "Slots: `total`, `used`, and `leaked` to agents that never returned.", "kind"),
    _gauge("outlive_subscribers", "Viewers that this process serves."),
    _gauge(
        "outlive_loop_lag_seconds",
        "The longest that the event loop let a question wait since the last scrape.",
    ),
    _gauge("outlive_database_answers", "1 if what follows is from the database now; 0 if it did not answer."),
    _gauge("outlive_runs", "Runs that are `queued` or `running`.", "state", "agent", shared=True),
    _gauge(
        "outlive_queue_age_seconds", "Since when the oldest queued run could begin.", "agent", shared=True
    ),
    _gauge("outlive_effects_unknown", "Effects of which nobody knows what became.", shared=True),
    _gauge("outlive_threads_torn", "Threads that were left part-way.", shared=True),
    _gauge("outlive_notifications_pending", "Notifications that are to be sent.", shared=True),
    _gauge("outlive_notification_age_seconds", "The age of the oldest of those.", shared=True),
    _gauge(
        "outlive_unwatched_seconds",
        "Seconds worked after the last viewer had left, by runs that ended in the last hour.",
        "agent",
        shared=True,
    ),
    _gauge("outlive_unwatched_chunks", "Chunks recorded in that time.", "agent", shared=True),
    _gauge(
        "outlive_thrown_away_seconds",
        "Seconds worked by runs that were stopped in the last hour, by the reason.",
        "agent",
        "reason",
        shared=True,
    ),
    _gauge("outlive_thrown_away_chunks", "Chunks that those had recorded.", "agent", "reason", shared=True),
)
BY_NAME = {metric.name: metric for metric in METRICS}
