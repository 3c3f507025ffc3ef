"""What a viewer that does not read on costs is bounded in bytes, not only in events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import support
from outlive import subscription
from outlive.model import EventKind
from outlive.store import Store

LARGE = 250 * 1024
"""Just small enough to travel with the others."""


@support.job()
async def large(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """As much as the input says, in large pieces."""
    for _ in range(context.input):
        yield "x" * LARGE


@pytest.mark.invariant("I5")
async def test_a_viewer_of_large_events_is_read_few_at_a_time_and_gets_all_of_them(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with support.serving(sqlite_url, large) as served, asyncio.timeout(support.WITHIN):
        run = (await served.submit("agent", 40)).run
        await served.result(run.run_id)
        pages: list[int] = []
        store: Store = served.store
        read = store.read

        async def counted(script: Any, **options: Any) -> Any:
            found = await read(script, **options)
            if isinstance(found, list):
                pages.append(sum(len(event.payload) for event in found))
            return found

        monkeypatch.setattr(store, "read", counted)
        async with aclosing(subscription.follow(store, run.run_id)) as events:
            seqs = [event.seq async for event in events]
    assert seqs == list(range(1, 43))
    assert pages[0] < 8 * (LARGE + 16)  # the first read knows nothing of their size
    assert max(pages[1:]) < subscription.PAGE_BYTES + LARGE


def test_small_events_are_read_many_at_a_time() -> None:
    pages = subscription.Pages()
    events = [
        outlive.Event(
            run_id="r",
            seq=1,
            thread_seq=1,
            epoch=1,
            kind=EventKind.CHUNK,
            mode=None,
            payload="1",
            created_at=0.0,
        )
    ]
    sizes = []
    while pages.size < subscription.PAGE:
        sizes.append(pages.size)
        assert pages.full(events * pages.size)
    assert len(sizes) <= 2
    assert not pages.full(events)
