"""Runs through the SDK's own client: streamed, waited for, answered, joined, cancelled."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from langgraph_sdk import errors as sdk_errors

from langgraph_server import graphs
from langgraph_server.conftest import Service

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}
WITHIN = 20.0


async def streamed(service: Service, thread_id: str | None, **more: Any) -> list[Any]:
    """Everything that a run streams, to its end."""
    more = {"assistant_id": "chat", "input": HELLO} | more
    async with asyncio.timeout(WITHIN):
        return [part async for part in service.sdk.runs.stream(thread_id, **more)]


async def test_a_run_streams_what_was_asked_for_and_ends_with_its_status(service: Service) -> None:
    thread = await service.sdk.threads.create()
    modes = ["values", "updates", "messages-tuple"]
    parts = await streamed(service, thread["thread_id"], stream_mode=modes)
    events = [part.event for part in parts]
    assert events[0] == "metadata"
    assert parts[0].data["attempt"] == 1
    assert set(events[1:-1]) == {"values", "updates", "messages"}
    assert (events[-1], parts[-1].data["status"]) == ("end", "success")
    assert all(part.id for part in parts)
    tokens = [part.data[0]["content"] for part in parts if part.event == "messages"]
    assert "".join(tokens) == "one two three"


async def test_messages_grow_until_they_are_whole_under_the_id_that_values_give_them(
    service: Service,
) -> None:
    parts = await streamed(service, None, stream_mode=["messages", "values"])
    partial = [part.data[0]["content"] for part in parts if part.event == "messages/partial"]
    assert partial == ["one", "one ", "one two", "one two ", "one two three"]
    final = [part for part in parts if part.event == "values"][-1].data["messages"][-1]
    shown = [part.data[0] for part in parts if part.event == "messages/partial"][-1]
    assert (shown["id"], shown["type"]) == (final["id"], "ai")


async def test_a_stream_goes_on_from_any_of_its_events_without_loss_or_repeat(service: Service) -> None:
    thread = await service.sdk.threads.create()
    modes: Any = ["values", "messages", "messages-tuple", "updates"]
    whole = await streamed(service, thread["thread_id"], stream_mode=modes)
    run_id = whole[0].data["run_id"]
    for place, last in enumerate(whole):
        rest = service.sdk.runs.join_stream(
            thread["thread_id"], run_id, stream_mode=modes, last_event_id=last.id
        )
        assert [part async for part in rest] == whole[place + 1 :], last


async def test_a_question_pauses_the_thread_and_its_answer_ends_it(service: Service) -> None:
    thread = await service.sdk.threads.create()
    paused: Any = await service.sdk.runs.wait(thread["thread_id"], "chat", input=HELLO)
    assert paused["__interrupt__"][0]["value"] == {"question": "go on?"}
    waiting = await service.sdk.threads.get(thread["thread_id"])
    assert waiting["status"] == "interrupted"
    assert [one["value"] for asked in waiting["interrupts"].values() for one in asked] == [
        {"question": "go on?"}
    ]
    state = await service.sdk.threads.get_state(thread["thread_id"])
    assert state["next"] == ["ask"]
    answered: Any = await service.sdk.runs.wait(thread["thread_id"], "chat", command={"resume": "yes"})
    assert answered["messages"][-1]["content"] == "heard yes"
    assert (await service.sdk.threads.get(thread["thread_id"]))["status"] == "idle"


async def test_a_cancelled_run_says_so_to_who_waits_reads_and_streams(service: Service) -> None:
    thread = await service.sdk.threads.create()
    hold = uuid.uuid4().hex
    made = await service.sdk.runs.create(thread["thread_id"], "steps", input={"hold": hold})
    await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
    following = asyncio.create_task(_joined(service, thread["thread_id"], made["run_id"]))
    await service.sdk.runs.cancel(thread["thread_id"], made["run_id"], wait=True)
    parts = await asyncio.wait_for(following, WITHIN)
    assert (parts[-1].event, parts[-1].data["status"]) == ("end", "interrupted")
    assert (await service.sdk.runs.get(thread["thread_id"], made["run_id"]))["status"] == "interrupted"
    waited: Any = await service.sdk.runs.join(thread["thread_id"], made["run_id"])
    assert waited["__error__"]["reason"] == "requested"
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.runs.cancel(thread["thread_id"], made["run_id"])


async def _joined(service: Service, thread_id: str, run_id: str) -> list[Any]:
    return [part async for part in service.sdk.runs.join_stream(thread_id, run_id)]


async def test_a_failed_run_ends_with_an_error_that_keeps_the_agents_secrets(service: Service) -> None:
    parts = await streamed(service, None, assistant_id="steps", input={"fail": True})
    assert [part.event for part in parts[-2:]] == ["error", "end"]
    assert (parts[-2].data["error"], parts[-1].data["status"]) == ("ValueError", "error")
    assert "secret" not in str(parts)


async def test_a_thread_is_found_by_what_runs_and_callers_said_of_it(
    service: Service, stranger: Service
) -> None:
    thread = await service.sdk.threads.create(metadata={"owner": "ann", "n": 1})
    await service.sdk.runs.wait(thread["thread_id"], "chat", input=HELLO)
    other = await service.sdk.threads.create(metadata={"owner": "bob"})
    found: Any = []
    for wanted in ({"owner": "ann"}, {"graph_id": "chat"}, {"n": 1, "graph_id": "chat"}):
        found = await service.sdk.threads.search(metadata=wanted)
        assert [one["thread_id"] for one in found] == [thread["thread_id"]], wanted
    assert found[0]["values"]["messages"][0]["content"] == "hello"
    interrupted = await service.sdk.threads.search(status="interrupted")
    assert [one["thread_id"] for one in interrupted] == [thread["thread_id"]]
    assert {one["thread_id"] for one in await service.sdk.threads.search()} == {
        thread["thread_id"],
        other["thread_id"],
    }
    assert await stranger.sdk.threads.search() == []
    with pytest.raises(sdk_errors.NotFoundError):
        await stranger.sdk.threads.get(thread["thread_id"])


async def test_an_assistant_has_versions_and_configures_its_runs(service: Service) -> None:
    made = await service.sdk.assistants.create("chat", name="mine", metadata={"team": "a"}, context={"k": 1})
    changed = await service.sdk.assistants.update(made["assistant_id"], name="ours", metadata={"level": 2})
    assert (changed["version"], changed["name"], changed["metadata"]) == (
        2,
        "ours",
        {"team": "a", "level": 2},
    )
    versions = await service.sdk.assistants.get_versions(made["assistant_id"])
    assert [one["version"] for one in versions] == [2, 1]
    back = await service.sdk.assistants.set_latest(made["assistant_id"], 1)
    assert (back["version"], back["name"]) == (1, "mine")
    again = await service.sdk.assistants.update(made["assistant_id"], name="theirs")
    assert again["version"] == 3
    found = await service.sdk.assistants.search(graph_id="chat")
    assert {one["name"] for one in found} == {"chat", "theirs"}
    run = await service.sdk.runs.create(None, made["assistant_id"], input=HELLO)
    assert run["assistant_id"] == made["assistant_id"]
    await service.sdk.assistants.delete(made["assistant_id"])
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.assistants.get(made["assistant_id"])


async def test_bodies_are_json_whatever_their_type_says_and_unknown_fields_are_left_out(
    service: Service,
) -> None:
    answer = await service.http.post(
        "/runs/wait",
        content='{"assistant_id":"steps","input":{},"from_the_future":1}',
        headers={"Content-Type": "text/plain"},
    )
    assert answer.json() == {"steps": ["plan", "charge", "notify"]}
    assert answer.headers["content-location"].startswith("/threads/")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"assistant_id": "nobody"}, 422),
        ({"assistant_id": str(uuid.uuid4())}, 404),
        ({"assistant_id": None}, 422),
        ({"stream_mode": "everything"}, 422),
        ({"multitask_strategy": "guess"}, 422),
        ({"on_disconnect": "perhaps"}, 422),
        ({"durability": "often"}, 422),
    ],
)
async def test_what_cannot_be_run_is_refused_with_a_detail(
    service: Service, change: dict[str, Any], status: int
) -> None:
    answer = await service.http.post("/runs/wait", json={"assistant_id": "steps", "input": {}} | change)
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["detail"], str)


async def test_ids_that_are_none_unknown_or_of_somebody_else_look_as_they_should(
    service: Service, stranger: Service
) -> None:
    run = await stranger.sdk.runs.create(None, "chat", input=HELLO)
    theirs = f"/threads/{run['thread_id']}/runs/{run['run_id']}"
    unknown = f"/threads/{uuid.uuid4()}/runs/{uuid.uuid4()}"
    for path in (theirs, unknown):
        for rest in ("", "/stream", "/join"):
            assert (await service.http.get(path + rest)).status_code == 404, path + rest
        assert (await service.http.post(path + "/cancel")).status_code == 404
    malformed: list[httpx.Response] = [
        await service.http.get("/threads/none"),
        await service.http.get("/threads/none/runs/none"),
        await service.http.post("/threads/none/runs", json={"assistant_id": "chat"}),
    ]
    assert [answer.status_code for answer in malformed] == [422, 422, 422]
