"""The stream of a thread through the SDK: all its runs on one connection, from any of its ids on."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, cast

import pytest
from langgraph_sdk import errors as sdk_errors

from langgraph_server import graphs
from langgraph_server.conftest import Service
from outlive.testing.asgi import WITHIN


async def until_done(joined: Coroutine[Any, Any, AsyncIterator[Any]], runs: int = 1) -> list[Any]:
    """What is streamed up to the end of so many runs; then the connection is let go."""
    seen, stream = [], cast("AsyncGenerator[Any, None]", await joined)
    async with asyncio.timeout(WITHIN), contextlib.aclosing(stream):
        async for part in stream:
            seen.append(part)
            if part.event == "metadata" and part.data.get("status") == "run_done":
                runs -= 1
                if not runs:
                    return seen
    raise AssertionError("the connection ended by itself")


async def _ran(service: Service, thread: str, **options: Any) -> str:
    run = await service.sdk.runs.create(thread, "steps", input={}, **options)
    await service.sdk.runs.join(thread, run["run_id"])
    return str(run["run_id"])


async def test_the_runs_of_a_thread_are_streamed_as_each_was_made_to_be(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    first = await _ran(service, thread)
    second = await _ran(service, thread, stream_mode=["updates"])
    seen = await until_done(service.sdk.threads.join_stream(thread, last_event_id="-1"), 2)
    names = [part.event for part in seen]
    assert names == ["metadata", *["values"] * 3, "metadata", "metadata", *["updates"] * 3, "metadata"]
    assert [part.data["run_id"] for part in seen if part.event == "metadata"] == [
        first,
        first,
        second,
        second,
    ]
    assert seen[-1].data == {"status": "run_done", "run_id": second, "run_status": "success"}
    own = [part async for part in service.sdk.runs.join_stream(thread, first)]
    assert [part.data for part in own][:-1] == [part.data for part in seen[: len(own) - 1]]


async def test_a_cut_stream_goes_on_from_each_of_its_ids_without_loss_or_repeat(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    hello: Any = {"messages": [{"role": "user", "content": "hello"}]}
    made = await service.sdk.runs.create(thread, "chat", input=hello, stream_mode=["messages", "updates"])
    await service.sdk.runs.join(thread, made["run_id"])
    answered = await service.sdk.runs.create(thread, "chat", command={"resume": "yes"})
    await service.sdk.runs.join(thread, answered["run_id"])
    whole = await until_done(service.sdk.threads.join_stream(thread, last_event_id="-1"), 2)
    ids = [part.id for part in whole]
    assert len(set(ids)) == len(ids)
    ends = [place for place, part in enumerate(whole) if "run_done" in str(part.data)]
    for place, cursor in enumerate(ids[:-1]):
        left = sum(1 for end in ends if end > place)
        again = await until_done(service.sdk.threads.join_stream(thread, last_event_id=cursor), left)
        assert again == whole[place + 1 :], cursor


async def test_without_an_id_it_begins_now_and_shows_a_run_as_it_comes(service: Service) -> None:
    thread, hold = (await service.sdk.threads.create())["thread_id"], uuid.uuid4().hex
    await _ran(service, thread)
    async with asyncio.timeout(WITHIN):
        async with service.http.stream("GET", f"/threads/{thread}/stream") as response:
            assert response.status_code == 200
            made = await service.sdk.runs.create(thread, "steps", input={"hold": hold})
            await graphs.reached[hold].wait()
            lines = response.aiter_lines()
            told = [await _next(lines) for _ in range(4)]
            assert told == ["metadata", "values", "values", "values"]  # the input's, and two steps'
            graphs.gates[hold].set()
            told = [await _next(lines) for _ in range(2)]
            assert told == ["values", "metadata"]
        assert (await service.sdk.runs.join(thread, made["run_id"]))["steps"][-1] == "notify"


async def _next(lines: AsyncIterator[str]) -> str:
    async for line in lines:
        if line.startswith("event:"):
            return line.removeprefix("event:").strip()
    raise AssertionError("the connection ended by itself")


async def test_lifecycle_shows_where_runs_begin_and_end_and_state_update_their_values(
    service: Service,
) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    run_id = await _ran(service, thread, stream_mode=["updates"])
    stream = service.sdk.threads.join_stream(thread, last_event_id="-1", stream_mode="lifecycle")
    seen = await until_done(stream)
    assert [part.data for part in seen] == [
        {"run_id": run_id, "attempt": 1},
        {"status": "run_done", "run_id": run_id, "run_status": "success"},
    ]
    both = service.sdk.threads.join_stream(
        thread, last_event_id="-1", stream_mode=["state_update", "lifecycle"]
    )
    seen = await until_done(both)
    assert [part.data.get("steps") for part in seen if part.event == "values"] == [
        ["plan"],
        ["plan", "charge"],
        ["plan", "charge", "notify"],
    ]
    assert [part.event for part in seen] == ["metadata", *["values"] * 3, "metadata"]


async def test_a_failed_run_tells_its_error_and_the_stream_stays_open(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    fails: Any = {"fail": True}
    failed = await service.sdk.runs.create(thread, "steps", input=fails)
    assert "__error__" in await service.sdk.runs.join(thread, failed["run_id"])
    mended = await service.sdk.runs.create(thread, "steps", command={"update": {"fail": False}})
    await service.sdk.runs.join(thread, mended["run_id"])
    seen = await until_done(service.sdk.threads.join_stream(thread, last_event_id="-1"), 2)
    assert [part.data["error"] for part in seen if part.event == "error"] == ["ValueError"]
    ends = [part.data["run_status"] for part in seen if part.data.get("status") == "run_done"]
    assert ends == ["error", "success"]


async def test_changes_of_states_and_runs_set_aside_are_in_no_stream_of_these_clients(
    service: Service,
) -> None:
    thread, hold = (await service.sdk.threads.create())["thread_id"], uuid.uuid4().hex
    await _ran(service, thread)
    await service.sdk.threads.update_state(thread, {"steps": ["mine"]}, as_node="notify")
    aside = await service.sdk.runs.create(thread, "steps", input={"hold": hold})
    await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
    await service.sdk.runs.cancel(thread, aside["run_id"], action="rollback")
    last = await _ran(service, thread)
    seen = await until_done(
        service.sdk.threads.join_stream(thread, last_event_id="-1", stream_mode="lifecycle"), 2
    )
    shown = {part.data["run_id"] for part in seen}
    assert (len(shown), last in shown, aside["run_id"] in shown) == (2, True, False)
    async with service.http.stream(
        "POST", f"/threads/{thread}/stream/events", json={"channels": ["lifecycle"]}
    ) as response:
        told = ""
        async with asyncio.timeout(WITHIN):
            async for line in response.aiter_lines():
                told += line
                if told.count('"completed"') == 2:
                    break
    assert aside["run_id"] not in told
    assert "outlive.update" not in told


async def test_the_location_leads_on_with_the_same_modes(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    path = f"/threads/{thread}/stream?stream_modes=lifecycle,state_update"
    async with service.http.stream("GET", path) as response:
        again = f"/threads/{thread}/stream?stream_mode=lifecycle&stream_mode=state_update"
        assert response.headers["location"] == again
        assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?stream_mode=loud", 422),
        ("?last_event_id=nonsense", 400),
        ("?last_event_id=99999", 400),
        ("?last_event_id=thread-of-another:1", 400),
        ("?last_event_id=0.1", 400),
    ],
)
async def test_what_cannot_be_streamed_is_refused(service: Service, query: str, status: int) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    answer = await service.http.get(f"/threads/{thread}/stream{query}")
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


async def test_a_thread_of_nobody_or_of_another_tenant_is_not_found(
    service: Service, stranger: Service
) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    for name in (thread, str(uuid.uuid4())):
        with pytest.raises(sdk_errors.NotFoundError):
            await until_done(stranger.sdk.threads.join_stream(name))
    assert (await service.http.get("/threads/nonsense/stream")).status_code == 422
