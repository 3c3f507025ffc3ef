"""What a request may say of its run, each shown by what it does: when, where from, how far, what after."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from langgraph_sdk import errors as sdk_errors

import outlive
from langgraph_server import conftest, graphs
from langgraph_server.conftest import Service
from outlive import notifications
from outlive.states import Reason, State
from outlive.testing.receiver import Receiver

WITHIN = 20.0
ALL = ["plan", "charge", "notify"]
SECRET = notifications.new_secret(b"0123456789abcdef0123456789abcdef")


async def _ran(service: Service, **more: Any) -> Any:
    """A new thread on which the steps have run, and the values that came of it."""
    thread = str(uuid.uuid4())
    more = {"input": {}} | more
    return thread, await service.sdk.runs.wait(thread, "steps", if_not_exists="create", **more)


async def _at(service: Service, thread: str, steps: list[str]) -> Any:
    """The state in which a thread had these steps."""
    history: Any = await service.sdk.threads.get_history(thread, limit=100)
    return next(one for one in history if one["values"].get("steps", []) == steps and one["next"])


async def _state(service: Service, thread: str) -> Any:
    return await service.sdk.threads.get_state(thread)


# ---------------------------------------------------------------- where from, and how far


@pytest.mark.parametrize("how", ["checkpoint", "checkpoint_id"])
async def test_a_run_starts_from_an_older_checkpoint_as_a_fork(service: Service, how: str) -> None:
    thread, _ = await _ran(service)
    planned = await _at(service, thread, ["plan"])
    where = planned["checkpoint"]
    fork = {how: where if how == "checkpoint" else where["checkpoint_id"]}
    forked: Any = await service.sdk.runs.wait(thread, "steps", input=None, **fork)
    assert forked["steps"] == ALL
    newest = await _state(service, thread)
    while newest["values"]["steps"] != ["plan"]:
        newest = await service.sdk.threads.get_state(thread, checkpoint=newest["parent_checkpoint"])
    assert newest["metadata"]["step"] >= planned["metadata"]["step"]
    unknown = await service.http.post(
        f"/threads/{thread}/runs/wait",
        json={"assistant_id": "steps", "input": None, "checkpoint_id": str(uuid.uuid4())},
    )
    assert "__error__" in unknown.json()


async def test_a_fork_with_new_input_leaves_the_other_branch_readable(service: Service) -> None:
    thread, _ = await _ran(service)
    before = await _state(service, thread)
    planned = await _at(service, thread, ["plan"])
    given: Any = {"steps": ["again"]}
    forked: Any = await service.sdk.runs.wait(thread, "steps", input=given, checkpoint=planned["checkpoint"])
    assert forked["steps"] == ["plan", "again", *ALL]
    old: Any = await service.sdk.threads.get_state(thread, checkpoint=before["checkpoint"])
    assert old["values"]["steps"] == ALL


async def test_a_command_updates_the_state_and_says_where_to_go_on(service: Service) -> None:
    thread, _ = await _ran(service)
    ended: Any = await service.sdk.runs.wait(
        thread, "steps", command={"update": {"steps": ["told"]}, "goto": "notify"}
    )
    assert ended["steps"] == [*ALL, "told", "notify"]
    sent: Any = await service.sdk.runs.wait(
        thread, "steps", command={"goto": {"node": "charge", "input": {}}}
    )
    assert sent["steps"] == [*ALL, "told", "notify", "charge", "notify"]
    ended = await service.sdk.runs.wait(thread, "steps", command={"goto": "__end__"})
    assert ended["steps"] == sent["steps"]


@pytest.mark.parametrize(
    ("stop", "steps", "waiting"),
    [
        ({"interrupt_before": ["charge"]}, ["plan"], ["charge"]),
        ({"interrupt_after": ["charge"]}, ["plan", "charge"], ["notify"]),
        ({"interrupt_before": "*"}, None, ["plan"]),
    ],
)
async def test_a_run_stops_where_its_request_says_and_a_null_input_goes_on(
    service: Service, stop: Any, steps: Any, waiting: list[str]
) -> None:
    thread, values = await _ran(service, **stop)
    assert (values.get("steps") or None) == steps
    state = await _state(service, thread)
    assert (state["values"].get("steps") or None, state["next"]) == (steps, waiting)
    assert (await service.sdk.threads.get(thread))["status"] == "interrupted"
    went_on: Any = await service.sdk.runs.wait(thread, "steps", input=None)
    assert went_on["steps"] == ALL


@pytest.mark.parametrize(("durability", "kept"), [("sync", 5), ("async", 5), ("exit", 1)])
async def test_as_many_checkpoints_are_kept_as_durability_says(
    service: Service, durability: Any, kept: int
) -> None:
    thread, values = await _ran(service, durability=durability)
    assert values["steps"] == ALL
    assert len(await service.sdk.threads.get_history(thread, limit=100)) == kept


# ---------------------------------------------------------------- when


async def test_a_run_for_later_is_pending_until_then_and_can_be_cancelled(service: Service) -> None:
    thread = str(uuid.uuid4())
    later = await service.sdk.runs.create(
        thread, "steps", input={}, after_seconds=3600, if_not_exists="create"
    )
    assert (await service.sdk.runs.get(thread, later["run_id"]))["status"] == "pending"
    await service.sdk.runs.cancel(thread, later["run_id"], wait=True)
    assert (await service.sdk.runs.get(thread, later["run_id"]))["status"] == "interrupted"
    soon = await service.sdk.runs.create(thread, "steps", input={}, after_seconds=1)
    ended: Any = await service.sdk.runs.join(thread, soon["run_id"])
    assert ended["steps"] == ALL
    run = await service.outlive.run(uuid.UUID(soon["run_id"]).hex, tenant=service.tenant)
    assert run.started_at is not None
    assert run.started_at >= run.created_at + 0.9


async def test_an_answer_that_is_waited_for_is_blank_until_then_and_json_in_all(service: Service) -> None:
    hold = uuid.uuid4().hex
    body = {"assistant_id": "steps", "input": {"hold": hold}}
    async with service.http.stream("POST", "/runs/wait", json=body) as answer:
        pieces = answer.aiter_bytes()
        received = await anext(pieces)  # although the run has not ended
        assert received.strip() == b""
        graphs.gates[hold].set()
        received += b"".join([piece async for piece in pieces])
    assert json.loads(received)["steps"] == ALL
    joined = await service.http.get(answer.headers["location"])
    assert joined.json()["steps"] == ALL


async def test_an_answer_that_the_server_has_to_end_early_is_broken_off_and_can_be_joined(
    lasting_database: str,
) -> None:
    hold, tenant = uuid.uuid4().hex, uuid.uuid4().hex
    body = {"assistant_id": "steps", "input": {"hold": hold}}
    async with (
        conftest.serving(lasting_database) as (served, url),
        conftest.as_tenant(served, url, tenant) as service,
        service.http.stream("POST", "/runs/wait", json=body) as answer,
    ):
        pieces = answer.aiter_bytes()
        assert (await anext(pieces)).strip() == b""
        await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
        served.shutdown.set()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)
        graphs.gates[hold].set()
    async with (
        conftest.serving(lasting_database) as (served, url),
        conftest.as_tenant(served, url, tenant) as service,
    ):
        assert (await service.http.get(answer.headers["location"])).json()["steps"] == ALL


# ---------------------------------------------------------------- who leaves


async def _held(service: Service) -> tuple[str, str, str]:
    """A run that goes on whoever leaves, held before its last step."""
    thread, hold = str(uuid.uuid4()), uuid.uuid4().hex
    made = await service.sdk.runs.create(
        thread,
        "steps",
        input={"hold": hold},
        if_not_exists="create",
        headers={"Outlive-Grace": "0"},
    )
    await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
    return thread, made["run_id"], hold


async def _ended(service: Service, run_id: str) -> Any:
    """A run once it has ended, without watching it."""
    run_id = uuid.UUID(run_id).hex
    async with aclosing(service.outlive.follow(run_id, tenant=service.tenant)) as events:
        async for _ in events:
            pass
    return await service.outlive.run(run_id, tenant=service.tenant)


@pytest.mark.parametrize("how", ["stream", "join"])
async def test_a_run_stops_when_who_joined_it_with_cancel_on_disconnect_leaves(
    service: Service, how: str
) -> None:
    thread, run_id, _ = await _held(service)
    path = f"/threads/{thread}/runs/{run_id}/{how}?cancel_on_disconnect=1"
    async with service.http.stream("GET", path) as answer:
        assert answer.status_code == 200  # and it leaves at once
    run = await asyncio.wait_for(_ended(service, run_id), WITHIN)
    assert (run.state, run.reason) == (State.STOPPED, Reason.DISCONNECT)


async def test_a_run_goes_on_when_who_joined_it_without_it_leaves(service: Service) -> None:
    thread, run_id, hold = await _held(service)
    async with service.http.stream("GET", f"/threads/{thread}/runs/{run_id}/stream") as answer:
        await anext(answer.aiter_bytes())
    graphs.gates[hold].set()
    run = await asyncio.wait_for(_ended(service, run_id), WITHIN)
    assert run.state is State.SUCCEEDED


# ---------------------------------------------------------------- what after


async def test_a_run_without_a_thread_passes_with_its_thread_unless_it_is_to_be_kept(
    lasting_database: str,
) -> None:
    tenant, hold = uuid.uuid4().hex, uuid.uuid4().hex
    async with (
        conftest.serving(lasting_database, kept=0.0) as (served, url),
        conftest.as_tenant(served, url, tenant) as service,
    ):
        passing = await service.sdk.runs.create(None, "steps", input={"hold": hold})
        kept = await service.sdk.runs.create(None, "steps", input={}, on_completion="keep")
        for run in (passing, kept):
            assert (await service.sdk.runs.get(run["thread_id"], run["run_id"]))["run_id"] == run["run_id"]
        await _ended(service, kept["run_id"])
        await served.deletion().delete_passed()
        assert (await service.sdk.threads.get(passing["thread_id"]))["status"] == "busy"
        graphs.gates[hold].set()
        await _ended(service, passing["run_id"])
        assert await served.deletion().delete_passed() >= 1
        with pytest.raises(sdk_errors.NotFoundError):
            await service.sdk.threads.get(passing["thread_id"])
        assert (await service.sdk.threads.get(kept["thread_id"]))["values"] == {"steps": ALL}


async def test_a_run_without_a_thread_can_be_read_for_a_while_after_its_end(service: Service) -> None:
    parts = [part async for part in service.sdk.runs.stream(None, "steps", input={})]
    run_id = parts[0].data["run_id"]
    await service.outlive.deletion().delete_passed()
    again = (await service.http.get(f"/runs/{run_id}/stream?last_event_id={parts[-2].id}")).text
    assert (again.count("event:"), "event: end" in again) == (1, True)
    assert (await service.http.get(f"/runs/{run_id}")).json()["status"] == "success"


async def test_on_completion_of_a_run_with_a_thread_is_refused(service: Service) -> None:
    body = {"assistant_id": "steps", "input": {}, "on_completion": "delete", "if_not_exists": "create"}
    answer = await service.http.post(f"/threads/{uuid.uuid4()}/runs", json=body)
    assert answer.status_code == 422


async def test_the_webhook_of_a_run_is_told_of_its_end(lasting_database: str) -> None:
    hooks = outlive.Webhooks(secrets=(SECRET,), networks=("127.0.0.0/8",))
    with Receiver() as receiver:
        async with (
            conftest.serving(lasting_database, webhooks=hooks) as (served, url),
            conftest.as_tenant(served, url, uuid.uuid4().hex) as service,
        ):
            made = await service.sdk.runs.create(None, "steps", input={}, webhook=f"{receiver.url}/told")
            await receiver.heard(1)
    told = json.loads(receiver.told[0].body)
    assert receiver.told[0].path == "/hook/told"
    assert (told["type"], told["data"]["run_id"]) == (
        "run.succeeded",
        uuid.UUID(made["run_id"]).hex,
    )


async def test_a_webhook_is_refused_where_none_are_sent(service: Service) -> None:
    with pytest.raises(sdk_errors.UnprocessableEntityError):
        await service.sdk.runs.create(None, "steps", input={}, webhook="https://example.com/told")
