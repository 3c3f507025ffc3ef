"""The event stream protocol through the SDK's own client, and its numbers over any number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import httpx_sse
import pytest

from langgraph_server import graphs
from langgraph_server.conftest import Service
from outlive.testing.asgi import WITHIN

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}
EVERYTHING = [
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "checkpoints",
    "tasks",
    "custom",
]


@contextlib.asynccontextmanager
async def opened(
    service: Service, thread: str, **wanted: Any
) -> AsyncGenerator[AsyncGenerator[Any, None], None]:
    """An open connection, and its events as they come."""
    body = {"channels": EVERYTHING} | wanted
    async with (
        asyncio.timeout(WITHIN),
        service.http.stream("POST", f"/threads/{thread}/stream/events", json=body) as response,
        contextlib.aclosing(_events(response)) as events,
    ):
        assert response.status_code == 200
        yield events


async def _events(response: Any) -> AsyncGenerator[Any, None]:
    async for event in httpx_sse.EventSource(response).aiter_sse():
        yield json.loads(event.data)


async def until_over(events: AsyncGenerator[Any, None], runs: int = 1) -> list[Any]:
    """Every event up to the end of so many runs; the connection stays open behind it."""
    seen = []
    async for event in events:
        seen.append(event)
        at_root = event["method"] == "lifecycle" and not event["params"]["namespace"]
        if at_root and event["params"]["data"]["event"] in ("completed", "failed", "interrupted"):
            runs -= 1
            if not runs:
                return seen
    raise AssertionError("the connection ended by itself")


async def command(service: Service, thread: str, method: str, **params: Any) -> Any:
    """The answer to a command."""
    body = {"id": 7, "method": method, "params": params}
    answer = await service.http.post(f"/threads/{thread}/commands", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_question_is_asked_answered_and_what_was_said_is_streamed(service: Service) -> None:
    async with asyncio.timeout(WITHIN), service.sdk.threads.stream(assistant_id="chat") as thread:
        hold = uuid.uuid4().hex
        await thread.run.start(input={**HELLO, "hold": hold})
        said = asyncio.create_task(_said(thread))
        await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
        graphs.gates[hold].set()
        assert await said == ["one two three"]
        assert [one["value"] for one in thread.interrupts] == [{"question": "go on?"}]
        await thread.run.respond("yes")
        output: Any = await thread.output
        assert output["messages"][-1]["content"] == "heard yes"


async def _said(thread: Any) -> list[str]:
    """The messages first, and then their texts: what is in a message comes with the ones after it."""
    messages = [message async for message in thread.messages]
    return [await message.text for message in messages]


async def test_every_number_of_a_thread_is_the_same_on_every_connection(service: Service) -> None:
    name = str(uuid.uuid4())
    async with opened(service, name) as events:
        assert (await command(service, name, "run.start", assistant_id="chat", input=HELLO))[
            "type"
        ] == "success"
        live = await until_over(events)
        asked = next(event for event in live if event["method"] == "input.requested")["params"]["data"]
        answer = {"interrupt_id": asked["interrupt_id"], "response": "yes"}
        assert (await command(service, name, "input.respond", **answer))["type"] == "success"
        live += await until_over(events)
    numbers = [event["seq"] for event in live]
    assert numbers == sorted(set(numbers))
    for place in range(0, len(live), 3):
        async with opened(service, name, since=numbers[place]) as events:
            left = 2 if place < numbers.index(max(n for n in numbers if n <= _first_end(live))) else 1
            again = await until_over(events, left) if place < len(live) - 1 else []
        assert again == live[place + 1 :], place
    async with opened(service, name, channels=["messages", "lifecycle"]) as events:
        some = await until_over(events, 2)
    assert some == [event for event in live if event["method"] in ("messages", "lifecycle")]


def _first_end(live: list[Any]) -> int:
    ends = [
        event["seq"]
        for event in live
        if event["method"] == "lifecycle" and event["params"]["data"]["event"] != "running"
    ]
    return int(ends[0])


async def test_all_channels_have_what_is_theirs(service: Service) -> None:
    name = str(uuid.uuid4())
    async with opened(service, name) as events:
        await command(service, name, "run.start", assistant_id="steps", input={})
        live = await until_over(events)
    by_method = {event["method"] for event in live}
    assert {"values", "updates", "tasks", "checkpoints", "lifecycle"} <= by_method
    updates = [event["params"]["data"] for event in live if event["method"] == "updates"]
    assert [one["node"] for one in updates] == ["plan", "charge", "notify"]
    checkpoints = [event["params"]["data"] for event in live if event["method"] == "checkpoints"]
    assert [one["step"] for one in checkpoints] == [-1, 0, 1, 2, 3]
    assert [one.get("parent_id") for one in checkpoints][1:] == [one["id"] for one in checkpoints][:-1]
    states = await command(service, name, "state.listCheckpoints")
    assert {one["id"] for one in states["result"]["checkpoints"]} == {one["id"] for one in checkpoints}


async def test_new_input_on_a_thread_that_waits_is_an_error_that_names_the_question(service: Service) -> None:
    name = str(uuid.uuid4())
    async with opened(service, name) as events:
        await command(service, name, "run.start", assistant_id="chat", input=HELLO)
        await until_over(events)
    refused = await command(service, name, "run.start", assistant_id="chat", input=HELLO)
    assert (refused["type"], refused["error"]) == ("error", "invalid_argument")
    assert "wait" in refused["message"]
    unknown = await command(service, name, "input.respond", interrupt_id="nobody", response=1)
    assert unknown["error"] == "no_such_interrupt"
    state = await service.sdk.threads.get_state(name)
    assert state["next"] == ["ask"]


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("run.start", {"input": 1}, "invalid_argument"),
        ("run.start", {"assistant_id": "nobody"}, "invalid_argument"),
        ("run.start", {"assistant_id": str(uuid.uuid4())}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "a", "response": 1}, "invalid_argument"),
        ("input.inject", {}, "not_supported"),
        ("state.get", {}, "invalid_argument"),
        ("make.coffee", {}, "unknown_command"),
    ],
)
async def test_what_cannot_be_done_is_answered_with_the_protocols_word_for_it(
    service: Service, method: str, params: dict[str, Any], error: str
) -> None:
    refused = await command(service, str(uuid.uuid4()), method, **params)
    assert (refused["type"], refused["id"], refused["error"]) == ("error", 7, error)


async def test_malformed_commands_and_channels_are_bad_requests(service: Service) -> None:
    path = f"/threads/{uuid.uuid4()}"
    for body in ({}, {"id": "a", "method": "run.start"}, {"method": "run.start"}):
        assert (await service.http.post(f"{path}/commands", json=body)).status_code == 400
    answer = await service.http.post(f"{path}/stream/events", json={"channels": ["everything"]})
    assert (answer.status_code, "no channel" in answer.json()["detail"]) == (400, True)


async def test_a_stopped_run_ends_as_interrupted_and_the_connection_stays_open(service: Service) -> None:
    name, hold = str(uuid.uuid4()), uuid.uuid4().hex
    async with opened(service, name, channels=["lifecycle"]) as events:
        made = await command(service, name, "run.start", assistant_id="steps", input={"hold": hold})
        await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
        await service.sdk.runs.cancel(name, made["result"]["run_id"])
        ended = (await until_over(events))[-1]["params"]["data"]
        assert (ended["event"], ended["reason"]) == ("interrupted", "requested")
        graphs.gates[hold].set()
        await command(service, name, "run.start", assistant_id="steps", input={})
        assert (await until_over(events))[-1]["params"]["data"]["event"] == "completed"
