"""Each slot becomes one run, or a row that says why not, whoever looks, dies or comes late."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import outlive
from core import support as core
from outlive import errors, failpoints, firing, keys, limits, retention, schedules, signals
from outlive.store.schedules import Fate, Missed, Why
from schedules import support

DAILY = "0 0 * * *"
STEPS = ("schedules.planned", "schedules.taken", "schedules.submitted", "schedules.fired")


async def test_S25_a_slot_becomes_a_run_with_the_schedules_input(database: str) -> None:
    async with support.serving(database) as served:
        heard = core.heard(served)
        made = await served.schedule(support.EACH_SECOND, "agent", {"a": 1}, metadata={"m": 2}, tenant="acme")
        await heard.of(signals.ScheduleFired)
        [*_, first] = await support.until(served, made.schedule_id, support.settled, "acme")
        run = await served.run(first.run_id, tenant="acme")
        assert json.loads(run.metadata) == {"m": 2, "schedule_id": made.schedule_id, "slot": first.slot}
        assert json.loads(run.input) == {"a": 1}
        assert first.slot > made.created_at - 1
        assert first.slot == int(first.slot)
        await served.schedules.delete(made.schedule_id, tenant="acme")


async def test_S25_many_hands_fire_a_slot_once(database: str) -> None:
    async with support.serving(database) as served:
        made = await served.schedule(support.NEVER_SOON, "agent", missed="all")
        slots = await _change_to_each_second(served, made.schedule_id, down=20)
        hands = [support.timetable(served) for _ in range(4)]
        await asyncio.gather(*(hand.look_once() for hand in hands))
        found = await support.until(
            served, made.schedule_id, lambda all_: len(all_) >= 20 and support.settled(all_)
        )
        runs = await served.runs(limit=1000)
        assert {each.slot for each in found} >= set(range(slots, slots + 20))
        assert all(each.state is Fate.FIRED for each in found)
        assert support.slots_of(runs) == sorted(each.slot for each in found)
        await served.schedules.delete(made.schedule_id)


async def _change_to_each_second(served: outlive.Outlive, schedule_id: str, *, down: int) -> int:
    """Every second from now on, as if nobody had looked for a while."""
    await served.schedules.update(schedule_id, cron=support.EACH_SECOND)
    return await support.down_for(served, await served.schedules.show(schedule_id), down)


@pytest.mark.parametrize("step", STEPS)
async def test_S25_whoever_dies_between_two_steps_is_taken_over_and_no_slot_has_two_runs(
    database: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "LEASE", 0.2)
    died: list[str] = []

    def die_once() -> None:
        if not died:
            died.append(step)
            raise failpoints.FailpointReached(step)

    failpoints.arm(step, die_once)
    async with support.serving(database) as served:
        made = await served.schedule(support.EACH_SECOND, "agent", missed="all")
        found = await support.until(
            served, made.schedule_id, lambda all_: len(all_) >= 2 and support.settled(all_)
        )
        await served.schedules.pause(made.schedule_id)
        assert died == [step]
        runs = await served.runs(limit=1000)
        by_slot = support.slots_of(runs)
        assert len(set(by_slot)) == len(by_slot)
        assert {each.slot for each in found if each.state is Fate.FIRED} <= set(by_slot)
        first = min(each.slot for each in found)
        assert [each.slot for each in reversed(found)] == [first + n for n in range(len(found))]


async def test_the_thread_of_a_schedules_run_passes_when_it_says_so_and_another_stays(database: str) -> None:
    async with support.serving(database) as served:
        passing = await served.schedule(support.EACH_SECOND, "agent", passes_after=0.0)
        staying = await served.schedule(support.EACH_SECOND, "agent")
        threads = []
        for made in (passing, staying):
            found = await support.until(
                served, made.schedule_id, lambda all_: bool(all_) and support.settled(all_)
            )
            await served.schedules.pause(made.schedule_id)
            threads.append((await served.result(str(found[-1].public()["run_id"]))).thread)
        assert await served.deletion().delete_passed() >= 1
        with pytest.raises(errors.NotFound):
            await served.thread(threads[0])
        assert (await served.thread(threads[1])).thread == threads[1]


async def test_S25_a_submit_that_is_repeated_after_its_run_was_stopped_makes_no_second_one(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "LEASE", 0.0)

    @core.job()
    async def slow(context: outlive.Context) -> Any:
        yield "begun"
        await asyncio.Event().wait()

    async with support.serving(database, slow) as served:
        made = await served.schedule(support.NEVER_SOON, "agent", missed="latest")
        await support.down_for(served, made, 400 * 86400)
        failpoints.arm("schedules.submitted", failpoints.fail)
        heard = core.heard(served)
        await heard.of(signals.RunSubmitted)
        [run] = await served.runs()
        await served.stop(run.run_id)
        await served.result(run.run_id)
        failpoints.disarm()
        found = await support.until(served, made.schedule_id, support.settled)
        assert [each.run_id for each in found if each.state is Fate.FIRED] == [run.run_id]
        assert [each.run_id for each in await served.runs()] == [run.run_id]


@pytest.mark.parametrize("missed", Missed)
async def test_S25_slots_missed_by_a_whole_service_follow_the_declared_policy(
    database: str, missed: Missed
) -> None:
    async with support.serving(database) as served:
        made = await served.schedule("0 * * * *", "agent", missed=missed, grace=0.0)
        hour = int(made.now) // 3600 * 3600
        await support.down_for(served, made, int(made.now) - hour + 4 * 3600)
        found = await support.until(
            served, made.schedule_id, lambda all_: len(all_) == 4 and support.settled(all_)
        )
        fates = [(each.slot - hour, each.state, each.reason) for each in reversed(found)]
        fired = {Missed.SKIP: 0, Missed.LATEST: 1, Missed.ALL: 4}[missed]
        skipped = [(-3600 * n, Fate.SKIPPED, Why.MISSED) for n in (3, 2, 1, 0)][: 4 - fired]
        late = [(-3600 * n, Fate.FIRED, None) for n in (3, 2, 1, 0)][4 - fired :]
        assert fates == skipped + late
        assert len(await served.runs()) == fired


async def test_S25_a_year_of_missed_seconds_is_bounded_and_still_accounted_for(sqlite_url: str) -> None:
    async with support.serving(sqlite_url) as served:
        made = await served.schedule(support.NEVER_SOON, "agent", missed="all", grace=0.0)
        first = await _change_to_each_second(served, made.schedule_id, down=50_000)
        found = await support.until(
            served,
            made.schedule_id,
            lambda all_: sum(each.slots for each in all_) >= 50_000 and support.settled(all_),
        )
        await served.schedules.pause(made.schedule_id)
        accounted = sum(each.slots for each in found)
        assert accounted == max(each.slot for each in found) - first + 1
        assert len(found) < 200
        await served.schedules.delete(made.schedule_id)


async def test_S25_a_busy_thread_is_a_reason_and_not_a_second_run(database: str) -> None:
    gate = asyncio.Event()

    @core.job(on_busy="reject")
    async def waits(context: outlive.Context) -> Any:
        yield "begun"
        await gate.wait()

    async with support.serving(database, waits) as served:
        first = await served.submit("agent", thread="t")
        made = await served.schedule(support.EACH_SECOND, "agent", thread="t")
        found = await support.until(served, made.schedule_id, support.settled)
        assert {each.reason for each in found} == {Why.THREAD_BUSY}
        assert [run.run_id for run in await served.runs()] == [first.run.run_id]
        await served.schedules.delete(made.schedule_id)
        gate.set()
        await served.result(first.run.run_id)


async def test_S25_a_manual_run_next_to_a_slot_consumes_none(database: str) -> None:
    async with support.serving(database) as served:
        made = await served.schedule(support.EACH_SECOND, "agent", 1)
        manual = await served.submit("agent", 1)
        found = await support.until(served, made.schedule_id, support.settled)
        assert found[-1].state is Fate.FIRED
        assert manual.run.run_id not in {each.run_id for each in found}
        await served.schedules.delete(made.schedule_id)


async def test_slots_of_a_pause_are_skipped_and_not_caught_up(database: str) -> None:
    async with support.serving(database) as served:
        made = await served.schedule("0 * * * *", "agent", missed="all", paused=True)
        await support.down_for(served, made, 3 * 3600)
        await served.schedules.pause(made.schedule_id)
        found = await support.until(served, made.schedule_id, support.settled)
        resumed = await served.schedules.resume(made.schedule_id)
        assert resumed.state == "active"
        assert [each.reason for each in found] == [Why.PAUSED] * 3
        assert await served.runs() == []


async def test_the_schedules_of_a_revoked_key_make_no_runs(database: str) -> None:
    async with support.serving(database) as served:
        minted = keys.mint()
        await served.store.write(keys.create(minted, tenant="acme", name="n"))
        await served.store.write(keys.revoke(minted.key_id))
        made = await served.schedule(support.EACH_SECOND, "agent", tenant="acme", principal=minted.key_id)
        found = await support.until(served, made.schedule_id, support.settled, "acme")
        assert {each.reason for each in found} == {Why.KEY_REVOKED}
        assert await served.runs(tenant="acme") == []
        await served.schedules.delete(made.schedule_id, tenant="acme")


async def test_a_limit_is_a_reason(database: str) -> None:
    bounds = limits.Limits(per_minute=1)
    async with support.serving(database, limits=bounds) as served:
        await served.submit("agent", tenant="acme", principal="ann")
        made = await served.schedule(support.EACH_SECOND, "agent", tenant="acme", principal="ann")
        found = await support.until(served, made.schedule_id, support.settled, "acme")
        assert found[-1].reason is Why.LIMIT
        assert found[-1].error
        await served.schedules.delete(made.schedule_id, tenant="acme")


async def test_old_slots_are_taken_away_and_do_not_come_again(database: str) -> None:
    async with support.serving(database) as served:
        made = await served.schedule(DAILY, "agent", missed="all")
        await support.down_for(served, made, 3 * 86_400)
        found = await support.until(served, made.schedule_id, support.settled)
        assert len(found) == 3
        runs = await served.runs()
        lately = retention.Retention(served.store, 3600.0, happenings=served.signals)
        assert await lately.prune_occurrences() == 0
        keeping = retention.Retention(served.store, 0.0, happenings=served.signals)
        assert await keeping.prune_occurrences() == 3
        assert await keeping.prune_occurrences() == 0
        assert await served.schedules.occurrences(made.schedule_id) == []
        await support.timetable(served).look_once()
        assert await served.schedules.occurrences(made.schedule_id) == []
        assert len(await served.runs()) == len(runs) == 3


async def test_an_agent_that_no_process_has_is_a_reason_after_a_while(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "PATIENCE", 0.0)

    @core.job("another")
    async def another(context: outlive.Context) -> Any:
        yield 1

    async with support.serving(database, another) as served:
        elsewhere = schedules.Desk(served.store, happenings=served.signals)
        made = await elsewhere.create(support.EACH_SECOND, "agent")
        found = await support.until(served, made.schedule_id, support.settled)
        assert {each.reason for each in found} == {Why.AGENT_UNKNOWN}
        await elsewhere.delete(made.schedule_id)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("cron", {"cron": "* * *"}),
        ("ends_at", {"ends_at": 1.0}),
        ("timezone", {"timezone": "Mars/Olympus"}),
        ("missed", {"missed": "sometimes"}),
        ("grace", {"grace": -1.0}),
        ("grace", {"grace": float("nan")}),
        ("thread", {"thread": ""}),
        ("webhook", {"webhook": "https://a.example"}),
        ("policy", {"policy": {"on_busy": "maybe"}}),
    ],
)
async def test_what_a_schedule_cannot_be_is_refused_by_name(
    sqlite_url: str, field: str, options: dict[str, Any]
) -> None:
    async with support.serving(sqlite_url) as served:
        with pytest.raises(errors.InvalidInput) as refused:
            await served.schedule(**{"cron": "* * * * *", "agent": "agent", **options})
        assert field in (refused.value.field, "policy")
        with pytest.raises(errors.NotFound):
            await served.schedule("* * * * *", "nobody")
        assert await served.schedules.newest() == []
