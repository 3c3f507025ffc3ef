"""What is measured without HTTP: fenced appends, how soon a reader has what was written, and takeover."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from bench import worker
from bench.processes import Child
from bench.report import Report, Target
from outlive import Outlive, policy, runtime, seams, signals
from outlive.model import Event, EventKind, NewEvent, Offer, Submission
from outlive.store import Store, moves

Tell = Callable[[str], None]
RUNS = 8
LEASE = 15.0
SHORT = 2.0
"""Seconds of a lease that is waited for to expire."""
APART = (0.025, 0.05)
"""Seconds between two chunks, so that each is committed alone."""
TOKENS = (0.01, 0.01)
EVENT = NewEvent(kind=EventKind.CHUNK, payload='{"n":1,"text":"a piece of an answer "}', mode="custom")


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """How much is measured."""

    seconds: float
    stamps: int
    kills: int


FULL = Amount(seconds=2.5, stamps=100, kills=3)
QUICK = Amount(seconds=0.8, stamps=30, kills=1)


async def measure(name: str, database: str, amount: Amount, report: Report, tell: Tell) -> None:
    """Measure one database."""
    strict = not database.startswith("sqlite")
    tell(f"{name}: fenced appends")
    alone, one = await _appends(database, 1, amount.seconds)
    batched, many = await _appends(database, 20, amount.seconds)
    rate, together = f"{name}: fenced appends over {RUNS} runs", Target(bound=20_000, at_least=True)
    singly = Target(bound=3_000, at_least=True)
    report.add(f"{rate}, one at a time", alone, "events/s", singly if strict else None, why=one)
    report.add(f"{rate}, 20 at a time", batched, "events/s", together if strict else None, why=many)
    tell(f"{name}: from write to reader")
    soon = Target(bound=5)
    for where, slots in (("one process", 8), ("two processes", 0)):
        for pace, pause, target in (("", APART, soon), (", 100 chunks/s", TOKENS, None)):
            late = await _write_to_reader(database, slots, amount.stamps, pause)
            report.add(f"{name}: write to reader, {where}{pace}", late * 1e3, "ms", target)
    tell(f"{name}: takeover after SIGKILL")
    proven = await _takeovers(database, LEASE, True, amount.kills)
    report.add(f"{name}: takeover after SIGKILL, with the token", proven, "s", Target(bound=1))
    expired = await _takeovers(database, SHORT, False, 1)
    late_by = Target(bound=SHORT + 1)
    report.add(f"{name}: takeover after SIGKILL, lease of {SHORT:g} s, no token", expired, "s", late_by)


# ---------------------------------------------------------------- appends


async def _appends(database: str, batch: int, seconds: float) -> tuple[float, str]:
    """Events per second that some runs append through one store, each awaiting its commit; and their cost."""
    store = runtime.open_store(database, None, signals.Signals())
    await store.open()
    try:
        runs = [(await store.write(moves.submit(_submission(), _offer()))).run for _ in range(RUNS)]
        stop = time.perf_counter() + seconds
        before = time.process_time()
        async with asyncio.TaskGroup() as group:
            appending = [group.create_task(_append(store, run, batch, stop)) for run in runs]
        events = sum(task.result() for task in appending)
        each = (time.process_time() - before) / (events / batch)
        why = (
            f"An append takes {each * 1e6:.0f} us of this process's processor time, which one core can do"
            f" {1 / each:,.0f} times a second; {events / batch / seconds:,.0f} were done."
        )
        return events / seconds, why
    finally:
        await store.close()


async def _append(store: Store, run: Any, batch: int, stop: float) -> int:
    events, last = (EVENT,) * batch, run.last_seq
    count = 0
    while time.perf_counter() < stop:
        last = (await store.write(moves.append(run.claim, events, last, LEASE))).last_seq
        count += batch
    return count


def _submission() -> Submission:
    return Submission(
        run_id=seams.new_id(), tenant="", agent="none", input="{}", fingerprint="", policy=policy.job()
    )


def _offer() -> Offer:
    return Offer(worker="bench", claim_token=seams.new_id(), lease=600.0, agents=("none",))


# ---------------------------------------------------------------- reading and taking over


async def _write_to_reader(database: str, slots: int, count: int, pause: tuple[float, float]) -> float:
    """Median of seconds from an agent's yield to a follower; without slots the agent is elsewhere."""
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(worker.service(database, seconds=LEASE, slots=slots))
        if not slots:
            await _working(await stack.enter_async_context(_worker(database, LEASE)))
        run = (await service.submit("stamps", {"count": count, "pause": pause})).run
        async with aclosing(_chunks(service, run.run_id)) as chunks:
            late = [time.monotonic() - chunk.data["at"] async for chunk in chunks]
    return float(statistics.median(late))


async def _takeovers(database: str, seconds: float, token: bool, count: int) -> float:
    return statistics.median([await _takeover(database, seconds, token) for _ in range(count)])


async def _takeover(database: str, seconds: float, token: bool) -> float:
    """Seconds from a worker's death to the first chunk of its run from another one."""
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            worker.service(database, seconds=seconds, slots=0, token=token)
        )
        dying = await stack.enter_async_context(_worker(database, seconds, token))
        await _working(dying)
        run = (await service.submit("stamps", {"count": 10_000, "pause": TOKENS})).run
        chunks = await stack.enter_async_context(aclosing(_chunks(service, run.run_id)))
        await anext(chunks)
        await _working(await stack.enter_async_context(_worker(database, seconds, token)))
        dying.kill()
        killed = time.perf_counter()
        async for chunk in chunks:
            if chunk.epoch > 1:
                break
        took = time.perf_counter() - killed
        await service.stop(run.run_id)
        await service.result(run.run_id)
        return took


async def _chunks(service: Outlive, run_id: str) -> AsyncGenerator[Event, None]:
    async with aclosing(service.follow(run_id)) as events:
        async for event in events:
            if event.kind is EventKind.CHUNK:
                yield event


def _worker(database: str, seconds: float, token: bool = True) -> Child:
    return Child("bench.worker", database, str(seconds), "token" if token else "no-token")


async def _working(child: Child) -> None:
    await child.says("working")
