"""Runs stopped, taken back, displaced and taken out of sight, through the SDK."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langgraph_sdk import errors as sdk_errors

from langgraph_server import graphs
from langgraph_server.conftest import Service
from outlive.states import Reason, State

WITHIN = 20.0
ALL = ["plan", "charge", "notify"]


class Held:
    """A run that has charged and is held before it notifies, on a thread that has one finished run."""

    thread: str
    run: str
    hold: str

    @classmethod
    async def begun(cls, service: Service) -> Held:
        """Begin one."""
        held = cls()
        held.thread, held.hold = str(uuid.uuid4()), uuid.uuid4().hex
        await service.sdk.runs.wait(held.thread, "steps", input={"hold": ""}, if_not_exists="create")
        made = await service.sdk.runs.create(held.thread, "steps", input={"hold": held.hold})
        held.run = made["run_id"]
        await asyncio.wait_for(graphs.reached[held.hold].wait(), WITHIN)
        return held

    async def native(self, service: Service) -> Any:
        """What the record has of it."""
        return await service.outlive.run(uuid.UUID(self.run).hex, tenant=service.tenant)


async def _steps(service: Service, thread: str) -> Any:
    state: Any = await service.sdk.threads.get_state(thread)
    return state["values"]["steps"], state["next"]


async def _is_not_found(service: Service, thread: str, run: str) -> None:
    path = f"/threads/{thread}/runs/{run}"
    for rest in ("", "/stream", "/join"):
        assert (await service.http.get(path + rest)).status_code == 404, rest
    for answer in (await service.http.post(path + "/cancel"), await service.http.delete(path)):
        assert answer.status_code == 404
    assert run not in {one["run_id"] for one in await service.sdk.runs.list(thread)}


async def test_a_cancelled_run_leaves_what_it_did_and_a_null_input_finishes_it(service: Service) -> None:
    held = await Held.begun(service)
    await service.sdk.runs.cancel(held.thread, held.run, wait=True)
    assert await _steps(service, held.thread) == ([*ALL, "plan", "charge"], ["notify"])
    graphs.gates[held.hold].set()
    went_on: Any = await service.sdk.runs.wait(held.thread, "steps", input=None)
    assert went_on["steps"] == ALL * 2
    assert graphs.executed[held.hold] == ALL


@pytest.mark.parametrize("wait", [True, False])
async def test_a_run_that_is_cancelled_with_rollback_is_taken_back_and_found_only_natively(
    service: Service, *, wait: bool
) -> None:
    held = await Held.begun(service)
    await service.sdk.runs.cancel(held.thread, held.run, wait=wait, action="rollback")
    assert await _steps(service, held.thread) == (ALL, [])
    await _is_not_found(service, held.thread, held.run)
    kept = await held.native(service)
    assert (kept.state, kept.reason) == (State.STOPPED, Reason.REQUESTED)
    assert kept.public()["metadata"]["langgraph"]["aside"] == "rolled_back"
    assert await service.outlive.events(kept.run_id, tenant=service.tenant)
    graphs.gates[held.hold].set()
    after: Any = await service.sdk.runs.wait(held.thread, "steps", input={"hold": held.hold})
    assert after["steps"] == ALL * 2


async def test_a_rollback_that_was_cut_off_after_the_stop_is_finished_by_asking_again(
    service: Service,
) -> None:
    held = await Held.begun(service)
    await service.sdk.runs.cancel(held.thread, held.run, wait=True)
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.runs.cancel(held.thread, held.run)
    await service.sdk.runs.cancel(held.thread, held.run, wait=True, action="rollback")
    assert await _steps(service, held.thread) == (ALL, [])
    await _is_not_found(service, held.thread, held.run)


async def test_a_run_that_has_ended_by_itself_is_not_taken_back(service: Service) -> None:
    thread = str(uuid.uuid4())
    made = await service.sdk.runs.create(thread, "steps", input={}, if_not_exists="create")
    await service.sdk.runs.join(thread, made["run_id"])
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.runs.cancel(thread, made["run_id"], action="rollback")
    assert await _steps(service, thread) == (ALL, [])
    refused = await service.http.post(f"/threads/{thread}/runs/{made['run_id']}/cancel?action=guess")
    assert refused.status_code == 422


async def test_many_runs_are_taken_back_together_and_none_of_them_begins_meanwhile(
    service: Service, stranger: Service
) -> None:
    held = await Held.begun(service)
    waiting = await service.sdk.runs.create(held.thread, "steps", input={"hold": held.hold})
    both = [held.run, waiting["run_id"]]
    with pytest.raises(sdk_errors.NotFoundError):
        await stranger.sdk.runs.cancel_many(status="all", action="rollback")
    await service.sdk.runs.cancel_many(thread_id=held.thread, run_ids=both, action="rollback")
    assert await _steps(service, held.thread) == (ALL, [])
    for run in both:
        await _is_not_found(service, held.thread, run)
    with pytest.raises(sdk_errors.NotFoundError):
        await service.sdk.runs.cancel_many(status="all")


async def test_a_live_run_is_not_deleted_and_one_that_ended_is_found_only_natively(
    service: Service, stranger: Service
) -> None:
    held = await Held.begun(service)
    with pytest.raises(sdk_errors.ConflictError):
        await service.sdk.runs.delete(held.thread, held.run)
    graphs.gates[held.hold].set()
    await service.sdk.runs.join(held.thread, held.run)
    with pytest.raises(sdk_errors.NotFoundError):
        await stranger.sdk.runs.delete(held.thread, held.run)
    await service.sdk.runs.delete(held.thread, held.run)
    await _is_not_found(service, held.thread, held.run)
    assert await _steps(service, held.thread) == (ALL * 2, [])
    assert (await held.native(service)).state is State.SUCCEEDED


# ---------------------------------------------------------------- a second message on a busy thread


async def _second(service: Service, held: Held, strategy: Any) -> Any:
    given: Any = {"hold": "", "steps": ["second"]}
    return await service.sdk.runs.create(held.thread, "steps", input=given, multitask_strategy=strategy)


async def test_reject_refuses_the_second_message_and_leaves_the_first_run_alone(service: Service) -> None:
    held = await Held.begun(service)
    with pytest.raises(sdk_errors.ConflictError):
        await _second(service, held, "reject")
    graphs.gates[held.hold].set()
    await service.sdk.runs.join(held.thread, held.run)
    assert await _steps(service, held.thread) == (ALL * 2, [])


async def test_enqueue_lets_the_second_message_run_after_the_first(service: Service) -> None:
    held = await Held.begun(service)
    second = await _second(service, held, "enqueue")
    assert (await service.sdk.runs.get(held.thread, second["run_id"]))["status"] == "pending"
    graphs.gates[held.hold].set()
    ended: Any = await service.sdk.runs.join(held.thread, second["run_id"])
    assert ended["steps"] == [*ALL, *ALL, "second", *ALL]


async def test_interrupt_stops_the_first_run_and_the_second_starts_over_behind_what_it_did(
    service: Service,
) -> None:
    held = await Held.begun(service)
    second = await _second(service, held, "interrupt")
    ended: Any = await service.sdk.runs.join(held.thread, second["run_id"])
    assert ended["steps"] == [*ALL, "plan", "charge", "second", *ALL]
    assert (await service.sdk.runs.get(held.thread, held.run))["status"] == "interrupted"


async def test_rollback_takes_the_first_run_back_and_only_the_record_knows_of_it(service: Service) -> None:
    held = await Held.begun(service)
    second = await _second(service, held, "rollback")
    ended: Any = await service.sdk.runs.join(held.thread, second["run_id"])
    assert ended["steps"] == [*ALL, "second", *ALL]
    await _is_not_found(service, held.thread, held.run)
    kept = await held.native(service)
    assert (kept.state, kept.reason) == (State.STOPPED, Reason.DISPLACED)
    assert graphs.executed[held.hold] == ["plan", "charge"]
