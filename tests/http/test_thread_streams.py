"""The stream of a thread: all its runs in one order, with a cursor of its own, from any process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import native_service
import pytest
from native_service import Received, Service, refused

PAGE = {"Accept": "application/json"}


def told(event: Received) -> tuple[str, int, str]:
    """Run, number in the run, and kind of an event of a thread's stream."""
    said = json.loads(event.data)
    return said["run_id"], said["seq"], event.event


async def until_ended(events: native_service.Events, runs: int) -> list[Received]:
    """The events up to the end of so many runs."""
    got = []
    async for event in events:
        got.append(event)
        if [one.event for one in got].count("end") == runs:
            return got
    raise AssertionError("the stream of a thread ended by itself")


def numbers(events: list[Received]) -> list[int]:
    return native_service.seqs(events)


async def test_a_thread_is_followed_through_its_runs_in_one_sequence(service: Service) -> None:
    first = await service.ended("count", 2, thread="t")
    async with service.stream("/threads/t/events") as (response, events):
        assert response.headers["location"] == "/threads/t/events"
        got = await until_ended(events, 1)
        second = await service.create("count", 3, thread="t")
        got += await until_ended(events, 1)
    assert numbers(got) == list(range(1, len(got) + 1))
    expected = [(first["run_id"], n) for n in range(1, 5)] + [(second["run_id"], n) for n in range(1, 6)]
    assert [told(event)[:2] for event in got] == expected
    assert [event.event for event in got] == ["attempt", "chunk", "chunk", "end"] + ["attempt"] + [
        "chunk"
    ] * 3 + ["end"]
    assert json.loads(got[1].data)["data"] == 0


@pytest.mark.invariant("I4")
async def test_a_thread_is_resumed_on_another_process_without_a_gap_or_a_repeat(database: str) -> None:
    async with (
        native_service.serving(database, rotate=0.3) as one,
        native_service.serving(database, rotate=0.3, slots=0) as two,
    ):
        run = await one.create("gated", "g", thread="t")
        got = await one.follow("/threads/t/events")  # up to its rotation
        assert [event.event for event in got] == ["attempt", "chunk"]
        one.gate("g").set()
        queue = [two, one]
        await one.follow(f"/runs/{run['run_id']}/events")
        await two.create("count", 40, thread="t")
        while [event.event for event in got].count("end") < 2:
            at = queue.pop(0)
            queue.append(at)
            got += await at.follow("/threads/t/events", headers={"Last-Event-ID": got[-1].id})
        page = (await two.http.get("/threads/t/events", headers=PAGE)).json()
    assert numbers(got) == list(range(1, len(got) + 1))
    assert [event.id for event in got] == [event["id"] for event in page["events"]]
    assert [told(event)[:2] for event in got] == [(one["run_id"], one["seq"]) for one in page["events"]]


async def test_a_page_of_a_thread_goes_on_after_a_cursor(service: Service) -> None:
    await service.ended("count", 3, thread="t")
    first = (await service.http.get("/threads/t/events?limit=2", headers=PAGE)).json()
    assert [event["seq"] for event in first["events"]] == [1, 2]
    after = first["events"][-1]["id"]
    rest = (await service.http.get("/threads/t/events", params={"after": after}, headers=PAGE)).json()
    assert [event["seq"] for event in rest["events"]] == [3, 4, 5]
    assert (await service.http.get("/threads/t/events?after=3", headers=PAGE)).json() == {
        "thread": "t",
        "events": rest["events"][1:],
        "more": False,
    }


@pytest.mark.invariant("I14")
async def test_a_cursor_of_a_run_another_thread_or_another_tenant_is_refused(service: Service) -> None:
    run = await service.ended("count", 1, thread="t")
    await service.ended("count", 1, thread="u")
    ids = {
        name: (await service.http.get(path, headers=PAGE)).json()["events"][0]["id"]
        for name, path in (
            ("run", f"/runs/{run['run_id']}/events"),
            ("t", "/threads/t/events"),
            ("u", "/threads/u/events"),
        )
    }
    for bad in (ids["run"], ids["u"], "9", "-1", "x", "thread-:1", f"thread-{run['run_id']}:99"):
        for how in ({"headers": {"Last-Event-ID": bad}}, {"params": {"after": bad}}):
            answer = await service.http.get("/threads/t/events", **how)  # type: ignore[arg-type]
            field = "Last-Event-ID" if "headers" in how else "after"
            refused(answer, 400, "invalid_cursor", field)
    mistaken = {"Last-Event-ID": ids["t"]}
    answer = await service.http.get(f"/runs/{run['run_id']}/events", headers=mistaken)
    refused(answer, 400, "invalid_cursor", "Last-Event-ID")
    async with service.as_tenant("stranger") as stranger:
        refused(await stranger.http.get("/threads/t/events", headers=mistaken), 404, "not_found", "thread")
        await stranger.ended("count", 1, thread="t")
        answer = await stranger.http.get("/threads/t/events", headers=mistaken)
        refused(answer, 400, "invalid_cursor", "Last-Event-ID")


async def test_a_thread_whose_name_looks_like_its_stream_is_read_by_its_name(service: Service) -> None:
    await service.ended("count", 1, thread="a/events")
    answer = await service.http.get("/threads/a%2Fevents")
    assert answer.json()["thread"] == "a/events"
    page = await service.http.get("/threads/a%2Fevents/events", headers=PAGE)
    assert len(page.json()["events"]) == 3
    refused(await service.http.get("/threads/a/events"), 404, "not_found", "thread")


async def test_a_thread_is_followed_from_before_its_first_message(service: Service) -> None:
    async with service.stream("/threads/new/events") as (_, events):
        first = asyncio.create_task(anext(events))
        await service.ended("count", 1, thread="new")
        seen = [await asyncio.wait_for(first, native_service.WITHIN)]
        async for event in events:
            seen.append(event)
            if event.event == "end":
                break
    assert [event.event for event in seen] == ["attempt", "chunk", "end"]
    watched = (await service.http.get("/threads/new")).json()
    assert watched["thread"] == "new"


@contextlib.asynccontextmanager
async def watching(service: Service, thread: str) -> AsyncIterator[Any]:
    async with service.stream(f"/threads/{thread}/events") as (_, events):
        await anext(events)
        yield events


@pytest.mark.invariant("I11")
async def test_who_watches_a_thread_watches_its_live_runs_and_leaving_it_stops_them(service: Service) -> None:
    await service.ended("count", 1, thread="t")
    async with watching(service, "t"):
        run = await service.create("chat", "g", thread="t")  # nobody else watches it, and its grace is 0
        assert await service.outlive._disconnect.look_once() == 0
        record = (await service.http.get(f"/runs/{run['run_id']}")).json()
        assert record["watched"]["watching"] == 1
        assert record["stop_requested"] is False
    async with asyncio.timeout(native_service.WITHIN):
        async for _event in service.outlive.follow(run["run_id"], tenant=None):
            pass
    record = (await service.http.get(f"/runs/{run['run_id']}")).json()
    assert (record["state"], record["reason"]) == ("stopped", "disconnect")
    assert record["watched"]["left_because"] == "disconnect"


async def test_what_a_viewer_of_the_thread_was_sent_counts_for_its_runs(service: Service) -> None:
    first = await service.ended("count", 2, thread="t")
    async with service.stream("/threads/t/events") as (_, events):
        await until_ended(events, 1)
        second = await service.create("gated", "g", thread="t")
        assert [(await anext(events)).event, (await anext(events)).event] == ["attempt", "chunk"]
    await service.leavings()
    service.gate("g").set()
    async with asyncio.timeout(native_service.WITHIN):
        async for _event in service.outlive.follow(second["run_id"], tenant=None):
            pass
    found = [(await service.http.get(f"/runs/{run['run_id']}")).json()["watched"] for run in (first, second)]
    assert [one["delivery"] for one in found] == ["delivered", "partly_seen"]
    assert found[1]["viewers"] == 1
