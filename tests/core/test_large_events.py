"""Large events travel by reference and are stored whole; absurd ones cost a placeholder, never the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import encoding, errors, large, signals, subscription
from outlive.store import bodies

LARGE = "x" * large.INLINE_BYTES


@support.job("agent")
async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
    for size in context.input:
        yield "x" * size


async def ended(served: outlive.Outlive, *sizes: int) -> tuple[str, list[outlive.Event]]:
    run_id = (await served.submit("agent", list(sizes))).run.run_id
    return run_id, await support.story(served, run_id)


async def test_a_large_event_is_a_reference_to_its_body_and_is_read_whole(database: str) -> None:
    async with support.serving(database, agent) as served:
        run_id, events = await ended(served, 10, len(LARGE), 20)
        assert [event.kind.value for event in events] == ["attempt", "chunk", "chunk", "chunk", "end"]
        assert support.data([events[1], events[3]]) == ["x" * 10, "x" * 20]
        told = events[2].data
        assert (told["$outlive"], told["bytes"]) == ("stored", len(LARGE) + 2)
        assert len(events[2].payload) < 200
        whole = await served.event(run_id, events[2].seq)
        assert whole.data == LARGE
        assert whole.cursor == events[2].cursor
        assert (await served.event(run_id, 2)).data == "x" * 10
        for seq in (0, 6):
            with pytest.raises(errors.NotFound):
                await served.event(run_id, seq)


async def test_what_is_just_small_enough_travels_with_the_others(database: str) -> None:
    async with support.serving(database, agent) as served:
        _, events = await ended(served, large.INLINE_BYTES - 2)
    assert support.data(events) == ["x" * (large.INLINE_BYTES - 2)]


async def test_an_absurd_event_becomes_a_placeholder_and_one_note_and_the_run_succeeds(database: str) -> None:
    async with support.serving(database, agent, max_event_bytes=300_000) as served:
        _, events = await ended(served, 300_000, 5, 400_000)
        assert support.end(events)["state"] == "succeeded"
    assert support.notes(events) == ["event_too_large"]
    first, small, second = support.data(events)
    assert small == "xxxxx"
    assert (first["$outlive"], first["type"]) == ("placeholder", "builtins.str")
    assert second["why"] == "400002 bytes, of at most 300000"
    assert record.rows(database, "SELECT 1 AS one FROM event_bodies") == []


async def test_the_same_large_value_is_stored_once_for_a_run(database: str) -> None:
    async with support.serving(database, agent) as served:
        run_id, events = await ended(served, len(LARGE), len(LARGE))
        assert [await served.event(run_id, event.seq) for event in events if event.kind == "chunk"]
        assert support.data(events)[0] == support.data(events)[1]
    assert len(record.rows(database, "SELECT digest FROM event_bodies")) == 1


@pytest.mark.invariant("I2")
async def test_a_late_holder_stores_no_body(database: str) -> None:
    async with support.serving(database, agent) as served:
        await served.store.write(bodies.keep(support.CLAIM, LARGE))
    assert record.rows(database, "SELECT 1 AS one FROM event_bodies") == []


@pytest.mark.invariant("I15")
async def test_a_body_that_cannot_be_stored_is_loud_and_the_run_goes_on_from_the_queue(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with support.serving(database, agent, timing=support.QUICK) as served:
        write = served.store.write
        refused: list[str] = []

        async def refuse(script: Any, **options: Any) -> Any:
            if script.name == "keep" and len(refused) < 3:
                refused.append(script.name)
                raise errors.StoreUnavailable("The disk is full.")
            return await write(script, **options)

        heard = support.heard(served)
        monkeypatch.setattr(served.store, "write", refuse)
        _, events = await ended(served, len(LARGE))
        assert heard.all(signals.RecordingFailed)
    assert support.end(events)["state"] == "succeeded"
    assert [event.epoch for event in events][-1] > 1
    assert [event["$outlive"] for event in support.data(events)] == ["stored"]


async def test_a_page_has_a_bound_in_bytes_and_goes_on_where_it_ended(database: str) -> None:
    each = large.INLINE_BYTES - 2
    async with support.serving(database, agent) as served:
        run_id, events = await ended(served, *[each] * 20, *[1] * 300)
        first = await served.events(run_id)
        assert len(first) < 100
        most = subscription.PAGE_BYTES + 64 * large.INLINE_BYTES
        assert sum(len(event.payload) for event in first) <= most
        got = list(first)
        while page := await served.events(run_id, after=got[-1].seq):
            got += page
        assert got == events
        small = await served.events(run_id, after=30, limit=200)
        assert [event.seq for event in small] == list(range(31, 231))
        thread = await served.thread(run_id)
        assert await served.thread_events(thread, after=30, limit=200) == small


def test_a_reference_is_what_no_agent_can_yield() -> None:
    mimic = encoding.encode({"$outlive": "stored", "sha256": "0" * 64, "bytes": 1}).text
    assert large.digest_in(mimic) is None
    assert large.located(mimic, "r", 1) == mimic
    assert large.digest_in(large.reference(LARGE)) == large.digest(LARGE)
