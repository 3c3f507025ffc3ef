"""Kills the worker of a traced run in its middle, lets another go on, and returns the spans of all.

Decides the scene and what must come of it.  Used by the tests and by the laboratory alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import outlive
from outlive import effects, notifications, policy, runtime, traces
from outlive.testing import telling, tracing
from outlive.testing.processes import Process, gate, say
from outlive.testing.receiver import Receiver

AGENTS = "outlive.testing.sharing:agents"
OBSERVED = "outlive.testing.tracing:observed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """One span, and the process that told of it."""

    process: str
    span: tracing.Told


@outlive.agent("order", policy=policy.job(on_busy="enqueue"))
async def order(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Charges once, and waits for ever in its first attempt."""
    yield await effects.once("charge", key=context.run.origin, call=lambda: {"charged": True})
    say(charged=context.attempt)
    if context.attempt == 1:
        await gate("never").wait()
    yield await effects.once("ship", key=context.run.origin, call=lambda: {"shipped": True})


agents = [order]


async def shared(database: str) -> list[Shared]:
    """Return the spans of one run, submitted here, begun by one process and ended by another."""
    ours: list[tracing.Told] = []
    with Receiver() as receiver:
        told = notifications.Webhooks(**telling.OPTIONS)
        api = runtime.Outlive(database, agents, slots=0, webhooks=told)
        provider = tracing.provider(ours.append)
        traces.observe(api, provider)
        async with api, _worker(database) as first:
            await first.line(traced=True)
            with provider.get_tracer("lab").start_as_current_span("POST /orders"):
                await api.submit("order", webhook=receiver.url)
            await first.line(charged=1)
            async with _worker(database) as second:
                await second.line(traced=True)
                first.kill()
                await first.ended(within=telling.WITHIN)
                await receiver.heard(1, telling.WITHIN)
                workers = {"first": first, "second": second}
                await _until(lambda: {"run.attempt", "notification"} <= _names(_all(ours, workers)))
                return _all(ours, workers)


def _worker(database: str) -> Process:
    return Process(database, AGENTS, timing=telling.SHORT, also=OBSERVED, webhooks=telling.OPTIONS)


def _all(ours: list[tracing.Told], workers: dict[str, Process]) -> list[Shared]:
    found = [Shared(process="api", span=span) for span in ours]
    for name, worker in workers.items():
        spans = [tracing.Told(**line["span"]) for line in worker.said() if "span" in line]
        found += [Shared(process=name, span=span) for span in spans]
    return found


def in_order(found: list[Shared]) -> list[tuple[int, Shared]]:
    """Return them as a tree: children after their parents, each with its depth."""
    process = {one.span.span: one.process for one in found}
    ordered = tracing.tree([one.span for one in found])
    return [(depth, Shared(process=process[span.span], span=span)) for depth, span in ordered]


def _names(found: list[Shared]) -> set[str]:
    return {one.span.name for one in found}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(telling.WITHIN):
        while not condition():  # noqa: ASYNC110 - what another process says sets no event here
            await asyncio.sleep(0.01)
