"""Whoever leaves a stream, and when: spans end where they began, and no context is another's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypedDict

import httpx
import pytest
from langgraph.graph import END, START, StateGraph
from opentelemetry import context as contexts
from opentelemetry import trace

import outlive
from core import support as core
from core.support import job
from outlive import policy, recorder, signals
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import application
from outlive.testing import asgi
from traces import support
from traces.support import Spans

WHOSE: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody")


class State(TypedDict, total=False):
    """What the graph knows: nothing."""

    known: int


class Cast:
    """A generator and a graph that open a span, and are cut within it."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.inside = asyncio.Event()
        self.between: list[bool] = []

    def agents(self) -> list[Any]:
        tracer = self.spans.tracer

        @outlive.agent("generator", policy=policy.chat(grace=0))
        async def generator(context: outlive.Context) -> AsyncGenerator[Any, None]:
            with tracer.start_as_current_span("outer") as outer:
                for number in range(3):
                    with tracer.start_as_current_span("inner") as inner:
                        yield number
                        self.between.append(trace.get_current_span() is inner)
                    self.between.append(trace.get_current_span() is outer)
                self.inside.set()
                yield "inside"
                await asyncio.Event().wait()

        async def node(state: State) -> State:
            with tracer.start_as_current_span("outer"):
                self.inside.set()
                await asyncio.Event().wait()
            return {}

        graph = StateGraph(State)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        graph.add_edge("node", END)
        return [generator, LangGraphAgent("graph", graph.compile(), policy=policy.chat(grace=0))]


async def _aclose(cast: Cast, served: outlive.Outlive, agent: str) -> str:
    submitted = await served.submit(agent, {}, viewer="me", traceparent=support.PARENT)
    async with contextlib.aclosing(served.watch(submitted.run.run_id, viewer="me")) as events:
        await anext(events)
        await asyncio.wait_for(cast.inside.wait(), core.WITHIN)
    return submitted.run.run_id


async def _cancel(cast: Cast, served: outlive.Outlive, agent: str) -> str:
    submitted = await served.submit(agent, {}, viewer="me", traceparent=support.PARENT)

    async def look() -> None:
        async with contextlib.aclosing(served.watch(submitted.run.run_id, viewer="me")) as events:
            async for _ in events:
                pass

    looking = asyncio.create_task(look())
    await asyncio.wait_for(cast.inside.wait(), core.WITHIN)
    looking.cancel()
    await asyncio.wait({looking})
    return submitted.run.run_id


async def _disconnect(cast: Cast, served: outlive.Outlive, agent: str) -> str:
    async with asgi.listening(application.application(served)) as port:
        headers = {"Accept": "text/event-stream", "traceparent": support.PARENT}
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=core.WITHIN) as client,
            client.stream("POST", "/runs", json={"agent": agent, "input": {}}, headers=headers) as answer,
        ):
            await asyncio.wait_for(cast.inside.wait(), core.WITHIN)
            run_id = answer.headers["outlive-run"]
        # The connection breaks here, in the middle of the agent's span.
        await core.until(lambda: cast.spans.named("run.attempt"))
    return run_id


async def _collected(cast: Cast, served: outlive.Outlive, agent: str) -> str:
    """The stream is dropped unclosed: the loop closes it from a task of its own."""
    submitted = await served.submit(agent, {}, viewer="me", traceparent=support.PARENT)
    events = served.watch(submitted.run.run_id, viewer="me")
    await anext(events)
    await asyncio.wait_for(cast.inside.wait(), core.WITHIN)
    del events
    return submitted.run.run_id


@pytest.mark.parametrize("agent", ["generator", "graph"])
@pytest.mark.parametrize("leave", [_aclose, _cancel, _disconnect, _collected])
async def test_S13_a_viewer_who_leaves_within_a_span_breaks_no_context(
    leave: Callable[[Cast, outlive.Outlive, str], Any], agent: str, database: str
) -> None:
    cast = Cast()
    spans = cast.spans
    async with support.serving(database, spans, *cast.agents()) as served:
        heard = core.heard(served)
        with spans.tracer.start_as_current_span("ours") as ours:
            before = contexts.get_current()
            run_id = await leave(cast, served, agent)
            assert contexts.get_current() == before
            assert trace.get_current_span() is ours
        await heard.of(signals.RunEnded, run_id=run_id)
        await core.until(lambda: spans.named("run.attempt"))
        assert heard.all(signals.CleanupFailed) == []
    attempt, outer = spans.one("run.attempt"), spans.one("outer")
    assert (attempt.about["state"], attempt.about["reason"]) == ("stopped", "disconnect")
    assert not attempt.failed
    assert outer.parent == attempt.span
    assert {inner.parent for inner in spans.named("inner")} <= {outer.span}
    assert len(spans.named("inner")) == len(cast.between) / 2
    assert all(cast.between)
    assert attempt.parent == spans.one("run.submit").span


async def test_S13_an_agent_that_is_cut_between_two_of_its_steps_closes_its_span_where_it_opened_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut comes while what it has yielded is being recorded: it is not running, and has to be closed."""
    cast, stuck, put = Cast(), asyncio.Event(), recorder.Recorder.put

    async def held(self: recorder.Recorder, item: Any) -> None:
        await put(self, item)
        if item.data == 1:
            stuck.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(recorder.Recorder, "put", held)
    async with support.serving(database, cast.spans, *cast.agents()) as served:
        run = (await served.submit("generator", policy=policy.job())).run
        await asyncio.wait_for(stuck.wait(), core.WITHIN)
        await served.stop(run.run_id)
        await core.until(lambda: cast.spans.named("run.attempt"))
        gc.collect()
    attempt, outer = cast.spans.one("run.attempt"), cast.spans.one("outer")
    assert (attempt.about["state"], outer.parent) == ("stopped", attempt.span)
    assert [inner.parent for inner in cast.spans.named("inner")] == [outer.span] * 2
    assert outer.ended <= attempt.ended


async def test_S13_runs_at_once_on_one_worker_have_their_own_spans_and_nothing_of_a_request(
    database: str,
) -> None:
    spans, gate, many = Spans(), asyncio.Event(), 12
    here, seen = [0], list[str]()

    @job("busy")
    async def busy(context: outlive.Context) -> AsyncGenerator[Any, None]:
        seen.append(WHOSE.get())
        WHOSE.set(context.run.run_id)
        with spans.tracer.start_as_current_span("mine", attributes={"outlive.run": context.run.run_id}):
            here[0] += 1
            if here[0] == many:
                gate.set()
            yield 1
            await gate.wait()
            await asyncio.to_thread(_in_thread, spans, context.run.run_id)
            yield 2
        seen.append("" if WHOSE.get() == context.run.run_id else "another's")

    async with support.serving(database, spans, busy) as served:
        for number in range(many):
            token = WHOSE.set(f"request {number}")
            trace_id = f"{number + 1:032x}"
            await served.submit("busy", traceparent=f"00-{trace_id}-{support.CALLER}-01")
            WHOSE.reset(token)
        await core.until(lambda: len(spans.named("run.attempt")) == many)
    assert set(seen) == {"nobody", ""}
    for number in range(many):
        trace_id = f"{number + 1:032x}"
        assert spans.tree(trace_id) == ["run.submit", "  run.attempt", "    mine", "      in a thread"]
        of_trace = [span.about for span in spans.ended if span.trace == trace_id]
        assert len({about.get("run_id", about.get("run")) for about in of_trace}) == 1


def _in_thread(spans: Spans, run_id: str) -> None:
    with spans.tracer.start_as_current_span("in a thread", attributes={"outlive.run": run_id}):
        return


async def test_a_stopped_agent_that_never_returns_keeps_its_span_to_itself(sqlite_url: str) -> None:
    spans, go = Spans(), asyncio.Event()

    @job("stubborn", stop_deadline=0.1)
    async def stubborn(context: outlive.Context) -> AsyncGenerator[Any, None]:
        with spans.tracer.start_as_current_span("mine"):
            yield 1
            while not go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go.wait()

    async with support.serving(sqlite_url, spans, stubborn) as served:
        run = (await served.submit("stubborn")).run
        await core.seen(served, run.run_id, 1)
        await served.stop(run.run_id)
        await core.until(lambda: spans.named("run.attempt"))
        assert spans.one("run.attempt").about["state"] == "stopped"
        assert spans.named("mine") == []
        go.set()
        await core.until(lambda: spans.named("mine"))
    assert spans.one("mine").parent == spans.one("run.attempt").span
