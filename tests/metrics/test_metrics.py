"""Each metric moves by exactly what happened, and a scrape costs and blocks nobody."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import pytest
from prometheus_client import parser

import outlive
from core import record, support
from metrics import causes
from outlive import errors
from outlive.metrics import Metrics
from outlive.metrics.definitions import METRICS, Kind, node
from outlive.store import standing_reads
from webhooks import support as hooks


def value(page: bytes, name: str, labels: dict[str, str]) -> float:
    """What a scrape says of one sample; 0 if it says nothing."""
    for family in parser.text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return 0.0


def _get(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=support.WITHIN) as answer:
        return bytes(answer.read())


async def scraped(port: int) -> bytes:
    return await asyncio.to_thread(_get, port)


async def _seen(served: outlive.Outlive, metrics: Metrics) -> bytes:
    await metrics.look()
    return await metrics.page()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
async def test_a_metric_moves_by_exactly_what_happened(metric: Any, sqlite_url: str) -> None:
    cause, wanted, labels = causes.CAUSES[metric.name]
    scene: Any = None
    webhooks = hooks.webhooks() if metric.name in causes.HOOKED else None
    served = outlive.Outlive(sqlite_url, causes.agents(lambda: scene), webhooks=webhooks)
    async with served:
        metrics = Metrics(served, looks_every=0.0)
        scene = causes.Scene(served=served, database=sqlite_url, metrics=metrics, heard=support.heard(served))
        await asyncio.wait_for(cause(scene), support.WITHIN)
        page = await _seen(served, metrics)
        scene.open.set()
        # What a cause has written there by hand is of no run's end.
        record.execute(sqlite_url, "DELETE FROM outbox WHERE notification_id = 'n'")
        tolerance = 5.0 if metric.kind is Kind.GAUGE and metric.name.endswith("_seconds") else 0.0
        for name, amount in wanted.items():
            assert amount <= value(page, name, labels) <= amount + tolerance, page.decode()


def test_every_metric_has_a_cause() -> None:
    assert set(causes.CAUSES) == {metric.name for metric in METRICS}


async def test_what_is_exported_is_what_is_defined(sqlite_url: str) -> None:
    async with support.serving(sqlite_url) as served:
        metrics = Metrics(served)
        await metrics.look()
        families = parser.text_string_to_metric_families((await metrics.page()).decode())
        # When each was made is told as well, by the library, as gauges of their own.
        exported = {one.name: one.type for one in families if not one.name.endswith("_created")}
    defined = {metric.name: metric.kind.value for metric in METRICS}
    assert exported.items() <= defined.items()
    without_labels = {metric.name for metric in METRICS if not metric.labels}
    assert without_labels <= exported.keys()


async def test_a_run_that_is_stopped_before_it_began_is_counted_once(database: str) -> None:
    async with support.serving(database, support.job("agent")(_nothing)) as served:
        metrics = Metrics(served)
        run = (await served.submit("agent", not_before=4e9)).run
        await served.stop(run.run_id)
        page = await metrics.page()
    assert value(page, "outlive_runs_ended_total", {"state": "stopped", "reason": "requested"}) == 1.0


async def test_many_scrapes_at_once_ask_the_database_once(database: str) -> None:
    async with support.serving(database) as served:
        metrics, asked = Metrics(served), []
        read = served.store.read

        async def counted(script: Any, **options: Any) -> Any:
            asked.append(script.name)
            return await read(script, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(served.store, "read", counted)
            async with metrics.served(0) as port:
                pages = await asyncio.gather(*(scraped(port) for _ in range(12)))
        assert asked.count("standing") == 1
        assert all(value(page, "outlive_database_answers", {}) == 1.0 for page in pages)


async def test_a_scrape_is_answered_while_the_loop_stands_still(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlive.metrics.PATIENCE", 0.1)
    async with support.serving(sqlite_url) as served, Metrics(served).served(0) as port:
        page = _get(port)  # here, on the loop: it does not turn meanwhile
    assert value(page, "outlive_database_answers", {}) == 0.0
    assert b"outlive_slots" in page
    assert b"outlive_runs{" not in page


async def test_a_database_that_does_not_answer_leaves_the_other_metrics(sqlite_url: str) -> None:
    async with support.serving(sqlite_url) as served:
        metrics = Metrics(served, looks_every=0.0)

        async def fails(*_: Any, **__: Any) -> Any:
            raise errors.StoreUnavailable

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(served.store, "read", fails)
            page = await metrics.page()
        assert value(page, "outlive_database_answers", {}) == 0.0
        assert value(await metrics.page(), "outlive_database_answers", {}) == 1.0


async def test_a_port_that_is_taken_is_refused_by_name(sqlite_url: str) -> None:
    async with support.serving(sqlite_url) as served:
        metrics = Metrics(served)
        async with metrics.served(0) as port:
            with pytest.raises(errors.Misconfigured, match=f"127.0.0.1:{port}"):
                async with metrics.served(port):
                    raise AssertionError("served twice")


async def test_two_runtimes_of_one_process_count_apart(sqlite_url: str) -> None:
    quick = support.job("agent")(_nothing)
    async with (
        support.serving(sqlite_url, quick, slots=0) as one,
        support.serving(sqlite_url, quick, slots=0) as other,
    ):
        counts = Metrics(one), Metrics(other)
        await one.submit("agent")
        pages = [await metrics.page() for metrics in counts]
        record.execute(sqlite_url, "UPDATE runs SET agent = agent")
    assert [value(page, "outlive_runs_submitted_total", {"agent": "agent"}) for page in pages] == [1.0, 0.0]


async def test_how_things_stand_is_read_of_both_databases(database: str) -> None:
    async with support.serving(database, support.job("agent")(_nothing), slots=0) as served:
        await served.submit("agent")
        found = {line.what: line for line in await served.store.read(standing_reads.standing())}
    assert (found["queued"].agent, found["queued"].count) == ("agent", 1)
    assert {what: line.count for what, line in found.items() if what != "queued"} == {
        "unknown_effects": 0,
        "torn_threads": 0,
        "notifications": 0,
    }


def test_a_node_is_named_without_its_line() -> None:
    assert node("look_up (tools.py:12) < call (graph.py:3)") == "look_up (tools.py)"
    assert node("unknown") == "unknown"


async def _nothing(context: outlive.Context) -> Any:
    yield 1
