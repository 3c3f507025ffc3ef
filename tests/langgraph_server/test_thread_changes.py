"""Threads changed as a whole through the SDK: states written, copied, deleted, made of states."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langgraph_sdk import errors as sdk_errors

from langgraph_server import graphs
from langgraph_server.conftest import Service

WITHIN = 20.0


async def _ran(service: Service) -> Any:
    thread = await service.sdk.threads.create()
    await service.sdk.runs.wait(thread["thread_id"], "steps", input={})
    return thread["thread_id"]


async def _state(service: Service, thread: str) -> Any:
    return await service.sdk.threads.get_state(thread)


async def test_a_state_is_written_as_a_nodes_and_where_it_is_is_told(service: Service) -> None:
    thread = await _ran(service)
    written = await service.sdk.threads.update_state(thread, {"steps": ["mine"]}, as_node="charge")
    state = await _state(service, thread)
    assert state["values"]["steps"] == ["plan", "charge", "notify", "mine"]
    assert state["next"] == ["notify"]
    assert written["checkpoint"] == state["checkpoint"]
    assert state["checkpoint"]["thread_id"] == thread
    went_on: Any = await service.sdk.runs.wait(thread, "steps", input=None)
    assert went_on["steps"] == ["plan", "charge", "notify", "mine", "notify"]


async def test_a_state_is_written_behind_an_older_checkpoint_as_a_fork(service: Service) -> None:
    thread = await _ran(service)
    history: Any = await service.sdk.threads.get_history(thread)
    planned = next(one for one in history if one["values"].get("steps") == ["plan"])
    await service.sdk.threads.update_state(
        thread, {"steps": ["mine"]}, as_node="charge", checkpoint=planned["checkpoint"]
    )
    state = await _state(service, thread)
    assert state["values"]["steps"] == ["plan", "mine"]
    assert state["parent_checkpoint"] == planned["checkpoint"]


async def test_runs_that_only_change_a_state_are_none_of_these_clients(service: Service) -> None:
    thread = await _ran(service)
    await service.sdk.threads.update_state(thread, {"steps": ["mine"]}, as_node="charge")
    assert [run["assistant_id"] for run in await service.sdk.runs.list(thread)] == [
        (await service.sdk.assistants.search(graph_id="steps"))[0]["assistant_id"]
    ]
    natively = await service.outlive.runs(tenant=service.tenant, thread=thread)
    changed = next(run for run in natively if run.agent == "outlive.update")
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.runs.get(thread, str(uuid.UUID(changed.run_id)))


async def test_a_state_that_a_graph_does_not_take_changes_nothing(service: Service) -> None:
    thread = await _ran(service)
    before = await _state(service, thread)
    changes: list[dict[str, Any]] = [
        {"values": {"steps": ["x"]}, "as_node": "nobody"},
        {"values": ["x"], "as_node": "charge"},
        {"values": {"steps": ["x"]}, "as_node": 3},
    ]
    for change in changes:
        answer = await service.http.post(f"/threads/{thread}/state", json=change)
        assert answer.status_code == 422, answer.text
        assert isinstance(answer.json()["detail"], str)
    unknown = {"values": {}, "checkpoint_id": str(uuid.uuid4())}
    assert (await service.http.post(f"/threads/{thread}/state", json=unknown)).status_code == 404
    assert await _state(service, thread) == before


async def test_the_state_of_a_busy_thread_is_not_written_and_its_run_goes_on(service: Service) -> None:
    thread, hold = str(uuid.uuid4()), uuid.uuid4().hex
    made = await service.sdk.runs.create(thread, "steps", input={"hold": hold}, if_not_exists="create")
    await asyncio.wait_for(graphs.reached[hold].wait(), WITHIN)
    with pytest.raises(sdk_errors.ConflictError):
        await service.sdk.threads.update_state(thread, {"steps": ["mine"]}, as_node="charge")
    graphs.gates[hold].set()
    ended: Any = await service.sdk.runs.join(thread, made["run_id"])
    assert ended["steps"] == ["plan", "charge", "notify"]


async def test_a_deleted_thread_is_gone_for_its_tenant_and_untouched_for_others(
    service: Service, stranger: Service
) -> None:
    thread = await _ran(service)
    for refused in (stranger.sdk.threads.delete(thread), stranger.sdk.threads.copy(thread)):
        with pytest.raises(sdk_errors.NotFoundError):
            await refused
    await service.sdk.threads.delete(thread)
    for look in (service.sdk.threads.get(thread), service.sdk.threads.delete(thread)):
        with pytest.raises(sdk_errors.NotFoundError):
            await look
    assert await service.sdk.threads.search() == []


async def test_a_copy_has_the_states_and_the_metadata_and_goes_its_own_way(service: Service) -> None:
    thread = await _ran(service)
    await service.sdk.threads.update(thread, metadata={"owner": "ann"})
    answer = await service.http.post(f"/threads/{thread}/copy")
    copied = answer.json()
    assert copied["thread_id"] != thread
    assert (copied["metadata"]["owner"], copied["values"]["steps"]) == ("ann", ["plan", "charge", "notify"])
    await service.sdk.runs.wait(copied["thread_id"], "steps", input={})
    assert len((await _state(service, copied["thread_id"]))["values"]["steps"]) == 6
    assert len((await _state(service, thread))["values"]["steps"]) == 3
    assert len(await service.sdk.runs.list(copied["thread_id"])) == 1


async def test_pruning_deletes_the_threads_that_are_there_and_counts_them(service: Service) -> None:
    threads = [await _ran(service) for _ in range(2)]
    kept = await _ran(service)
    pruned = await service.sdk.threads.prune([*threads, str(uuid.uuid4())])
    assert pruned == {"pruned_count": 2}
    assert [one["thread_id"] for one in await service.sdk.threads.search()] == [kept]
    with pytest.raises(sdk_errors.UnprocessableEntityError):
        await service.sdk.threads.prune([kept], strategy="keep_latest")
    assert [one["thread_id"] for one in await service.sdk.threads.search()] == [kept]


async def test_a_thread_is_made_of_states_and_a_run_goes_on_from_the_last(service: Service) -> None:
    steps: Any = [
        {"updates": [{"values": {"steps": ["asked"]}, "as_node": "__start__"}]},
        {"updates": [{"values": {"steps": ["planned"]}, "as_node": "plan"}]},
        {"updates": [{"values": None, "command": {"update": {"steps": ["paid"]}}, "as_node": "charge"}]},
    ]
    thread = await service.sdk.threads.create(graph_id="steps", supersteps=steps, metadata={"from": "there"})
    assert thread["metadata"] == {"graph_id": "steps", "from": "there"}
    state = await _state(service, thread["thread_id"])
    assert (state["values"]["steps"], state["next"]) == (["asked", "planned", "paid"], ["notify"])
    assert len(await service.sdk.threads.get_history(thread["thread_id"])) == 3
    ended: Any = await service.sdk.runs.wait(thread["thread_id"], "steps", input=None)
    assert ended["steps"] == ["asked", "planned", "paid", "notify"]
    with pytest.raises(sdk_errors.ConflictError):
        await service.sdk.threads.create(thread_id=thread["thread_id"], graph_id="steps", supersteps=steps)


async def test_a_thread_of_states_that_its_graph_does_not_take_is_not_made(service: Service) -> None:
    name = str(uuid.uuid4())
    wrong: list[dict[str, Any]] = [
        {"metadata": {"graph_id": "steps"}, "supersteps": [{"updates": [{"values": {}, "as_node": "no"}]}]},
        {"supersteps": [{"updates": [{"values": {}, "as_node": "plan"}]}]},
        {"metadata": {"graph_id": "nobody"}, "supersteps": [{"updates": [{"values": {}}]}]},
        {"metadata": {"graph_id": "steps"}, "supersteps": [{"updates": []}]},
        {"ttl": {"ttl": 1, "strategy": "keep_latest"}},
        {"ttl": {"ttl": 0}},
        {"ttl": "soon"},
    ]
    for body in wrong:
        answer = await service.http.post("/threads", json={"thread_id": name} | body)
        assert answer.status_code == 422, (body, answer.text)
    assert (await service.http.get(f"/threads/{name}")).status_code == 404


async def test_metadata_of_a_state_is_merged_into_its_threads(service: Service) -> None:
    thread = await _ran(service)
    answer = await service.http.patch(f"/threads/{thread}/state", json={"metadata": {"owner": "ann"}})
    assert answer.status_code == 204
    shown: Any = await service.sdk.threads.get(thread)
    assert shown["metadata"]["owner"] == "ann"
