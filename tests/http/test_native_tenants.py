"""Nobody sees a byte of another tenant's: what is foreign looks like what never was."""

from __future__ import annotations

import json
from typing import Any

import httpx
import native_service
import pytest
from native_service import STREAM, Service

from outlive import seams


async def answered(service: Service, method: str, path: str, **more: Any) -> tuple[int, dict[str, str], str]:
    answer = await service.http.request(method, path, **more)
    headers = {name: text for name, text in answer.headers.items() if name != "date"}
    return answer.status_code, headers, answer.text


@pytest.mark.invariant("I14")
@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/runs/{run}", {}),
        ("HEAD", "/runs/{run}", {}),
        ("GET", "/runs/{run}/events", STREAM),
        ("HEAD", "/runs/{run}/events", STREAM),
        ("GET", "/runs/{run}/events", {"Accept": "application/json"}),
        ("GET", "/runs/{run}/events?after={run}:1", STREAM),
        ("GET", "/runs/{run}/events?after=9999", STREAM),
        ("GET", "/runs/{run}/events", STREAM | {"Last-Event-ID": "{run}:1"}),
        ("POST", "/runs/{run}/stop", {}),
        ("POST", "/runs", {"Last-Event-ID": "{run}:1"}),
        ("POST", "/runs", STREAM | {"Last-Event-ID": "{run}:1"}),
        ("GET", "/threads/{thread}", {}),
        ("HEAD", "/threads/{thread}", {}),
        ("GET", "/threads/{thread}/events", {"Accept": "application/json"}),
        ("GET", "/runs?thread={thread}", {}),
        ("GET", "/runs?before={run}", {}),
    ],
)
async def test_S22_what_is_foreign_is_answered_like_what_never_was(
    service: Service, method: str, path: str, headers: dict[str, str]
) -> None:
    thread = f"{service.tenant}-thread"
    await service.ended()
    run = await service.ended("echo", 1, thread=thread)

    async def asked(stranger: Service, run_id: str, thread: str) -> str:
        named = {name: text.format(run=run_id) for name, text in headers.items()}
        body = {"json": {"agent": "echo"}} if path == "/runs" and method == "POST" else {}
        got = await answered(stranger, method, path.format(run=run_id, thread=thread), headers=named, **body)
        return json.dumps(got).replace(run_id, "RUN").replace(thread, "THREAD")

    async with service.as_tenant(f"{service.tenant}-stranger") as stranger:
        foreign = await asked(stranger, run["run_id"], thread)
        assert foreign == await asked(stranger, seams.new_id(), thread.replace("thread", "nobody"))
        assert (await stranger.http.get("/runs")).json()["runs"] == []
    assert (await service.http.get(f"/runs/{run['run_id']}")).json() == run
    assert foreign != await asked(service, run["run_id"], thread)


async def test_S22_a_stranger_stops_nothing(service: Service) -> None:
    run = await service.create("gated", "g")
    async with service.as_tenant(f"{service.tenant}-stranger") as stranger:
        assert (await stranger.http.post(f"/runs/{run['run_id']}/stop")).status_code == 404
    record = (await service.http.get(f"/runs/{run['run_id']}")).json()
    assert (record["state"], record["stop_requested"]) == ("running", False)


async def test_S22_a_key_and_a_thread_of_the_same_name_are_another_tenants_own(service: Service) -> None:
    mine = await service.create("gated", "g", thread="t", key="k")
    async with service.as_tenant(f"{service.tenant}-stranger") as stranger:
        theirs = await stranger.create("gated", "h", thread="t", key="k")
        assert theirs["run_id"] != mine["run_id"]
        assert (await stranger.http.get("/threads/t")).json()["live"] == [theirs["run_id"]]
    assert (await service.http.get("/threads/t")).json()["live"] == [mine["run_id"]]


@pytest.mark.parametrize("claimed", [{}, {"Tenant": ""}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/runs"),
        ("GET", "/runs/{run}"),
        ("GET", "/runs/{run}/events"),
        ("POST", "/runs/{run}/stop"),
        ("POST", "/runs"),
        ("GET", "/threads/t"),
    ],
)
async def test_S22_a_request_that_the_application_gives_no_tenant_is_refused(
    service: Service, claimed: dict[str, str], method: str, path: str
) -> None:
    run = await service.create("gated", "g", thread="t")
    url = f"http://127.0.0.1:{service.port}{path.format(run=run['run_id'])}"
    async with httpx.AsyncClient(timeout=native_service.WITHIN) as client:
        answer = await client.request(method, url, headers=claimed, json={"agent": "echo"})
    assert (answer.status_code, answer.json()["code"]) == (403, "no_tenant")
    assert run["run_id"] not in answer.text


async def test_a_tenant_whose_name_cannot_be_kept_is_refused(service: Service) -> None:
    answer = await service.http.get("/runs", headers={"Tenant": "a" * 513})
    assert (answer.status_code, answer.json()["field"]) == (422, "tenant")
