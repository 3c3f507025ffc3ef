"""What an agent holds is given back before its run is over, and a clean-up that fails is told."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import support
from outlive import recorder, signals

TIMES = 50


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()  # what was left to the collector would complain now


class Chain:
    """Three generators, one in another; the innermost holds a slot, and each cleans up in its own way."""

    def __init__(self, *, yields_in_finally: bool, busy: bool) -> None:
        self.slot = asyncio.Semaphore(1)
        self.cleaned: list[str] = []
        self._yields_in_finally = yields_in_finally
        self._busy = busy

    async def inner(self) -> AsyncGenerator[str, None]:
        async with self.slot:
            try:
                yield "first"
                while self._busy:
                    yield "more"
                await asyncio.Event().wait()
            finally:
                self.cleaned.append("inner")

    async def middle(self) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self.inner()) as items:
                async for item in items:
                    yield item
        finally:
            await asyncio.to_thread(self.cleaned.append, "middle")

    async def outer(self, context: outlive.Context) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self.middle()) as items:
                async for item in items:
                    yield item
        finally:
            self.cleaned.append("outer")
            if self._yields_in_finally:
                yield "done"


@pytest.mark.invariant("I13")
@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("yields_in_finally", [False, True], ids=["quiet", "yields_in_finally"])
@pytest.mark.parametrize("busy", [False, True], ids=["cut_at_an_await", "cut_at_a_yield"])
async def test_S03_a_chain_of_generators_lets_go_before_its_run_is_over(
    busy: bool,
    yields_in_finally: bool,
    sqlite_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 40)
    chain = Chain(yields_in_finally=yields_in_finally, busy=busy)
    agent = outlive.agent("agent", policy=outlive.job())(chain.outer)
    async with support.serving(sqlite_url, agent) as served:
        listening = support.heard(served)
        for time in range(1, TIMES + 1):
            run_id = (await served.submit("agent")).run.run_id
            await support.seen(served, run_id, 1)
            if busy:  # the agent is too fast for the log, so it is cut where it waits for room
                await support.seen(served, run_id, 60)
            await served.stop(run_id)
            events = await support.story(served, run_id)
            assert not chain.slot.locked()
            assert chain.cleaned == ["inner", "middle", "outer"] * time
            assert support.end(events)["state"] == "stopped"
            assert support.notes(events) == (["cleanup_failed"] if yields_in_finally else [])
            assert "done" not in support.data(events)
        assert len(listening.all(signals.CleanupFailed)) == TIMES * yields_in_finally
    complaints = [line for line in caplog.messages if "never retrieved" in line or "ignored" in line]
    assert complaints == []
    assert [entry for entry in caplog.records if entry.levelno >= logging.ERROR] == []


async def test_S03_a_cleanup_that_raises_is_noted_and_the_run_is_still_stopped(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            raise OSError("postgresql://admin:hunter2@10.0.0.7/db went away")

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        await served.stop(run_id)
        events = await support.story(served, run_id)
    assert support.notes(events) == ["cleanup_failed"]
    assert support.end(events)["state"] == "stopped"
    assert "hunter2" not in "".join(event.payload for event in events)


async def test_S03_a_cleanup_that_takes_its_time_is_awaited_within_the_stop_deadline(sqlite_url: str) -> None:
    cleaning, clean = asyncio.Event(), asyncio.Event()
    done: list[bool] = []

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await clean.wait()
            done.append(True)

    async with support.serving(sqlite_url, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        await served.stop(run_id)
        async with asyncio.timeout(support.WITHIN):
            await cleaning.wait()
        assert (await served.run(run_id)).state is outlive.State.RUNNING  # asked to stop is not stopped
        clean.set()
        assert support.end(await support.story(served, run_id))["state"] == "stopped"
    assert done == [True]
