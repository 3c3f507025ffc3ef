"""Metrics for Prometheus: counted from happenings as they are told, asked of the process and the database.

Decides how a scrape is answered: by a thread of its own on a port of its own, so that it neither waits for an
event loop that stands still nor holds one up, and tenants cannot reach it.  The database is asked at most one
statement in ``LOOKS_EVERY`` seconds, whoever scrapes.  What is counted, ``definitions`` says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import prometheus_client as prometheus
from prometheus_client import core, exposition

from outlive import errors, signals
from outlive.metrics.definitions import BY_NAME, METRICS, SECONDS, Kind, Metric
from outlive.runtime import Outlive
from outlive.store import standing_reads
from outlive.store.standing_reads import Cost, Standing

LOOKS_EVERY = 5.0
"""Seconds for which a look at how things stand is good."""
COSTS_EVERY = 60.0
COST_WINDOW = 3600.0
"""Seconds: what policies cost is told of the runs that ended in the last hour."""
PATIENCE = 2.0
"""Seconds that a scrape waits for the database."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    standing: Sequence[Standing]
    costs: Sequence[Cost]
    at: float
    costs_at: float


class Metrics:
    """The metrics of one ``Outlive``, in a registry of their own.  Make it on its event loop."""

    def __init__(self, outlive: Outlive, *, looks_every: float = LOOKS_EVERY) -> None:
        """Count from now on.  ``looks_every``: seconds for which an answer of the database is good."""
        self.registry = prometheus.CollectorRegistry()
        self._outlive = outlive
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._looks_every = looks_every
        self._one_looks = threading.Lock()
        self._look: _Look | None = None
        self._answers = False
        self._moved: dict[type, list[tuple[Metric, Any]]] = {}
        for metric in METRICS:
            self._register(metric)
        self.registry.register(self)
        outlive.signals.listen(self._count)
        outlive.presence.on_lag = self._lags.observe

    def _register(self, metric: Metric) -> None:
        if metric.kind is Kind.GAUGE:
            return
        made: Any
        if metric.kind is Kind.COUNTER:
            made = prometheus.Counter(metric.name, metric.meaning, metric.labels, registry=self.registry)
        else:
            made = prometheus.Histogram(
                metric.name, metric.meaning, metric.labels, buckets=SECONDS, registry=self.registry
            )
        if metric.name == "outlive_event_lag_seconds":
            self._lags = made
        for happening in metric.sources:
            self._moved.setdefault(happening, []).append((metric, made))

    def _count(self, happening: signals.Happening) -> None:
        for metric, made in self._moved.get(type(happening), ()):
            if (sample := metric.sources[type(happening)](happening)) is not None:
                child = made.labels(*sample.labels) if metric.labels else made
                (child.inc if metric.kind is Kind.COUNTER else child.observe)(sample.value)

    # ------------------------------------------------------------ what is asked

    def collect(self) -> Iterator[core.Metric]:
        """Yield the gauges; called by the registry, in a scrape's thread."""
        if threading.get_ident() != self._thread:  # on the loop itself there is no waiting for the loop
            self._look_from_thread()
        yield from self._process()
        if self._look is not None and self._answers:
            yield from _standing(self._look.standing)
            yield from _costs(self._look.costs)

    def describe(self) -> list[core.Metric]:
        """Name nothing in advance: the registry would ask the database to find out."""
        return []

    def _process(self) -> Iterator[core.Metric]:
        slots = self._outlive.slots_now()
        kinds = {("total",): slots.total, ("used",): slots.used, ("leaked",): slots.leaked}
        yield _gauge("outlive_slots", kinds)
        yield _gauge("outlive_subscribers", {(): self._outlive.presence.watching})
        yield _gauge("outlive_loop_lag_seconds", {(): self._outlive.loop_lag()})
        yield _gauge("outlive_database_answers", {(): int(self._answers)})

    def _look_from_thread(self) -> None:
        with self._one_looks:
            if self._look is not None and time.monotonic() - self._look.at < self._looks_every:
                return
            looking = self.look()
            try:
                asking = asyncio.run_coroutine_threadsafe(looking, self._loop)
            except RuntimeError:  # the loop is closed
                looking.close()
                self._answers = False
                return
            try:
                asking.result(PATIENCE * 1.5)
            except TimeoutError:
                asking.cancel()
                self._answers = False

    async def look(self) -> None:
        """Ask the database how things stand."""
        now, before, store = time.monotonic(), self._look, self._outlive.store
        try:
            standing = await store.read(standing_reads.standing(), budget=PATIENCE)
            if before is None or now - before.costs_at >= min(COSTS_EVERY, self._looks_every * 12):
                costs, costs_at = await store.read(standing_reads.costs(COST_WINDOW), budget=PATIENCE), now
            else:
                costs, costs_at = list(before.costs), before.costs_at
        except errors.OutliveError:
            self._answers = False
            return
        self._look = _Look(standing=standing, costs=costs, at=now, costs_at=costs_at)
        self._answers = True

    # ------------------------------------------------------------ how it is told

    async def page(self) -> bytes:
        """Return what a scrape is answered, for a route of your own; whoever may see it is yours to say."""
        if self._look is None or time.monotonic() - self._look.at >= self._looks_every:
            await self.look()
        return exposition.generate_latest(self.registry)

    @asynccontextmanager
    async def served(self, port: int, host: str = "127.0.0.1") -> AsyncIterator[int]:
        """Answer scrapes on a port of its own, 0 for any free one, and yield which; raises ``Misconfigured``.

        Nobody is authenticated: leave ``host`` as it is, or choose an address that only Prometheus reaches.
        """
        try:
            server, thread = prometheus.start_http_server(port, host, self.registry)
        except OSError as failure:
            raise errors.Misconfigured(
                f"Metrics cannot be served on {host}:{port}: {failure.strerror}.",
                hint="Each process needs a metrics_port of its own; 0 takes any free one.",
            ) from failure
        try:
            yield server.server_port
        finally:
            await asyncio.to_thread(_end, server, thread)


def _end(server: Any, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join(PATIENCE)


def _gauge(name: str, values: Mapping[Any, float]) -> core.Metric:
    metric = BY_NAME[name]
    family = core.GaugeMetricFamily(name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


_PLAIN = {
    "unknown_effects": "outlive_effects_unknown",
    "torn_threads": "outlive_threads_torn",
    "notifications": "outlive_notifications_pending",
}


def _standing(lines: Sequence[Standing]) -> Iterator[core.Metric]:
    runs = [line for line in lines if line.what not in _PLAIN]
    yield _gauge("outlive_runs", {(line.what, line.agent): line.count for line in runs})
    waiting = {(line.agent,): line.age for line in runs if line.what == "queued"}
    yield _gauge("outlive_queue_age_seconds", waiting)
    for line in lines:
        if line.what in _PLAIN:
            yield _gauge(_PLAIN[line.what], {(): line.count})
        if line.what == "notifications":
            yield _gauge("outlive_notification_age_seconds", {(): line.age})


def _costs(costs: Sequence[Cost]) -> Iterator[core.Metric]:
    sums: dict[str, dict[tuple[str, ...], float]] = {}

    def add(name: str, value: float, *labels: str) -> None:
        into = sums.setdefault(name, {})
        into[labels] = into.get(labels, 0.0) + value

    for cost in costs:
        add("outlive_unwatched_seconds", cost.unwatched_seconds, cost.agent)
        add("outlive_unwatched_chunks", cost.unwatched_chunks, cost.agent)
        if cost.state == "stopped":
            add("outlive_thrown_away_seconds", cost.spent_seconds, cost.agent, cost.reason)
            add("outlive_thrown_away_chunks", cost.spent_chunks, cost.agent, cost.reason)
    for name, values in sums.items():
        yield _gauge(name, values)
