"""A process that is killed or frozen around an effect: nothing is executed twice, and nothing in silence."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator

import pytest

import outlive
from core import support as core
from outlive import State
from outlive.store import effect_reads, effect_steps
from outlive.testing.paying import Paying
from outlive.testing.processes import Process
from processes import effect_workload, support

POINTS = {
    "before intended": ("pay", "effects.wished=kill"),
    "after intended": ("allowed", "effects.intended=kill"),
    "before the call": ("pay", "effects.call=kill"),
    "during the call": ("pay", ""),
    "after the answer": ("pay", "effects.answered=kill"),
    "after done": ("pay", "effects.recorded=kill"),
}
UNSETTLED = {"before the call", "during the call", "after the answer"}
"""Where only the provider knows."""


@pytest.fixture
def paying(tmp_path: pathlib.Path) -> Iterator[Paying]:
    """A provider that honours keys."""
    with Paying(tmp_path) as provider:
        yield provider


@pytest.fixture
def forgetful(tmp_path: pathlib.Path) -> Iterator[Paying]:
    """A provider that ignores keys."""
    with Paying(tmp_path, "--no-keys") as provider:
        yield provider


def worker(database: str, **options: object) -> Process:
    """A process that drives the agents with effects."""
    return support.worker(
        database, agents="processes.effect_workload:agents", timing=support.SHORT, **options
    )


async def executed(paying: Paying, count: int, step: str = "charge") -> None:
    """Wait until the provider has executed so many effects."""
    async with asyncio.timeout(core.WITHIN):
        while len(paying.lines("effect", step)) < count:  # noqa: ASYNC110 - another process's log sets no event
            await asyncio.sleep(0)


async def killed(api: outlive.Outlive, database: str, paying: Paying, point: str, **order: object) -> str:
    """Submit a run to a process that dies at a point of its effect; returns the run's id."""
    agent, armed = POINTS[point]
    if point == "during the call":
        paying.script("charge", {"hang": True})
    async with worker(database, points=armed) as first:
        run_id = (await api.submit(agent, {"url": paying.url, "booking": "b1", **order})).run.run_id
        if point == "during the call":
            await executed(paying, 1)
            first.kill()
        assert await first.ended() == -9
    if point == "during the call":
        await asyncio.to_thread(paying.release)
    return run_id


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("point", POINTS)
async def test_S23_killed_at_any_point_of_an_effect_its_provider_executes_it_once(
    point: str, database: str, paying: Paying
) -> None:
    """By SIGKILL, from within at a failpoint or from outside."""
    async with core.serving(database, *effect_workload.agents, slots=0, timing=core.QUICK) as api:
        run_id = await killed(api, database, paying, point)
        async with worker(database):
            events = await core.story(api, run_id)
    assert core.end(events)["state"] == "succeeded"
    assert core.end(events)["effects"]["counts"] == {"done": 1}
    assert len(paying.lines()) == 1
    assert len({line["key"] for line in paying.lines("request")}) == 1


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("point", POINTS)
async def test_killed_where_keys_mean_nothing_a_person_is_asked_only_if_nobody_can_tell(
    point: str, database: str, forgetful: Paying
) -> None:
    async with core.serving(database, *effect_workload.agents, slots=0, timing=core.QUICK) as api:
        run_id = await killed(api, database, forgetful, point, no_keys=True)
        async with worker(database) as second:
            if point in UNSETTLED:
                waits = await second.heard("EffectWaits", run_id=run_id)
                did = bool(forgetful.lines())
                await api.effects.settle(waits["effect_id"], executed=did, result="told", by="ann")
            events = await core.story(api, run_id)
            asked = second.said(heard="EffectWaits")
    assert core.end(events)["state"] == "succeeded"
    assert len(forgetful.lines()) == 1
    assert bool(asked) == (point in UNSETTLED)


@pytest.mark.invariant("I9")
async def test_S08_frozen_between_guard_and_call_a_thawed_executor_looks_at_its_clock_and_calls_nothing(
    database: str, paying: Paying
) -> None:
    async with (
        core.serving(database, *effect_workload.agents, slots=0, timing=core.QUICK) as api,
        worker(database, points="effects.guarded=freeze") as frozen,
    ):
        run_id = (await api.submit("pay", {"url": paying.url, "booking": "b1"})).run.run_id
        await frozen.frozen()
        async with worker(database):
            events = await core.story(api, run_id)
        frozen.thaw()
        await frozen.heard("LeaseLost", run_id=run_id)
        assert frozen.said(calls="b1") == []
    assert core.end(events)["state"] == "succeeded"
    assert len(paying.lines("request")) == 1


@pytest.mark.invariant("I9")
async def test_S08_frozen_right_before_the_call_its_late_call_has_the_same_key_and_changes_nothing(
    database: str, paying: Paying
) -> None:
    """Nothing that the process looks at can tell any more; what holds is the provider's key."""
    async with core.serving(database, *effect_workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, points="effects.call=freeze") as frozen:
            run_id = (await api.submit("pay", {"url": paying.url, "booking": "b1"})).run.run_id
            await frozen.frozen()
            async with worker(database):
                events = await core.story(api, run_id)
            frozen.thaw()
            await frozen.heard("LeaseLost", run_id=run_id)
            assert frozen.said(calls="b1") != []
        found = await api.store.read(effect_reads.newest("", "charge", "b1"))
    assert core.end(events)["state"] == "succeeded"
    assert len(paying.lines()) == 1
    assert found is not None
    assert found.state == "done"
    assert found.calls == 2


@pytest.mark.invariant("I9")
async def test_S21_twenty_runs_of_one_purchase_on_two_processes_charge_once(
    database: str, paying: Paying
) -> None:
    async with (
        core.serving(database, *effect_workload.agents, slots=0) as api,
        worker(database, slots=10),
        worker(database, slots=10),
    ):
        order = {"url": paying.url, "booking": "b1"}
        submitted = await asyncio.gather(*(api.submit("pay", order) for _ in range(20)))
        stories = [await core.story(api, each.run.run_id) for each in submitted]
    assert {core.end(story)["state"] for story in stories} == {"succeeded"}
    assert len(paying.lines("request")) == 1


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("point", ["effects.wished", "effects.call", "effects.answered", "effects.recorded"])
@pytest.mark.parametrize(("agent", "steps"), [("fails", ["seat", "refund"]), ("mails", ["mail"])])
async def test_S24_an_aftermath_that_is_killed_anywhere_is_taken_up_and_executes_once(
    agent: str, steps: list[str], point: str, database: str, paying: Paying
) -> None:
    """A wish is taken down before its run ends; the call, the answer and its record come after it."""
    nth = 1 if agent == "mails" and point != "effects.wished" else 2
    async with core.serving(database, *effect_workload.agents, slots=0, timing=core.QUICK) as api:
        async with worker(database, points=f"{point}@{nth}=kill") as first:
            run_id = (await api.submit(agent, {"url": paying.url, "booking": "b1"})).run.run_id
            assert await first.ended() == -9
        async with worker(database):
            after = effect_steps.aftermath_id(run_id, run_id)
            await core.story(api, after)
            assert (await api.run(after)).state is State.SUCCEEDED
    assert [line["step"] for line in paying.lines()] == steps


@pytest.mark.invariant("I9")
async def test_a_hand_back_in_the_middle_of_a_call_is_taken_up_without_a_second_charge(
    database: str, paying: Paying
) -> None:
    paying.script("charge", {"hang": True})
    async with core.serving(database, *effect_workload.agents, slots=0) as api:
        async with worker(database, drain=1.0) as first:
            run_id = (await api.submit("pay", {"url": paying.url, "booking": "b1"})).run.run_id
            await executed(paying, 1)
            first.terminate()
            assert await first.ended() == 0
        await asyncio.to_thread(paying.release)
        async with worker(database):
            events = await core.story(api, run_id)
    assert core.end(events)["state"] == "succeeded"
    assert len(paying.lines()) == 1
    assert support.run_row(database, run_id)["losses"] == 0
