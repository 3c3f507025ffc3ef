"""Threads over HTTP: listed, read, deleted, and what who follows one is told then."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypedDict

import httpx
import pytest
from langgraph.graph import END, START, StateGraph
from native_service import Service, refused

import outlive
from outlive.agents import langgraph
from outlive.http import application


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


# ------------------------------------------------------------ states, trees and copies


class _Said(TypedDict):
    said: list[str]


def _graph() -> Any:
    async def first(state: _Said) -> dict[str, Any]:
        return {"said": [*state["said"], "first"]}

    async def second(state: _Said) -> dict[str, Any]:
        return {"said": [*state["said"], "second"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(_Said)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile()


@pytest.fixture
async def graphs(database: str) -> Any:
    """A client of a service with a graph, on which a thread has run."""
    agent = langgraph.LangGraphAgent("graph", _graph(), policy=outlive.job(on_busy="enqueue"))
    async with outlive.Outlive(database, [agent]) as runs:
        app = application.application(runs)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            made = await runs.submit("graph", {"said": []}, thread="a/state")
            await runs.result(made.run.run_id)
            yield client


async def test_states_are_read_changed_and_copied(graphs: httpx.AsyncClient) -> None:
    """Also of a thread whose name ends like a route: sent as one, it is the name."""
    read = (await graphs.get("/threads/a%2Fstate")).json()
    assert (read["thread"], read["position"]) == ("a/state", "clean")
    state = (await graphs.get("/threads/a%2Fstate/state")).json()
    assert state["values"]["said"] == ["first", "second"]
    page = (await graphs.get("/threads/a%2Fstate/history?limit=2")).json()
    assert [one["next"] for one in page["states"]] == [[], ["second"]]
    rest = (await graphs.get(f"/threads/a%2Fstate/history?before={page['before']}")).json()
    assert [one["next"] for one in rest["states"]] == [["first"], ["__start__"]]
    assert rest["before"] is None
    older = page["states"][1]["checkpoint"]["checkpoint_id"]
    at = (await graphs.get(f"/threads/a%2Fstate/state?checkpoint_id={older}")).json()
    assert at["values"]["said"] == ["first"]
    body = {"values": {"said": ["by hand"]}, "as_node": "first", "checkpoint_id": older}
    updated = (await graphs.post("/threads/a%2Fstate/state", json=body)).json()
    assert updated["position"] == "torn"
    assert (await graphs.get("/threads/a%2Fstate/state")).json()["checkpoint"] == updated["checkpoint"]
    copied = await graphs.post("/threads/a%2Fstate/copy", json={"to": "copy"})
    assert copied.status_code == 201
    assert copied.json()["copied_from"] == "a/state"
    again = await graphs.post("/threads/a%2Fstate/copy", json={"to": "copy"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    wrong = await graphs.post("/threads/copy/state", json={"values": {}, "as_node": "nowhere"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "values")


async def test_a_tree_is_read_as_json_and_as_text(graphs: httpx.AsyncClient) -> None:
    found = (await graphs.get("/threads/a%2Fstate/tree")).json()
    assert [len(one["checkpoints"]) for one in found["graphs"]] == [4]
    text = await graphs.get("/threads/a%2Fstate/tree", headers={"Accept": "text/plain"})
    assert text.headers["content-type"].startswith("text/plain")
    assert [line.split()[0] for line in text.text.splitlines()[1:]] == [
        one["checkpoint_id"] for one in reversed(found["graphs"][0]["checkpoints"])
    ]
