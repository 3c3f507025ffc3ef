"""Crons through the SDK: made, looked for, changed, taken away, and what their slots become."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph_sdk import errors as sdk_errors

from langgraph_server.conftest import Service, asked
from outlive import signals
from outlive.testing.asgi import WITHIN

YEARLY = "0 0 1 1 *"
EACH_SECOND = "* * * * * *"
FIRST: Any = {"steps": ["first"]}
A: Any = {"steps": ["a"]}
B: Any = {"steps": ["b"]}
WRONG: list[Any] = [{"schedule": "never"}, {"schedule": None}, {"timezone": "Atlantis"}, {"command": {}}]


async def _first_run(service: Service, cron_id: str) -> Any:
    """The first run that a cron makes, natively, once it has ended."""
    schedule_id = uuid.UUID(cron_id).hex
    fired = asyncio.Event()

    def hear(happening: signals.Happening) -> None:
        if isinstance(happening, signals.ScheduleFired) and happening.schedule_id == schedule_id:
            fired.set()

    service.outlive.signals.listen(hear)
    await asyncio.wait_for(fired.wait(), WITHIN)
    slots = await service.outlive.schedules.occurrences(schedule_id, tenant=service.tenant)
    made = next(one.run_id for one in reversed(slots) if one.public()["run_id"])
    return await service.outlive.result(made, tenant=service.tenant)


async def _made(service: Service, **wanted: Any) -> Any:
    return await service.sdk.crons.create("steps", schedule=YEARLY, **wanted)


async def test_a_cron_makes_runs_of_its_assistant_with_threads_that_pass(service: Service) -> None:
    assistant = await service.sdk.assistants.create("steps", metadata={"of": "crons"})
    made: Any = await service.sdk.crons.create(
        assistant["assistant_id"],
        schedule=EACH_SECOND,
        input=FIRST,
        metadata={"why": "nightly"},
        stream_mode=["updates"],
    )
    assert (made["thread_id"], made["on_run_completed"], made["enabled"]) == (None, "delete", True)
    run = await _first_run(service, made["cron_id"])
    await service.sdk.crons.delete(made["cron_id"])
    assert run.public()["output"]["steps"] == ["first", "plan", "charge", "notify"]
    shown: Any = await service.sdk.runs.get(run.thread, str(uuid.UUID(run.run_id)))
    assert shown["assistant_id"] == assistant["assistant_id"]
    assert (shown["metadata"], shown["status"]) == ({"why": "nightly"}, "success")
    passes = f"SELECT passes_after_ms FROM threads WHERE external_id = '{run.thread}'"
    assert await asked(service.outlive._database, passes) == [(300_000,)]


async def test_a_cron_of_a_thread_makes_its_runs_there(service: Service) -> None:
    thread = await service.sdk.threads.create()
    made: Any = await service.sdk.crons.create_for_thread(
        thread["thread_id"], "steps", schedule=EACH_SECOND, input={}, multitask_strategy="enqueue"
    )
    run = await _first_run(service, made["cron_id"])
    await service.sdk.crons.delete(made["cron_id"])
    assert (made["thread_id"], run.thread) == (thread["thread_id"], thread["thread_id"])
    found: Any = await service.sdk.threads.get(thread["thread_id"])
    assert found["metadata"]["graph_id"] == "steps"


async def test_what_was_said_of_a_cron_is_shown_and_can_be_changed_in_part(service: Service) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3 * 366)
    made = await _made(
        service,
        input=A,
        metadata={"why": "yearly"},
        timezone="Europe/Berlin",
        end_time=end,
        on_run_completed="keep",
    )
    assert (made["schedule"], made["timezone"]) == (YEARLY, "Europe/Berlin")
    assert datetime.fromisoformat(made["end_time"]) == end
    assert datetime.fromisoformat(made["next_run_date"]).astimezone(UTC).month in (12, 1)
    assert (made["on_run_completed"], made["payload"]["input"]) == ("keep", {"steps": ["a"]})
    changed: Any = await service.sdk.crons.update(made["cron_id"], enabled=False, end_time=None, input=B)
    assert (changed["enabled"], changed["end_time"]) == (False, None)
    assert changed["payload"]["input"] == {"steps": ["b"]}
    assert (changed["timezone"], changed["metadata"]) == ("Europe/Berlin", {"why": "yearly"})
    assert changed["on_run_completed"] == "keep"
    again: Any = await service.sdk.crons.update(
        made["cron_id"], schedule="0 0 1 2 *", on_run_completed="delete"
    )
    assert (again["schedule"], again["enabled"], again["on_run_completed"]) == ("0 0 1 2 *", False, "delete")
    read = await service.http.get(f"/runs/crons/{made['cron_id']}")
    assert read.json() == again


async def test_what_outlive_changed_natively_is_not_undone_by_a_change_here(service: Service) -> None:
    made = await _made(service)
    schedule_id = uuid.UUID(made["cron_id"]).hex
    await service.outlive.schedules.pause(schedule_id, tenant=service.tenant)
    await service.outlive.schedules.update(schedule_id, tenant=service.tenant, cron="0 0 1 3 *")
    changed: Any = await service.sdk.crons.update(made["cron_id"], metadata={"new": 1})
    assert (changed["enabled"], changed["schedule"], changed["metadata"]) == (False, "0 0 1 3 *", {"new": 1})


async def test_crons_are_found_by_all_that_the_sdk_can_ask(service: Service, stranger: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    first = await _made(service, metadata={"n": 1, "of": "a"})
    second = await _made(service, metadata={"n": 2, "of": "a"}, enabled=False)
    third: Any = await service.sdk.crons.create_for_thread(thread, "chat", schedule="0 0 1 2 *")
    crons = service.sdk.crons

    async def ids(**wanted: Any) -> list[str]:
        return [one["cron_id"] for one in await crons.search(**wanted)]

    assert await ids() == [third["cron_id"], second["cron_id"], first["cron_id"]]
    assert await ids(assistant_id="steps") == [second["cron_id"], first["cron_id"]]
    assert await ids(thread_id=thread) == [third["cron_id"]]
    assert await ids(enabled=False) == [second["cron_id"]]
    assert await ids(metadata={"of": "a", "n": 1}) == [first["cron_id"]]
    assert await ids(limit=1, offset=1) == [second["cron_id"]]
    assert await ids(sort_by="next_run_date", sort_order="desc", limit=1) == [third["cron_id"]]
    assert await crons.count() == 3
    assert await crons.count(assistant_id="chat") == 1
    assert await crons.count(metadata={"of": "a"}) == 2
    some: Any = await crons.search(select=["cron_id"], limit=1)
    assert some == [{"cron_id": third["cron_id"]}]
    assert await stranger.sdk.crons.search() == []
    assert await stranger.sdk.crons.count() == 0


async def test_a_cron_is_nobodys_but_its_tenants(service: Service, stranger: Service) -> None:
    made = await _made(service)
    for cron_id in (made["cron_id"], str(uuid.uuid4())):
        with pytest.raises(sdk_errors.NotFoundError):
            await stranger.sdk.crons.update(cron_id, enabled=False)
        with pytest.raises(sdk_errors.NotFoundError):
            await stranger.sdk.crons.delete(cron_id)
        assert (await stranger.http.get(f"/runs/crons/{cron_id}")).status_code == 404
    for method in ("GET", "PATCH", "DELETE"):
        answer = await service.http.request(method, "/runs/crons/nonsense", json={})
        assert answer.status_code == 422, method
    thread = await service.sdk.threads.create()
    with pytest.raises(sdk_errors.NotFoundError):
        await stranger.sdk.crons.create_for_thread(thread["thread_id"], "steps", schedule=YEARLY)
    assert (await service.http.get(f"/runs/crons/{made['cron_id']}")).json() == made


async def test_a_deleted_thread_is_not_made_anew_by_its_crons(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    await service.sdk.crons.create_for_thread(thread, "steps", schedule=YEARLY)
    other = await _made(service)
    passing = (await service.sdk.threads.create(ttl=1))["thread_id"]
    await service.sdk.crons.create_for_thread(passing, "steps", schedule=YEARLY)
    await service.sdk.threads.update(passing, metadata={}, ttl={"ttl": 0.0001})
    async with asyncio.timeout(WITHIN):
        while not await service.outlive.deletion().delete_passed():
            await service.sdk.threads.search(ids=[passing])
    await service.sdk.threads.delete(thread)
    assert [one["cron_id"] for one in await service.sdk.crons.search()] == [other["cron_id"]]


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"schedule": "now and then"},
        {"schedule": "0 0 30 2 *"},
        {"schedule": YEARLY, "timezone": "Atlantis"},
        {"schedule": YEARLY, "end_time": "yesterday"},
        {"schedule": YEARLY, "end_time": "2001-01-01T00:00:00Z"},
        {"schedule": YEARLY, "on_run_completed": "archive"},
        {"schedule": YEARLY, "multitask_strategy": "rollback"},
        {"schedule": YEARLY, "multitask_strategy": "perhaps"},
        {"schedule": YEARLY, "webhook": "https://example.org/hook"},
        {"schedule": YEARLY, "command": {"resume": 1}},
        {"schedule": YEARLY, "after_seconds": 5},
        {"schedule": YEARLY, "checkpoint_id": "c"},
        {"schedule": YEARLY, "stream_mode": "loud"},
        {"schedule": YEARLY, "enabled": "perhaps"},
    ],
)
async def test_what_no_cron_can_be_is_refused_with_a_reason(service: Service, wanted: Any) -> None:
    answer = await service.http.post("/runs/crons", json={"assistant_id": "steps", **wanted})
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]
    assert await service.sdk.crons.count() == 0


async def test_what_becomes_of_a_thread_is_not_for_a_cron_of_a_thread(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    body = {"assistant_id": "steps", "schedule": YEARLY, "on_run_completed": "delete"}
    answer = await service.http.post(f"/threads/{thread}/runs/crons", json=body)
    assert (answer.status_code, "on_run_completed" in answer.json()["detail"]) == (422, True)


async def test_a_change_that_cannot_be_leaves_a_cron_as_it_was(service: Service) -> None:
    made = await _made(service)
    for wrong in WRONG:
        answer = await service.http.patch(f"/runs/crons/{made['cron_id']}", json=wrong)
        assert answer.status_code == 422, wrong
    assert (await service.http.get(f"/runs/crons/{made['cron_id']}")).json() == made


async def test_the_service_says_that_it_has_crons(service: Service) -> None:
    assert (await service.http.get("/info")).json()["flags"]["crons"] is True
