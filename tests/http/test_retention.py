"""A client that comes for events which are not kept any more is told what there is instead."""

from __future__ import annotations

import json

from native_service import STREAM, Service, refused

from outlive import retention

PAGE = {"Accept": "application/json"}


async def pruned(service: Service, **more: str) -> str:
    """A run of five events of which the end alone is kept."""
    run = await service.ended("count", 3, **more)
    await retention.Retention(service.outlive.store, 0, happenings=service.outlive.signals).prune_once()
    found: str = run["run_id"]
    return found


async def test_a_cursor_from_before_what_is_kept_is_gone_and_the_answer_says_what_there_is(
    service: Service,
) -> None:
    run_id = await pruned(service)
    path = f"/runs/{run_id}/events"
    for headers in (PAGE, STREAM):
        answer = await service.http.get(path, headers=headers | {"Last-Event-ID": f"{run_id}:2"})
        refused(answer, 410, "pruned")
        told = answer.json()
        assert (told["oldest"], told["latest"], told["snapshot"]) == (5, 5, f"/runs/{run_id}")
        assert told["run_id"] == run_id
    answer = await service.http.post("/runs", headers=STREAM | {"Last-Event-ID": f"{run_id}:2"})
    refused(answer, 410, "pruned")
    refused(await service.http.get(f"{path}/2"), 410, "pruned")
    assert (await service.http.get(f"/runs/{run_id}")).json()["state"] == "succeeded"
    (rest,) = await service.follow(f"{path}?after=4")
    assert rest.event == "end"
    assert (await service.http.get(f"{path}?after=5", headers=STREAM)).status_code == 204


async def test_a_stream_without_a_cursor_says_what_is_missing_and_begins_with_what_is_kept(
    service: Service,
) -> None:
    run_id = await pruned(service)
    first, end = await service.follow(f"/runs/{run_id}/events")
    assert (first.event, first.id) == ("pruned", "")
    assert json.loads(first.data) == {"oldest": 5, "snapshot": f"/runs/{run_id}"}
    assert (end.event, end.id) == ("end", f"{run_id}:5")
    page = (await service.http.get(f"/runs/{run_id}/events", headers=PAGE)).json()
    assert [event["seq"] for event in page["events"]] == [5]


async def test_a_thread_begins_after_what_was_taken_from_it(service: Service) -> None:
    await pruned(service, thread="a/b")
    await service.ended("count", 1, thread="a/b")
    path = "/threads/a%2Fb/events"
    page = (await service.http.get(path, headers=PAGE)).json()
    assert [event["seq"] for event in page["events"]] == [5, 1, 2, 3]
    before = page["events"][0]["id"].rpartition(":")[0] + ":2"
    for headers in (STREAM, PAGE):
        told = refused(
            await service.http.get(path, headers=headers | {"Last-Event-ID": before}), 410, "pruned"
        )
        assert (told["oldest"], told["latest"], told["snapshot"]) == (5, 8, "/threads/a%2Fb")
    async with service.stream(path) as (_, events):
        first, second = await anext(events), await anext(events)
    assert (first.event, json.loads(first.data)["oldest"]) == ("pruned", 5)
    assert second.id == page["events"][0]["id"]
