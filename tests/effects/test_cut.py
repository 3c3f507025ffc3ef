"""A call that is cut in flight is unknown, and is found out about before anything is called again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

import outlive
from core import support as core
from effects import support
from outlive import State, effects, errors, signals
from outlive.testing.paying import Paying


@pytest.mark.invariant("I9")
async def test_a_provider_that_commits_and_hangs_up_is_asked_again_with_the_same_key(
    database: str, paying: Paying
) -> None:
    paying.script("charge", {"hang_up": True}, {"hang_up": True})
    async with (
        support.client(paying) as http,
        core.serving(database, support.agent(support.charging(http))) as served,
    ):
        listening = core.heard(served)
        run = await support.ran(served, "b1")
        ends = listening.all(signals.EffectSettled)
    assert run.state is State.SUCCEEDED
    assert [end.state for end in ends] == ["unknown", "done"]
    assert len(paying.lines()) == 1
    assert len(paying.lines("replayed")) == 1
    assert support.rows(database, "state, calls") == [("done", 2)]


@pytest.mark.invariant("I9")
async def test_a_request_that_was_lost_on_its_way_is_made_again_and_executes(
    database: str, paying: Paying
) -> None:
    paying.script("charge", {"lose": True})
    async with (
        support.client(paying) as http,
        core.serving(database, support.agent(support.charging(http))) as served,
    ):
        run = await support.ran(served, "b1")
    assert run.state is State.SUCCEEDED
    assert len(paying.lines()) == 1


@pytest.mark.invariant("I9")
async def test_S02_a_run_that_is_stopped_in_a_call_says_that_the_outcome_is_unknown(
    database: str, paying: Paying
) -> None:
    """It ends at once, its effect stays unknown, and nobody reads `stopped` as undone."""
    paying.script("charge", {"hang": True})
    async with (
        support.client(paying) as http,
        core.serving(database, support.agent(support.charging(http))) as served,
    ):
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.requests(paying, 1, what="effect")
        await served.stop(run_id)
        story = await core.story(served, run_id)
        open_ = await served.effects.newest(unsettled=True)
        await asyncio.to_thread(paying.release)
    assert core.end(story)["state"] == "stopped"
    assert core.end(story)["effects"] == {"counts": {"unknown": 1}, "executed": [], "unknown": ["charge"]}
    assert [effect.known for effect in open_] == ["unknown"]
    assert len(paying.lines()) == 1


@pytest.mark.invariant("I9")
async def test_S02_a_tool_in_a_thread_comes_to_its_end_and_its_effect_is_told_with_the_stop(
    database: str, paying: Paying
) -> None:
    """The thread cannot be cut: the run is stopping until it returns, and no further effect starts."""

    def both(booking: str) -> None:
        with httpx.Client(base_url=paying.url, transport=effects.SyncTransport(), timeout=20) as http:
            for step in ("charge", "notify"):

                def call(step: str = step) -> Any:
                    return http.post(f"/{step}", json={"reference": booking}).json()["reference"]

                effects.once_in_thread(step, key=booking, call=call, key_ttl=60)

    async def step(context: outlive.Context) -> Any:
        return await asyncio.to_thread(both, context.input)

    paying.script("charge", {"hang": True})
    async with core.serving(database, support.agent(step)) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.requests(paying, 1, what="effect")
        await served.stop(run_id)
        assert (await served.run(run_id)).state is State.RUNNING  # asked to stop, and not stopped yet
        await asyncio.to_thread(paying.release)
        story = await core.story(served, run_id)
    assert core.end(story)["state"] == "stopped"
    assert core.end(story)["effects"] == {"counts": {"done": 1}, "executed": ["charge"], "unknown": []}
    assert paying.lines(step="notify") == []


@pytest.mark.invariant("I9")
async def test_the_next_run_finds_out_about_what_a_time_out_has_cut(database: str, paying: Paying) -> None:
    paying.script("charge", {"hang": True})
    async with support.client(paying) as http:
        hasty = support.agent(support.charging(http), "hasty", run_timeout=0.5)
        patient = support.agent(support.charging(http), "patient")
        async with core.serving(database, hasty, patient) as served:
            cut = await support.ran(served, "b1", "hasty")
            assert (await support.newest(served, "b1")).known == "unknown"
            await asyncio.to_thread(paying.release)
            run = await support.ran(served, "b1", "patient")
            found = await support.newest(served, "b1")
    assert (cut.state, cut.reason) == (State.STOPPED, outlive.Reason.TIMEOUT)
    assert run.state is State.SUCCEEDED
    assert (found.state, found.calls, found.run_id) == ("done", 2, run.run_id)
    assert len(paying.lines()) == 1


async def look_up(http: httpx.AsyncClient, booking: str) -> Any:
    return await support.look_up(http, booking)


@pytest.mark.invariant("I9")
async def test_where_keys_mean_nothing_a_look_up_tells_that_it_was_executed(
    database: str, forgetful: Paying
) -> None:
    forgetful.script("charge", {"hang_up": True})
    async with support.client(forgetful) as http:

        async def step(context: outlive.Context) -> Any:
            booking = context.input
            return await support.charging(http, key_ttl=None, lookup=lambda: look_up(http, booking))(context)

        async with core.serving(database, support.agent(step)) as served:
            story = await core.story(served, (await served.submit("agent", "b1")).run.run_id)
            found = await support.newest(served, "b1")
    assert core.data(story) == [{"reference": "b1"}]
    assert (found.state, found.settled_by) == ("reconciled", "lookup")
    assert len(forgetful.lines()) == 1


@pytest.mark.invariant("I9")
async def test_a_look_up_that_finds_nothing_is_believed_only_once_the_call_must_have_landed(
    database: str, forgetful: Paying
) -> None:
    """Asked too early, a slow provider says no and then executes."""
    forgetful.script("charge", {"lose": True})
    looks = 0
    async with support.client(forgetful) as http:

        async def step(context: outlive.Context) -> Any:
            async def look() -> Any:
                nonlocal looks
                looks += 1
                return await support.look_up(http, context.input)

            return await support.charging(http, key_ttl=None, lookup=look, lands_within=1.0)(context)

        async with core.serving(database, support.agent(step)) as served:
            run = await support.ran(served, "b1")
    assert run.state is State.SUCCEEDED
    assert looks >= 2
    assert len(forgetful.lines()) == 1


@pytest.mark.invariant("I9")
async def test_where_nobody_can_tell_the_run_waits_for_a_person_who_says_it_was_executed(
    database: str, forgetful: Paying
) -> None:
    forgetful.script("charge", {"hang_up": True})
    async with (
        support.client(forgetful) as http,
        core.serving(database, support.agent(support.charging(http, key_ttl=None))) as served,
    ):
        listening = core.heard(served)
        run_id = (await served.submit("agent", "b1")).run.run_id
        waits = await listening.of(signals.EffectWaits, run_id=run_id)
        await served.effects.settle(waits.effect_id, executed=True, result={"by": "hand"}, by="ann")
        story = await core.story(served, run_id)
        found = await support.newest(served, "b1")
        with pytest.raises(errors.AlreadySettled):
            await served.effects.settle(waits.effect_id, executed=False, by="bob")
    assert core.data(story) == [{"by": "hand"}]
    assert core.notes(story) == ["effect_cut", "effect_unknown"]
    assert (found.state, found.settled_by) == ("reconciled", "ann")
    assert len(forgetful.lines()) == 1


async def test_a_person_who_says_that_it_was_not_executed_lets_the_run_call(
    database: str, forgetful: Paying
) -> None:
    forgetful.script("charge", {"lose": True})
    async with (
        support.client(forgetful) as http,
        core.serving(database, support.agent(support.charging(http, key_ttl=None))) as served,
    ):
        listening = core.heard(served)
        run_id = (await served.submit("agent", "b1")).run.run_id
        waits = await listening.of(signals.EffectWaits, run_id=run_id)
        await served.effects.settle(waits.effect_id, executed=False, by="ann")
        story = await core.story(served, run_id)
    assert core.end(story)["state"] == "succeeded"
    assert len(forgetful.lines()) == 1


async def test_a_policy_to_fail_gives_the_agent_the_truth_instead_of_a_wait(
    database: str, forgetful: Paying
) -> None:
    forgetful.script("charge", {"hang_up": True})
    async with support.client(forgetful) as http:
        agent = support.agent(support.charging(http, key_ttl=None), on_unknown="fail")
        async with core.serving(database, agent) as served:
            run_id = (await served.submit("agent", "b1")).run.run_id
            story = await core.story(served, run_id)
    assert core.end(story)["error"]["type"] == "EffectUnknown"
    assert core.end(story)["effects"]["unknown"] == ["charge"]


@pytest.mark.invariant("I9")
async def test_a_key_that_its_provider_may_have_forgotten_is_not_replayed(
    database: str, tmp_path: Any
) -> None:
    with Paying(tmp_path, "--key-ttl", "0.2") as paying:
        paying.script("charge", {"hang_up": True})
        async with support.client(paying) as http:
            agent = support.agent(support.charging(http, key_ttl=0.2), on_unknown="fail")
            async with core.serving(database, agent) as served:
                first = await support.ran(served, "b1")
                second = await support.ran(served, "b1")
    assert len(paying.lines()) == 1
    assert {first.state, second.state} <= {State.FAILED, State.SUCCEEDED}


@pytest.mark.invariant("I9")
async def test_a_later_effect_on_a_resource_waits_until_the_older_one_is_settled(
    database: str, forgetful: Paying
) -> None:
    forgetful.script("charge", {"hang_up": True})
    async with support.client(forgetful) as http:
        options = {"key_ttl": None, "resource": "account 7"}
        broken = support.agent(support.charging(http, **options), "broken", on_unknown="fail")
        later = support.agent(support.charging(http, **options), "later")
        async with core.serving(database, broken, later) as served:
            await support.ran(served, "b1", "broken")
            blocked = (await served.submit("later", "b2")).run.run_id
            effect = await support.newest(served, "b1")
            await waits_in_ledger(served, "b2")
            assert len(forgetful.lines("request")) == 1
            await served.effects.settle(effect.effect_id, executed=True, by="ann")
            assert (await support.ended(served, blocked)).state is State.SUCCEEDED
    assert [line["reference"] for line in forgetful.lines()] == ["b1", "b2"]


async def waits_in_ledger(served: outlive.Outlive, key: str) -> None:
    """Wait until a wish is in the ledger; it has been refused its start by then, or is about to be."""
    async with asyncio.timeout(core.WITHIN):
        while True:
            with contextlib.suppress(AssertionError):
                assert (await support.newest(served, key)).state == "intended"
                return


@pytest.mark.invariant("I9")
async def test_a_run_that_was_asked_to_stop_starts_nothing_and_is_stopped_not_failed(
    database: str, paying: Paying
) -> None:
    """The stop is on record before the agent has heard of it."""
    async with support.client(paying) as http:
        asked = asyncio.Event()

        async def step(context: outlive.Context) -> Any:
            await asked.wait()
            return await support.charging(http)(context)

        async with core.serving(database, support.agent(step)) as served:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(served._keeper, "look_for_stops", _nothing)
                patch.setattr(served._keeper, "renew_once", lambda: None)
                run_id = (await served.submit("agent", "b1")).run.run_id
                await served.stop(run_id)
                with served.signals.recording() as told:
                    asked.set()
                    await core.until(lambda: support.rows(database) == [] and asked.is_set())
                    for _ in range(20):
                        await asyncio.sleep(0)
                assert told == []
            story = await core.story(served, run_id)
    assert core.end(story)["state"] == "stopped"
    assert paying.lines("request") == []
    assert support.rows(database) == []


async def _nothing() -> None:
    """Hear of no stop."""
