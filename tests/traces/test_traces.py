"""A run is one trace, wherever its attempts, its effects and the news of its end have been."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from opentelemetry import trace

import outlive
from core import record
from core import support as core
from core.support import job
from outlive import effects, errors, names, traces
from outlive.http import application
from outlive.testing import receiver, tracing
from outlive.testing.processes import Process
from processes import support as processes
from processes import workload
from traces import support
from traces.support import CALLER, PARENT, TRACE, Spans
from webhooks import support as hooks


@job("quick")
async def quick(context: outlive.Context) -> AsyncGenerator[Any, None]:
    yield 1


@job("waits")
async def waits(context: outlive.Context) -> AsyncGenerator[Any, None]:
    yield 1
    await asyncio.Event().wait()


@job("fails")
async def fails(context: outlive.Context) -> AsyncGenerator[Any, None]:
    yield 1
    raise ValueError("the customer's secret")


async def test_a_run_that_was_asked_for_over_http_belongs_to_the_trace_of_its_request(database: str) -> None:
    spans = Spans()
    async with support.serving(database, spans, quick) as served:
        transport = httpx.ASGITransport(application.application(served))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.post("/runs", json={"agent": "quick"}, headers={"traceparent": PARENT})
        await core.until(lambda: spans.named("run.attempt"))
    assert spans.tree() == ["run.submit", "  run.attempt"]
    submit, attempt = spans.one("run.submit"), spans.one("run.attempt")
    assert submit.parent == CALLER
    about = {"run_id": answer.json()["run_id"], "agent": "quick", "thread_id": submit.about["thread_id"]}
    assert submit.about == {**about, "admitted": "created"}
    assert attempt.about == {**about, "epoch": 1, "state": "succeeded"}
    assert not attempt.failed


async def test_a_span_that_is_current_where_a_run_is_submitted_is_its_parent(sqlite_url: str) -> None:
    spans = Spans()
    async with support.serving(sqlite_url, spans, quick) as served:
        with spans.tracer.start_as_current_span("caller") as caller:
            await served.submit("quick", traceparent=PARENT)
            assert trace.get_current_span() is caller
        await core.until(lambda: spans.named("run.attempt"))
    mine = spans.one("caller").trace
    assert spans.tree(mine) == ["caller", "  run.submit", "    run.attempt"]


async def test_a_key_that_is_known_is_told_in_the_trace_of_who_repeats_it(sqlite_url: str) -> None:
    spans = Spans()
    async with support.serving(sqlite_url, spans, waits) as served:
        first = (await served.submit("waits", key="k", traceparent=PARENT)).run
        again = (await served.submit("waits", key="k", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")).run
        assert (again.run_id, again.traceparent) == (first.run_id, first.traceparent)
        found = spans.one("run.submit", admitted="attached")
        assert (found.trace, found.about["run_id"]) == ("a" * 32, first.run_id)


async def test_attempts_on_two_workers_an_effect_and_the_notification_are_one_trace(database: str) -> None:
    spans, other, arrived = Spans(), Spans(), asyncio.Event()

    @job("buys")
    async def buys(context: outlive.Context) -> AsyncGenerator[Any, None]:
        async def call() -> dict[str, bool]:
            with spans.tracer.start_as_current_span("somebody's client"):
                return {"ok": True}

        yield await effects.once("charge", key="k", call=call)
        if context.attempt == 1:
            arrived.set()
            await asyncio.Event().wait()

    with receiver.Receiver(503) as heard:
        hooked: dict[str, Any] = {"webhooks": hooks.webhooks(), "drain": 1.0}
        async with support.serving(database, spans, buys, **hooked) as first:
            await first.submit("buys", traceparent=PARENT, webhook=heard.url)
            await asyncio.wait_for(arrived.wait(), core.WITHIN)
        async with support.serving(database, other, buys, **hooked):
            await core.until(lambda: other.named("notification", state="delivered"))
    assert spans.tree() == ["run.submit", "  run.attempt", "    effect charge", "      somebody's client"]
    assert spans.one("run.attempt").about["state"] == "queued"
    assert spans.one("effect charge").about["state"] == "done"
    assert other.tree() == ["run.attempt", "  effect charge", "notification", "notification"]
    again = other.one("effect charge").about
    assert (again["ledger"], again["state"]) == ("answer", "done")
    later = [other.one("run.attempt", epoch=2), *other.named("notification")]
    assert {span.parent for span in later} == {spans.one("run.submit").span}
    missed, delivered = other.named("notification")
    assert (missed.about["state"], missed.failed) == ("pending", True)
    assert (delivered.about["attempts"], delivered.failed) == (2, False)


async def test_two_processes_share_the_trace_of_a_run_although_one_is_killed(database: str) -> None:
    spans = Spans()

    def worker() -> Process:
        return processes.worker(database, timing=processes.SHORT, also="outlive.testing.tracing:observed")

    async with support.serving(database, spans, *workload.agents, slots=0) as api, worker() as first:
        await first.line(traced=True)
        run = (await api.submit("steps", traceparent=PARENT)).run
        await first.line(began=run.run_id)
        async with worker() as second:
            first.kill()
            await second.line(began=run.run_id, attempt=2)
            for gate in ("first", "second"):
                second.open(gate)
            await core.until(lambda: _spans(second, "run.attempt"))
            (attempt,) = _spans(second, "run.attempt")
    assert (attempt.trace, attempt.parent) == (TRACE, spans.one("run.submit").span)
    assert (attempt.about["epoch"], attempt.about["state"]) == (3, "succeeded")
    # Its own span died with it: whoever took the run from it tells of it, this process or the second.
    (lost,) = spans.named("run.lost") or _spans(second, "run.lost")
    assert (lost.trace, lost.parent, lost.about["epoch"]) == (TRACE, attempt.parent, 1)
    assert lost.about["state"] == "queued"
    assert lost.begun < lost.ended


def _spans(process: Process, name: str) -> list[tracing.Told]:
    found = [tracing.Told(**line["span"]) for line in process.said() if "span" in line]
    return [span for span in found if span.name == name]


async def test_the_span_of_a_stopped_run_says_so_and_is_no_error(database: str) -> None:
    spans = Spans()
    async with support.serving(database, spans, waits) as served:
        run = (await served.submit("waits")).run
        await core.seen(served, run.run_id, 1)
        await served.stop(run.run_id)
        await core.until(lambda: spans.named("run.attempt"))
    found = spans.one("run.attempt")
    assert (found.about["state"], found.about["reason"], found.failed) == ("stopped", "requested", False)


@pytest.mark.parametrize("messages", [False, True])
async def test_the_span_of_a_failed_run_has_the_kind_of_its_failure_and_its_text_if_asked(
    messages: bool, sqlite_url: str
) -> None:
    spans = Spans()
    async with support.serving(sqlite_url, spans, fails, messages=messages) as served:
        await served.submit("fails")
        await core.until(lambda: spans.named("run.attempt"))
    found = spans.one("run.attempt")
    assert (found.failed, found.about["error.type"]) == (True, "ValueError")
    assert ("customer" in str(found.about)) is messages


async def test_an_attempt_that_has_lost_its_run_says_so(database: str) -> None:
    spans, arrived, go_on = Spans(), asyncio.Event(), asyncio.Event()

    @job("goes_on")
    async def goes_on(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        arrived.set()
        await go_on.wait()
        yield 2
        await asyncio.Event().wait()

    async with support.serving(database, spans, goes_on) as served:
        run = (await served.submit("goes_on")).run
        await asyncio.wait_for(arrived.wait(), core.WITHIN)
        record.execute(database, f"UPDATE runs SET epoch = epoch + 1 WHERE run_id = '{run.run_id}'")
        go_on.set()
        await core.until(lambda: spans.named("run.attempt"))
        assert spans.one("run.attempt").about["state"] == "lost"
        await served.stop(run.run_id)


async def test_an_effect_that_is_cut_and_one_that_fails_say_what_became_of_them(sqlite_url: str) -> None:
    spans, arrived = Spans(), asyncio.Event()

    @job("buys")
    async def buys(context: outlive.Context) -> AsyncGenerator[Any, None]:
        async def declined() -> None:
            raise effects.Declined("the customer's secret")

        async def hangs() -> None:
            arrived.set()
            await asyncio.Event().wait()

        with contextlib.suppress(effects.Declined):
            await effects.once("refund", key="k", call=declined)
        yield await effects.once("charge", key="k", call=hangs)

    async with support.serving(sqlite_url, spans, buys) as served:
        run = (await served.submit("buys")).run
        await asyncio.wait_for(arrived.wait(), core.WITHIN)
        await served.stop(run.run_id)
        await core.until(lambda: spans.named("run.attempt"))
    declined = spans.one("effect refund")
    assert (declined.about["state"], declined.about["error.type"]) == ("failed", "Declined")
    assert (declined.failed, "secret" in str(declined)) == (True, False)
    cut = spans.one("effect charge")
    assert (cut.about["state"], cut.about["cut"], cut.failed) == ("unknown", True, False)


async def test_an_effect_in_a_thread_is_within_its_span_there(sqlite_url: str) -> None:
    spans = Spans()

    def node() -> None:
        def call() -> None:
            with spans.tracer.start_as_current_span("somebody's client"):
                return

        effects.once_in_thread("charge", key="k", call=call)
        with spans.tracer.start_as_current_span("after it"):
            return

    @job("threads")
    async def threads(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(node)
        yield 1

    async with support.serving(sqlite_url, spans, threads) as served:
        await served.submit("threads", traceparent=PARENT)
        await core.until(lambda: spans.named("run.attempt"))
    assert spans.tree() == [
        *("run.submit", "  run.attempt", "    effect charge", "      somebody's client", "    after it"),
    ]


async def test_the_trace_of_a_request_is_kept_where_nobody_traces(database: str) -> None:
    async with core.serving(database, quick) as served:
        run = (await served.submit("quick", traceparent=PARENT)).run
        assert (run.traceparent, (await served.run(run.run_id)).traceparent) == (PARENT, PARENT)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", PARENT.upper(), f"ff{PARENT[2:]}", f"{PARENT}-more", PARENT.replace(TRACE, "0" * 32)),
        *(PARENT.replace(CALLER, "0" * 16), f"{PARENT}\n", f"01{PARENT[2:]}-{'x' * 600}"),
    ],
)
async def test_a_header_that_is_none_is_ignored(text: str, sqlite_url: str) -> None:
    assert names.traceparent(text) is None
    async with core.serving(sqlite_url, quick) as served:
        assert (await served.submit("quick", traceparent=text)).run.traceparent is None


def test_a_header_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert names.traceparent(f"01{PARENT[2:]}-more") == PARENT


async def test_one_runtime_is_traced_once(sqlite_url: str) -> None:
    async with core.serving(sqlite_url) as served:
        traces.observe(served, Spans().provider)
        with pytest.raises(errors.Misconfigured):
            traces.observe(served, Spans().provider)


def test_the_core_knows_nothing_of_opentelemetry() -> None:
    code = "import sys, outlive.runtime; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
