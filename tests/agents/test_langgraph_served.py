"""A graph behind the whole of Outlive: claimed, driven, stopped, drained, and taken up by another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from agents import bench
from outlive import agents, policy
from outlive.agents import langgraph
from outlive.model import Event, EventKind
from outlive.states import State

pytestmark = pytest.mark.anyio
BOOKING = ["plan", "charge", "notify", "finish"]


def served(trace: bench.Trace, rules: policy.RunPolicy = bench.JOB) -> langgraph.LangGraphAgent:
    """The booking graph as an agent."""
    return langgraph.LangGraphAgent("graph", bench.booking(trace), policy=rules)


async def story(service: outlive.Outlive, run_id: str) -> list[Event]:
    """Every event of a run up to its end."""
    async with asyncio.timeout(bench.WITHIN), aclosing(service.follow(run_id)) as events:
        return [event async for event in events]


def updates(events: list[Event]) -> list[Any]:
    """The nodes whose updates were recorded, with the epoch that recorded them."""
    return [
        (event.epoch, node)
        for event in events
        if event.kind is EventKind.CHUNK and event.mode == "updates"
        for node in event.data
    ]


async def test_a_graph_runs_to_its_end_and_its_output_is_the_records(database: str) -> None:
    async with outlive.Outlive(database, [served(bench.Trace())]) as service:
        submitted = await service.submit("graph", {"steps": []})
        events = await story(service, submitted.run.run_id)
        run = await service.run(submitted.run.run_id)
    assert updates(events) == [(1, node) for node in BOOKING]
    assert run.state is State.SUCCEEDED
    assert run.public()["output"] == {"steps": BOOKING}


async def test_a_stopped_graph_keeps_what_it_did_and_does_no_more(database: str) -> None:
    trace = bench.Trace()
    trace.hold("notify")
    agent = served(trace)
    async with outlive.Outlive(database, [agent]) as service:
        submitted = await service.submit("graph", {"steps": []})
        await trace.until("notify")
        await service.stop(submitted.run.run_id)
        await story(service, submitted.run.run_id)
        run = await service.run(submitted.run.run_id)
        position = await agent.position(run.thread_id)
    assert run.state is State.STOPPED
    assert trace.ended == ["plan", "charge"]
    assert position is langgraph.Position.TORN


class Letting(langgraph.LangGraphAgent):
    """Opens a gate as soon as its run drains."""

    gate: asyncio.Event

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Like the graph's own."""
        waiting = asyncio.ensure_future(self._let_go(context))
        try:
            async with aclosing(super().stream(context)) as items:
                async for item in items:
                    yield item
        finally:
            waiting.cancel()

    async def _let_go(self, context: agents.Context) -> None:
        await context.draining.wait()
        self.gate.set()


async def test_a_graph_drained_at_shutdown_is_finished_by_the_next_process(database: str) -> None:
    trace = bench.Trace()
    agent = Letting("graph", bench.booking(trace), policy=bench.JOB)
    agent.gate = trace.hold("charge")
    async with outlive.Outlive(database, [agent]) as service:
        submitted = await service.submit("graph", {"steps": []})
        await trace.until("charge")
    assert trace.began == ["plan", "charge"]
    async with outlive.Outlive(database, [served(trace)]) as service:
        events = await story(service, submitted.run.run_id)
        run = await service.run(submitted.run.run_id)
    assert run.state is State.SUCCEEDED
    assert run.losses == 0
    assert trace.ended == BOOKING
    assert updates(events) == [(1, "plan"), (1, "charge"), (2, "notify"), (2, "finish")]
