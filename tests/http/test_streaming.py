"""What a stream says beside its events, and the streams that are not of one run."""

from __future__ import annotations

import asyncio
import json

import native_service
from native_service import STREAM, Service, refused

from outlive import large

PAGE = {"Accept": "application/json"}


async def test_silence_is_filled_as_often_as_the_router_was_told(database: str) -> None:
    async with native_service.serving(database, heartbeat=0.02) as service:
        made = await service.create("gated", "g")
        path = f"/runs/{made['run_id']}/events"
        async with (
            asyncio.timeout(native_service.WITHIN),
            service.http.stream("GET", path, headers=STREAM) as answer,
        ):
            read = ""
            async for text in answer.aiter_text():
                read += text
                if read.endswith(":\n:\n"):
                    service.gate("g").set()
    assert '"data":"after"' in read
    assert "event: end" in read


async def test_the_record_of_a_run_says_whether_anybody_was_sent_its_end(service: Service) -> None:
    made = await service.create("count", 2)
    async with asyncio.timeout(native_service.WITHIN):
        async for _event in service.outlive.follow(made["run_id"], tenant=None):
            pass
    path = f"/runs/{made['run_id']}"
    assert (await service.http.get(path)).json()["watched"]["delivery"] == "unseen"
    events = await service.follow(f"{path}/events")
    await service.leavings()
    watched = (await service.http.get(path)).json()["watched"]
    assert (watched["delivery"], watched["viewers"], watched["seen"]) == ("delivered", 1, len(events))


async def test_a_large_event_is_streamed_as_a_reference_and_fetched_where_it_says(service: Service) -> None:
    run = await service.ended("echo", "x" * large.INLINE_BYTES, thread="t")
    _, chunk, _ = await service.follow(f"/runs/{run['run_id']}/events")
    told = json.loads(chunk.data)["data"]
    assert told["ref"] == f"/runs/{run['run_id']}/events/2"
    assert len(chunk.data) < 400
    page = (await service.http.get(f"/runs/{run['run_id']}/events", headers=PAGE)).json()
    assert (page["events"][1]["data"], page["more"]) == (told, False)
    of_thread = (await service.http.get("/threads/t/events", headers=PAGE)).json()
    assert of_thread["events"][1]["data"] == told
    whole = await service.http.get(told["ref"])
    assert whole.json() == page["events"][1] | {"data": "x" * large.INLINE_BYTES}
    assert len(whole.content) > told["bytes"]
    for path, status, code, field in (
        ("9", 404, "not_found", None),
        ("0", 422, "invalid_input", "seq"),
        ("x", 422, "invalid_input", "seq"),
    ):
        refused(await service.http.get(f"/runs/{run['run_id']}/events/{path}"), status, code, field)
    async with service.as_tenant("stranger") as stranger:
        refused(await stranger.http.get(told["ref"]), 404, "not_found")


async def test_a_page_says_whether_there_is_another_one(service: Service) -> None:
    run = await service.ended("count", 3)
    path = f"/runs/{run['run_id']}/events"
    found = [(await service.http.get(f"{path}?limit={limit}", headers=PAGE)).json() for limit in (2, 5)]
    assert [(len(page["events"]), page["more"]) for page in found] == [(2, True), (5, False)]
    assert (await service.http.get(f"{path}?after=5", headers=PAGE)).json()["more"] is False
