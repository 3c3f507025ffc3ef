"""Threads over HTTP: listed, read, deleted, and what who follows one is told then."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from native_service import Service, refused


async def test_threads_are_listed_newest_first_a_page_at_a_time(service: Service) -> None:
    names = ["first", "a/b ä", "third"]
    for name in names:
        await service.ended("echo", name, thread=name)
    page = (await service.http.get("/threads?limit=2")).json()
    assert [thread["thread"] for thread in page["threads"]] == ["third", "a/b ä"]
    rest = (await service.http.get("/threads", params={"limit": 2, "before": page["before"]})).json()
    assert [thread["thread"] for thread in rest["threads"]] == ["first"]
    assert rest["before"] is None
    assert rest["threads"][0] == {
        "thread": "first",
        "created_at": rest["threads"][0]["created_at"],
        "last_seq": 3,
        "position": None,
        "left_by": None,
        "copied_from": None,
    }
    refused(await service.http.get("/threads?limit=0"), 422, "invalid_input", "limit")


@pytest.mark.parametrize("name", ["plain", "a%2Fb", "%C3%A4 events%2Fevents"])
async def test_a_thread_is_deleted_once(service: Service, name: str) -> None:
    made = await service.ended("echo", 1, thread=name.replace("%2F", "/").replace("%C3%A4", "ä"))
    answer = await service.http.delete(f"/threads/{name}")
    assert answer.status_code == 200
    assert answer.json() == {
        "thread": made["thread"],
        "deleted": True,
        "runs": 1,
        "stopped": [],
        "effects_kept": 0,
        "effects_open": [],
        "cleared": True,
    }
    for method, path in (
        ("DELETE", f"/threads/{name}"),
        ("GET", f"/threads/{name}"),
        ("GET", f"/threads/{name}/events"),
        ("GET", f"/runs/{made['run_id']}"),
        ("GET", f"/runs/{made['run_id']}/events"),
        ("POST", f"/runs/{made['run_id']}/stop"),
    ):
        again = await service.http.request(method, path)
        assert (again.status_code, again.json()["code"]) == (404, "not_found")
    assert (await service.http.get("/threads")).json()["threads"] == []


@pytest.mark.invariant("I5")
async def test_whoever_follows_a_run_or_its_thread_when_it_is_deleted_comes_to_an_end(
    service: Service,
) -> None:
    """A run's sees its end or that it was deleted, a thread's that it was; both streams close."""
    run = await service.create("gated", "g", thread="t")
    ready = [asyncio.Event(), asyncio.Event()]

    async def follow(path: str, joined: asyncio.Event) -> list[tuple[str, Any]]:
        got = []
        async with service.stream(path) as (_, events):
            async for event in events:
                joined.set()
                got.append((event.event, json.loads(event.data)))
        return got

    following = [
        asyncio.create_task(follow(path, joined))
        for path, joined in zip((f"/runs/{run['run_id']}/events", "/threads/t/events"), ready, strict=True)
    ]
    async with asyncio.timeout(20):
        for joined in ready:
            await joined.wait()
        answer = await service.http.delete("/threads/t")
        assert answer.json()["stopped"] == [run["run_id"]]
        of_run, of_thread = await asyncio.gather(*following)
    assert of_run[-1][0] in ("end", "deleted")
    assert of_thread[-1] == (
        "deleted",
        {"code": "deleted", "title": "The thread was deleted, and its runs with it."},
    )
