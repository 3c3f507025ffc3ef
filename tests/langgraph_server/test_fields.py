"""Nothing that a client says is taken and left out: it does what it says, or is refused with its name."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from langgraph_sdk import errors as sdk_errors

from langgraph_server import graphs
from langgraph_server.conftest import Service
from outlive.testing.asgi import WITHIN

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}


async def _waiting(service: Service) -> tuple[str, str]:
    """A thread that waits for an answer, and the id of its question."""
    thread = (await service.sdk.threads.create())["thread_id"]
    await service.sdk.runs.wait(thread, "chat", input=HELLO)
    found = await service.sdk.threads.get(thread)
    [[asked]] = found["interrupts"].values()
    return thread, str(asked["id"])


@pytest.mark.parametrize(
    "said",
    [
        {"feedback_keys": ["thumbs"]},
        {"langsmith_tracer": {"project_name": "p"}},
        {"checkpoint": {"checkpoint_id": str(uuid.uuid4()), "checkpoint_ns": "inside:1"}},
        {"checkpoint": {"checkpoint_id": str(uuid.uuid4()), "thread_id": str(uuid.uuid4())}},
        {"on_disconnect": "perhaps"},
        {"durability": "never"},
        {"multitask_strategy": "both"},
        {"if_not_exists": "perhaps"},
        {"stream_mode": ["values", "loud"]},
        {"after_seconds": -1},
        {"interrupt_before": "now"},
        {"on_completion": "keep"},
    ],
    ids=lambda said: next(iter(said)),
)
async def test_what_a_run_cannot_do_is_refused_by_its_name(service: Service, said: dict[str, Any]) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    body = {"assistant_id": "steps", "input": {}, **said}
    for path in ("", "/stream", "/wait"):
        answer = await service.http.post(f"/threads/{thread}/runs{path}", json=body)
        assert answer.status_code == 422, answer.text
        assert next(iter(said)) in answer.text
    assert await service.sdk.runs.list(thread) == []


async def test_unknown_fields_and_empty_ones_of_langsmith_are_left_out(service: Service) -> None:
    body = {"assistant_id": "steps", "input": {}, "of_tomorrow": 1, "feedback_keys": None}
    answer = await service.http.post("/runs/wait", json=body)
    assert answer.json()["steps"] == ["plan", "charge", "notify"]


@pytest.mark.parametrize("strict", [True, False])
async def test_an_answer_to_a_question_that_nobody_asks_leaves_the_thread_as_it_was(
    service: Service, strict: bool
) -> None:
    assert (await service.http.get("/info")).json()["flags"]["strict_resume"] is True
    thread, asked = await _waiting(service)
    with pytest.raises(sdk_errors.UnprocessableEntityError, match="does not ask"):
        await service.sdk.runs.create(
            thread, "chat", command={"resume": {uuid.uuid4().hex: "yes"}}, strict_resume=strict
        )
    assert (await service.sdk.threads.get(thread))["status"] == "interrupted"
    answered: Any = await service.sdk.runs.wait(
        thread, "chat", command={"resume": {asked: "yes"}}, strict_resume=strict
    )
    assert answered["messages"][-1]["content"] == "heard yes"


async def test_a_join_asks_for_modes_that_there_are(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    run = await service.sdk.runs.create(thread, "steps", input={}, stream_mode=["updates"])
    path = f"/threads/{thread}/runs/{run['run_id']}/stream"
    answer = await service.http.get(path, params={"stream_mode": ["values", "loud"]})
    assert (answer.status_code, "loud" in answer.json()["detail"]) == (422, True)
    joined = service.sdk.runs.join_stream(thread, run["run_id"], stream_mode=["values", "updates"])
    events = {part.event async for part in joined}
    assert events == {"metadata", "values", "updates", "end"}


# ------------------------------------------------------------ how long a thread lives


async def _lifetime(service: Service, thread: str) -> Any:
    return (await service.sdk.threads.get(thread, include=["ttl"]))["ttl"]  # type: ignore[typeddict-item]


async def test_a_thread_passes_so_many_minutes_after_the_last_that_happened_on_it(service: Service) -> None:
    made: Any = await service.sdk.threads.create(ttl=30)
    thread = made["thread_id"]
    told = await _lifetime(service, thread)
    assert (told["strategy"], told["ttl_minutes"]) == ("delete", 30)
    expires = datetime.fromisoformat(told["expires_at"])
    assert expires - datetime.fromisoformat(made["updated_at"]) == timedelta(minutes=30)
    await service.sdk.runs.wait(thread, "steps", input={})
    assert datetime.fromisoformat((await _lifetime(service, thread))["expires_at"]) > expires
    await service.sdk.threads.update(thread, metadata={}, ttl={"ttl": 0.0001})
    await service.sdk.threads.update(thread, metadata={"n": 1})
    assert (await _lifetime(service, thread))["ttl_minutes"] == 0.0001
    async with asyncio.timeout(WITHIN):
        while not await service.outlive.deletion().delete_passed():
            await service.sdk.threads.search(ids=[thread])
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.threads.get(thread)


async def test_a_thread_with_a_live_run_does_not_pass_and_a_lifetime_can_be_taken_back(
    service: Service,
) -> None:
    hold = uuid.uuid4().hex
    thread = (await service.sdk.threads.create(ttl={"ttl": 0.0001, "strategy": "delete"}))["thread_id"]
    run = await service.sdk.runs.create(thread, "steps", input={"hold": hold})
    await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
    assert (await _lifetime(service, thread))["expires_at"] is None
    await service.outlive.deletion().delete_passed()
    answer = await service.http.patch(f"/threads/{thread}", json={"ttl": None})
    assert answer.status_code == 200
    assert await _lifetime(service, thread) is None
    graphs.gates[hold].set()
    await service.sdk.runs.join(thread, run["run_id"])
    await service.outlive.deletion().delete_passed()
    assert (await service.sdk.threads.get(thread))["status"] == "idle"


@pytest.mark.parametrize("ttl", [0, -1, "soon", True, {"ttl": 5, "strategy": "keep_latest"}, {}])
async def test_a_lifetime_that_cannot_be_is_refused(service: Service, ttl: Any) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    for method, path in (("POST", "/threads"), ("PATCH", f"/threads/{thread}")):
        answer = await service.http.request(method, path, json={"ttl": ttl})
        assert (answer.status_code, "ttl" in answer.json()["detail"]) == (422, True)
    assert await _lifetime(service, thread) is None


# ------------------------------------------------------------ assistants, states


async def test_an_assistant_is_deleted_with_its_threads_if_that_is_said(
    service: Service, stranger: Service
) -> None:
    threads = {}
    for kept in (True, False):
        assistant = (await service.sdk.assistants.create("steps"))["assistant_id"]
        threads[kept] = (await service.sdk.threads.create())["thread_id"]
        await service.sdk.runs.wait(threads[kept], assistant, input={})
        await service.sdk.assistants.delete(assistant, delete_threads=not kept)
        with pytest.raises(sdk_errors.NotFoundError):
            await service.sdk.assistants.get(assistant)
    assert (await service.sdk.threads.get(threads[True]))["status"] == "idle"
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.threads.get(threads[False])
    own = (await service.sdk.assistants.search(graph_id="steps"))[0]["assistant_id"]
    theirs = (await stranger.sdk.threads.create(metadata={"assistant_id": own}))["thread_id"]
    await service.sdk.assistants.delete(own, delete_threads=True)
    assert (await stranger.sdk.threads.get(theirs))["thread_id"] == theirs


async def test_a_state_at_a_checkpoint_has_the_fields_that_were_asked_for(service: Service) -> None:
    thread, _ = await _waiting(service)
    state: Any = await service.sdk.threads.get_state(thread)
    body = {"checkpoint": state["checkpoint"], "select": ["next", "metadata"]}
    answer = await service.http.post(f"/threads/{thread}/state/checkpoint", json=body)
    assert answer.json() == {"next": state["next"], "metadata": state["metadata"]}
