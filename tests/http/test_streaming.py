"""What a stream says beside its events, and the streams that are not of one run."""

from __future__ import annotations

import asyncio

import native_service
from native_service import STREAM


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
