"""What a stream says beside its events, and the streams that are not of one run."""

from __future__ import annotations

import asyncio

import native_service
from native_service import STREAM, Service


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
