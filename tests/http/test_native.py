"""The HTTP interface as a client meets it: creating, attaching, reading, listing, stopping, following."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import fastapi
import httpx
import native_service
import pytest
import sse_clients
from native_service import STREAM, Service, data, seqs

import outlive
from outlive import seams, signals
from outlive.testing import hearing


def accepted(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = accepted(answer, status)
    assert body["code"] == code
    assert body["status"] == status
    assert body["hint"]
    return body


# ------------------------------------------------------------ creating


async def test_a_creation_is_answered_with_201_and_where_the_run_is(service: Service) -> None:
    answer = await service.http.post(
        "/runs", json={"agent": "echo", "input": {"n": 1}, "metadata": {"from": "test"}}
    )
    made = accepted(answer, 201)
    assert answer.headers["location"] == f"/runs/{made['run_id']}"
    assert answer.headers["outlive-admitted"] == made["admitted"] == "created"
    await service.follow(f"/runs/{made['run_id']}/events")
    record = accepted(await service.http.get(answer.headers["location"]), 200)
    assert record["state"] == "succeeded"
    assert record["input"] == record["output"] == {"n": 1}
    assert record["metadata"] == {"from": "test"}
    assert record["policy"]["on_disconnect"] == "continue"


async def test_a_creation_can_be_answered_with_its_stream(service: Service) -> None:
    async with service.stream("/runs", method="POST", json={"agent": "count", "input": 3}) as (
        response,
        events,
    ):
        got = [event async for event in events]
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    run_id = got[0].id.partition(":")[0]
    assert response.headers["location"] == f"/runs/{run_id}/events"
    assert response.headers["content-location"] == f"/runs/{run_id}"
    assert [event.event for event in got] == ["attempt", "chunk", "chunk", "chunk", "end"]
    assert seqs(got) == [1, 2, 3, 4, 5]
    assert data(got) == [0, 1, 2]
    assert data(got, "end")[0]["state"] == "succeeded"


async def test_where_a_run_is_follows_the_prefix_of_the_router(database: str) -> None:
    async with native_service.serving(database, prefix="/api/v1") as served:
        answer = await served.http.post("/api/v1/runs", json={"agent": "echo"})
        assert (await served.http.get(answer.headers["location"])).json()["run_id"] == answer.json()["run_id"]
        async with served.stream("/api/v1/runs", method="POST", json={"agent": "echo"}) as (response, events):
            first = [event async for event in events]
        assert await served.follow(response.headers["location"]) == first
        async with served.stream(response.headers["location"]) as (again, _):
            assert again.headers["location"] == response.headers["location"]
            assert again.headers["content-location"] == response.headers["content-location"]


async def test_a_policy_is_changed_for_one_run(service: Service) -> None:
    made = await service.create("chat", "g", on_disconnect="continue", on_busy="reject")
    assert made["policy"]["on_disconnect"] == "continue"
    assert made["policy"]["on_busy"] == "reject"
    assert made["policy"]["grace"] == 0


async def test_a_run_that_starts_later_is_queued_until_then(service: Service) -> None:
    made = await service.create("echo", not_before=9e9)
    assert made["state"] == "queued"
    assert made["not_before"] == 9e9
    assert accepted(await service.http.post(f"/runs/{made['run_id']}/stop"), 200)["outcome"] == "stopped"


async def test_an_input_reaches_the_agent_as_it_was_sent(service: Service) -> None:
    sent = {
        "large": 2**63 + 1,
        "$outlive": "int",
        "text": "\x00 \u2028 \ufeff 😀",
        "nested": [[[{}]]],
        "number": 1.5e300,
    }
    made = await service.create("echo", sent)
    events = await service.follow(f"/runs/{made['run_id']}/events")
    # What the agent yields is encoded once more, so equal to what was sent only if it got what was sent.
    record = accepted(await service.http.get(f"/runs/{made['run_id']}"), 200)
    assert record["output"] == record["input"] == data(events)[0]
    assert [["large", {"$outlive": "int", "value": str(2**63 + 1)}], ["text", sent["text"]]] == [
        pair for pair in record["output"]["value"] if pair[0] in ("large", "text")
    ]


# ------------------------------------------------------------ the same intent again


async def test_S21_the_same_key_and_body_is_the_same_run(service: Service) -> None:
    body = {"agent": "gated", "input": "g", "thread": "t"}
    key = {"Idempotency-Key": "k"}
    first = accepted(await service.http.post("/runs", json=body, headers=key), 201)
    again = accepted(await service.http.post("/runs", json=body, headers=key), 200)
    assert (again["run_id"], again["admitted"]) == (first["run_id"], "attached")
    service.gate("g").set()
    await service.follow(f"/runs/{first['run_id']}/events")
    late = accepted(await service.http.post("/runs", json=body, headers=key), 200)
    assert (late["run_id"], late["admitted"], late["state"]) == (first["run_id"], "replayed", "succeeded")


async def test_S21_a_double_click_makes_one_run(service: Service) -> None:
    body = {"agent": "count", "input": 2, "thread": "t"}
    answers = await asyncio.gather(
        *(service.http.post("/runs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(8))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["run_id"] for answer in answers}) == 1


async def test_a_known_key_attaches_to_the_stream_and_replays_it(service: Service) -> None:
    asked: dict[str, Any] = {"json": {"agent": "gated", "input": "g"}, "headers": {"Idempotency-Key": "k"}}
    async with service.stream("/runs", method="POST", **asked) as (_, events):
        first = [await anext(events), await anext(events)]
    async with service.stream("/runs", method="POST", **asked) as (response, events):
        assert response.headers["outlive-admitted"] == "attached"
        again = [await anext(events), await anext(events)]
        service.gate("g").set()
        rest = [event async for event in events]
    assert again == first
    assert data(again + rest) == ["before", "after"]
    assert len(accepted(await service.http.get("/runs"), 200)["runs"]) == 1
    async with service.stream("/runs", method="POST", **asked) as (response, events):
        assert response.headers["outlive-admitted"] == "replayed"
        assert [event async for event in events] == again + rest


async def test_S12_a_creation_that_carries_a_cursor_attaches_and_never_creates(service: Service) -> None:
    asked = {"agent": "gated", "input": "g"}
    async with service.stream("/runs", method="POST", json=asked) as (_, events):
        got = [await anext(events), await anext(events)]
    back = {"Last-Event-ID": got[-1].id}
    async with service.stream("/runs", method="POST", json=asked, headers=back) as (response, events):
        assert response.headers["outlive-admitted"] == "attached"
        service.gate("g").set()
        got += [event async for event in events]
    assert seqs(got) == [1, 2, 3, 4]
    assert data(got) == ["before", "after"]
    runs = accepted(await service.http.get("/runs"), 200)["runs"]
    assert len(runs) == 1
    # Libraries that POST again after the end as well are told that there is no more.
    last = {"Last-Event-ID": got[-1].id}
    answer = await service.http.post("/runs", json=asked, headers=STREAM | last)
    assert (answer.status_code, answer.content) == (204, b"")
    shown = accepted(await service.http.post("/runs", json=asked, headers=last), 200)
    assert (shown["run_id"], shown["admitted"]) == (runs[0]["run_id"], "attached")


async def test_S12_a_creation_with_a_cursor_of_no_run_creates_nothing(service: Service) -> None:
    for cursor, status, code in (
        ("7", 400, "invalid_cursor"),
        (":7", 400, "invalid_cursor"),
        (f"{seams.new_id()}:7", 404, "not_found"),
    ):
        answer = await service.http.post("/runs", json={"agent": "echo"}, headers={"Last-Event-ID": cursor})
        refused(answer, status, code)
    assert accepted(await service.http.get("/runs"), 200)["runs"] == []


async def test_the_same_key_with_another_body_is_a_conflict_that_names_the_run(service: Service) -> None:
    made = await service.create("echo", 1, key="k")
    answer = await service.http.post(
        "/runs", json={"agent": "echo", "input": 2}, headers={"Idempotency-Key": "k"}
    )
    told = refused(answer, 409, "key_conflict")
    assert (told["run_id"], told["field"]) == (made["run_id"], "Idempotency-Key")


async def test_a_busy_thread_refuses_with_the_run_that_holds_it(service: Service) -> None:
    made = await service.create("gated", "g", thread="t")
    answer = await service.http.post("/runs", json={"agent": "gated", "input": "h", "thread": "t"})
    assert refused(answer, 409, "thread_busy")["run_id"] == made["run_id"]
    queued = await service.create("gated", "h", thread="t", on_busy="enqueue")
    assert queued["state"] == "queued"


# ------------------------------------------------------------ reading and listing


async def test_runs_are_listed_newest_first_filtered_and_by_pages(service: Service) -> None:
    made = [await service.ended("echo", number, thread=f"t{number % 2}") for number in range(5)]
    made.append(await service.ended("failing"))
    ids = [run["run_id"] for run in reversed(made)]

    async def listed(query: str) -> list[str]:
        return [run["run_id"] for run in accepted(await service.http.get(f"/runs?{query}"), 200)["runs"]]

    assert await listed("") == ids
    assert await listed("agent=failing") == await listed("state=failed") == ids[:1]
    assert await listed("thread=t1") == [ids[2], ids[4]]
    assert await listed("thread=t1&state=succeeded&agent=echo&limit=1") == [ids[2]]
    assert (
        await listed("thread=nobody") == await listed("agent=nobody") == await listed("state=waiting") == []
    )
    page, seen = accepted(await service.http.get("/runs?limit=4"), 200), []
    while page["runs"]:
        seen += [run["run_id"] for run in page["runs"]]
        if page["before"] is None:
            break
        page = accepted(await service.http.get(f"/runs?limit=4&before={page['before']}"), 200)
    assert seen == ids


async def test_a_thread_shows_its_live_run_and_its_newest_runs(service: Service) -> None:
    name = "users/ann?x=1&y=%2F#é"
    path = "/threads/" + httpx.QueryParams({"": name}).__str__()[1:].replace("+", "%20")
    done = await service.ended("echo", 1, thread=name)
    live = await service.create("gated", "g", thread=name)
    shown = accepted(await service.http.get(path), 200)
    assert shown["thread"] == name
    assert shown["live"] == [live["run_id"]]
    assert [run["run_id"] for run in shown["runs"]] == [live["run_id"], done["run_id"]]
    refused(await service.http.get("/threads/nobody"), 404, "not_found")


async def test_HEAD_answers_like_GET_without_a_body_and_watches_nothing(service: Service) -> None:
    made = await service.create("gated", "g", thread="t")
    run = f"/runs/{made['run_id']}"
    for path, kind in (
        ("/runs", "application/json"),
        (run, "application/json"),
        (f"{run}/events", "text/event-stream; charset=utf-8"),
        ("/threads/t", "application/json"),
        ("/ready", "application/json"),
    ):
        answer = await service.http.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
        assert answer.headers["content-type"] == kind
    assert (await service.http.head(f"/runs/{seams.new_id()}")).status_code == 404
    assert service.outlive.presence._viewers == {}


async def test_health_and_readiness_are_told_without_a_tenant(service: Service) -> None:
    assert accepted(await service.http.get("/health"), 200) == {"status": "ok"}
    ready = accepted(await service.http.get("/ready"), 200)
    assert ready == {"status": "ready", "agents": ["chat", "count", "echo", "failing", "gated"]}


async def test_S09_a_service_that_is_told_to_end_hands_back_at_once_and_takes_no_more(database: str) -> None:
    async with native_service.serving(database) as service:
        run = await service.ended()
        live = await service.create("gated", "g")
        heard = hearing.Hearing(service.outlive.signals)
        service.outlive.shutdown.set()
        await heard.of(signals.RunHandedBack, run_id=live["run_id"])
        record = accepted(await service.http.get(f"/runs/{live['run_id']}"), 200)
        assert (record["state"], record["losses"]) == ("queued", 0)
        assert accepted(await service.http.get("/health"), 200) == {"status": "ok"}
        for answer in (
            await service.http.get("/ready"),
            await service.http.post("/runs", json={"agent": "echo"}),
            await service.http.post(f"/runs/{run['run_id']}/stop"),
        ):
            refused(answer, 503, "not_ready")
            assert answer.headers["retry-after"] == "1"
        assert accepted(await service.http.get(f"/runs/{run['run_id']}"), 200) == run
        stream = await service.http.get(f"/runs/{run['run_id']}/events", headers=STREAM)
        assert (stream.status_code, stream.content) == (200, b"retry: 250\n")


# ------------------------------------------------------------ stopping


async def test_a_running_run_is_asked_to_stop_a_queued_one_stops_and_an_ended_one_says_so(
    service: Service,
) -> None:
    running = await service.create("gated", "g", thread="t")
    asked = accepted(await service.http.post(f"/runs/{running['run_id']}/stop"), 202)
    assert asked["outcome"] == "requested"
    assert asked["run"]["stop_requested"] is True
    end = (await service.follow(f"/runs/{running['run_id']}/events"))[-1]
    assert json.loads(end.data)["data"]["state"] == "stopped"
    assert json.loads(end.data)["data"]["reason"] == "requested"
    again = accepted(await service.http.post(f"/runs/{running['run_id']}/stop"), 200)
    assert (again["outcome"], again["run"]["state"]) == ("already", "stopped")
    await service.create("gated", "g", thread="u")
    behind = await service.create("gated", "g", thread="u", on_busy="enqueue")
    stopped = accepted(await service.http.post(f"/runs/{behind['run_id']}/stop"), 200)
    assert (stopped["outcome"], stopped["run"]["state"]) == ("stopped", "stopped")
    assert (await service.follow(f"/runs/{behind['run_id']}/events"))[-1].event == "end"


# ------------------------------------------------------------ following


async def test_a_follower_gets_what_was_and_what_comes_and_then_the_end(service: Service) -> None:
    made = await service.create("gated", "g")
    async with service.stream(f"/runs/{made['run_id']}/events") as (_, events):
        got = [await anext(events), await anext(events)]
        service.gate("g").set()
        got += [event async for event in events]
    assert seqs(got) == [1, 2, 3, 4]
    assert [event.id for event in got] == [f"{made['run_id']}:{seq}" for seq in (1, 2, 3, 4)]
    assert data(got) == ["before", "after"]


@pytest.mark.parametrize("form", ["{seq}", "{run}:{seq}"])
@pytest.mark.parametrize("place", ["query", "header", "both"])
async def test_a_cursor_is_taken_from_the_query_or_the_header_and_the_header_is_newer(
    service: Service, form: str, place: str
) -> None:
    run = await service.ended("count", 5)
    cursor = form.format(run=run["run_id"], seq=3)
    path = f"/runs/{run['run_id']}/events"
    query = {"query": f"?after={cursor}", "header": "", "both": "?after=1"}[place]
    headers = {} if place == "query" else {"Last-Event-ID": cursor}
    assert seqs(await service.follow(path + query, headers=headers)) == [4, 5, 6, 7]


async def test_a_cursor_at_the_end_of_an_ended_run_is_204(service: Service) -> None:
    run = await service.ended("count", 1)
    answer = await service.http.get(f"/runs/{run['run_id']}/events?after={run['last_seq']}", headers=STREAM)
    assert (answer.status_code, answer.content) == (204, b"")


async def test_a_cursor_at_the_end_of_a_live_run_waits_for_what_comes(service: Service) -> None:
    made = await service.create("gated", "g")
    path = f"/runs/{made['run_id']}/events"
    async with service.stream(path) as (_, events):
        got = [await anext(events), await anext(events)]
    async with service.stream(path, headers={"Last-Event-ID": got[-1].id}) as (_, events):
        service.gate("g").set()
        assert seqs([event async for event in events]) == [3, 4]


async def test_events_are_read_by_pages_of_JSON(service: Service) -> None:
    run = await service.ended("count", 4)
    path, wanted = f"/runs/{run['run_id']}/events", {"Accept": "application/json"}
    streamed = await service.follow(path)
    read: list[dict[str, Any]] = []
    while True:
        after = read[-1]["id"] if read else "0"
        answer = await service.http.get(path, params={"after": after, "limit": 4}, headers=wanted)
        page = accepted(answer, 200)
        assert page["run_id"] == run["run_id"]
        if not page["events"]:
            break
        read += page["events"]
    assert [(event["id"], event["kind"]) for event in read] == [(event.id, event.event) for event in streamed]
    assert [{"epoch": event["epoch"], "mode": event["mode"], "data": event["data"]} for event in read] == [
        json.loads(event.data) for event in streamed
    ]


async def test_S16_every_client_reads_every_payload_exactly(service: Service) -> None:
    run = await service.ended("echo", sse_clients.PAYLOADS)
    path = f"/runs/{run['run_id']}/events"
    raw = (await service.http.get(path, headers=STREAM)).content
    assert raw.isascii()
    assert b"\r" not in raw
    by_sdk = [part for part, event, _ in sse_clients.read_by_langgraph_sdk(raw) if event == "chunk"]
    by_httpx = [event.data for event in sse_clients.read_by_httpx_sse(raw) if event.event == "chunk"]
    assert [part["data"] for part in by_sdk] == [sse_clients.PAYLOADS]
    assert [json.loads(text)["data"] for text in by_httpx] == [sse_clients.PAYLOADS]
    page = (await service.http.get(path, headers={"Accept": "application/json"})).content
    assert page.isascii()
    assert [event["data"] for event in json.loads(page)["events"]][1] == sse_clients.PAYLOADS


async def test_S17_an_agents_error_is_in_the_stream_and_in_the_record_without_its_text(
    service: Service,
) -> None:
    run = await service.ended("failing")
    assert run["state"] == "failed"
    assert run["error"]["type"] == "LookupError"
    events = await service.follow(f"/runs/{run['run_id']}/events")
    assert data(events, "end")[0]["error"] == run["error"]
    page = await service.http.get(f"/runs/{run['run_id']}/events", headers={"Accept": "application/json"})
    assert native_service.SECRET not in json.dumps(run) + "".join(event.data for event in events) + page.text


async def test_a_GET_stream_rotates_and_goes_on_by_its_cursor_and_a_POST_stream_does_not(
    database: str,
) -> None:
    async with native_service.serving(database, rotate=0.2) as service:
        async with service.stream("/runs", method="POST", json={"agent": "gated", "input": "g"}) as (_, post):
            got = [await anext(post), await anext(post)]
            path = f"/runs/{got[0].id.partition(':')[0]}/events"
            first = await service.follow(path)
            assert first == got
            service.gate("g").set()
            got += [event async for event in post]
        rest = await service.follow(path, headers={"Last-Event-ID": first[-1].id})
        assert first + rest == got
        assert got[-1].event == "end"


async def test_the_last_viewer_of_a_stream_that_leaves_stops_a_run_that_says_so(service: Service) -> None:
    async with service.stream("/runs", method="POST", json={"agent": "chat", "input": "g"}) as (_, events):
        first = await anext(events)
    run_id = first.id.partition(":")[0]
    async with asyncio.timeout(native_service.WITHIN):
        events_ = [event async for event in service.outlive.follow(run_id, tenant=None)]
    record = accepted(await service.http.get(f"/runs/{run_id}"), 200)
    assert (record["state"], record["reason"]) == ("stopped", "disconnect")
    assert events_[-1].data["reason"] == "disconnect"


async def test_a_handler_goes_on_with_the_run_that_continues_the_one_in_the_cursor(service: Service) -> None:
    body, key = {"agent": "chat", "input": "g"}, {"Idempotency-Key": "k"}
    async with service.stream("/runs", method="POST", json=body, headers=key) as (_, events):
        old = await anext(events)
    run_id = old.id.partition(":")[0]
    async with asyncio.timeout(native_service.WITHIN):
        async for _event in service.outlive.follow(run_id, tenant=None):
            pass
    app = fastapi.FastAPI()
    outlive.problems(app)

    @app.get("/stream")
    async def stream(run: str, cursor: str) -> outlive.EventStream:
        return outlive.stream(service.outlive, await service.outlive.run(run, tenant=None), after=cursor)

    service.gate("g").set()
    again = accepted(await service.http.post("/runs", json=body, headers=key), 201)
    assert (again["admitted"], again["continues"]) == ("continued", run_id)
    async with native_service.listening(app) as port:
        url = f"http://127.0.0.1:{port}/stream"
        went_on = await service.follow(url, params={"run": again["run_id"], "cursor": old.id})
        assert data(went_on) == ["before", "after"]
        for cursor in (f"{seams.new_id()}:1", f"{again['run_id']}:99"):
            answer = await service.http.get(url, params={"run": again["run_id"], "cursor": cursor})
            refused(answer, 400, "invalid_cursor")
