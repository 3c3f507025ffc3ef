"""What the end of a run releases or undoes: in its transaction, by a run of its own, through the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import outlive
from core import record
from core import support as core
from effects import support
from outlive import Reason, State, effects, errors, failpoints, signals
from outlive.effects import asking
from outlive.store import effect_steps
from outlive.testing.paying import Paying


@pytest.fixture
async def http(paying: Paying) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the provider."""
    async with support.client(paying) as client:
        yield client


def declared(http: httpx.AsyncClient, name: str, **options: Any) -> Any:
    """An effect of this name that its provider undoes under the name ``refund-<name>``."""

    async def refund(done: asking.Executed) -> Any:
        return await support.pay(http, done.inputs["booking"], f"refund-{name}", of=done.provider_key)

    @effects.effect(name, key="booking", key_ttl=60, compensate=refund, **options)
    async def execute(booking: str) -> Any:
        return await support.pay(http, booking, name)

    return execute


async def aftermath(served: outlive.Outlive, run_id: str, cause: str | None = None) -> outlive.Run:
    """The run that followed an end, once it has ended itself."""
    return await support.ended(served, effect_steps.aftermath_id(run_id, cause or run_id))


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("policy", ["failures", "always", "never"])
async def test_a_failed_run_is_undone_from_its_last_effect_to_its_first_if_its_policy_says_so(
    database: str, paying: Paying, http: httpx.AsyncClient, policy: str
) -> None:
    seat, charge = declared(http, "seat"), declared(http, "charge")

    async def book(context: outlive.Context) -> Any:
        await seat(context.input)
        await charge(context.input)
        raise ValueError("no ticket")

    async with core.serving(database, support.agent(book, compensate=policy)) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        end = core.end(await core.story(served, run_id))
        if policy != "never":
            assert (await aftermath(served, run_id)).state is State.SUCCEEDED
        shown = {
            effect.name: effect.state for effect in await served.effects.of_run(await served.run(run_id))
        }
    steps = [line["step"] for line in paying.lines()]
    undone = policy != "never"
    assert end["state"] == "failed"
    assert ("aftermath" in end["effects"]) == undone
    assert steps == ["seat", "charge", *(["refund-charge", "refund-seat"] if undone else [])]
    assert set(shown.values()) == {"compensated" if undone else "done"}


@pytest.mark.invariant("I9")
async def test_a_purchase_that_was_refunded_can_be_bought_again_and_is_refunded_again(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    charge = declared(http, "charge")

    async def book(context: outlive.Context) -> Any:
        await charge(context.input)
        raise ValueError("no ticket")

    async with core.serving(database, support.agent(book, compensate="failures")) as served:
        for _ in range(2):
            run_id = (await served.submit("agent", "b1")).run.run_id
            await support.ended(served, run_id)
            await aftermath(served, run_id)
    assert [line["step"] for line in paying.lines()] == ["charge", "refund-charge"] * 2
    assert len({line["key"] for line in paying.lines()}) == 4
    charges = [row for row in support.rows(database) if row[0] == "charge"]
    assert charges == [("charge", "b1", 1, "compensated"), ("charge", "b1", 2, "compensated")]


@pytest.mark.invariant("I9")
async def test_a_stopped_run_is_undone_when_everything_is_and_is_not_gone_on_from(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    charge = declared(http, "charge")

    async def book(context: outlive.Context) -> Any:
        await charge(context.input)
        await asyncio.Event().wait()

    async with core.serving(database, support.agent(book, compensate="always", run_timeout=1.0)) as served:
        run_id = (await served.submit("agent", "b1", key="k")).run.run_id
        run = await support.ended(served, run_id)
        again = await served.submit("agent", "b1", key="k")
        await aftermath(served, run_id)
    assert (run.state, run.reason) == (State.STOPPED, Reason.TIMEOUT)
    assert (again.run.run_id, again.admitted) == (run_id, "replayed")
    assert [line["step"] for line in paying.lines()] == ["charge", "refund-charge"]


@pytest.mark.invariant("I9")
async def test_nothing_is_undone_while_an_outcome_is_open_and_all_of_it_once_it_is_settled(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    seat, charge = declared(http, "seat"), declared(http, "charge")

    async def book(context: outlive.Context) -> Any:
        await seat(context.input)
        await charge(context.input)

    paying.script("charge", {"hang": True})
    async with core.serving(database, support.agent(book, compensate="always")) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.requests(paying, 1, what="effect")
        await served.stop(run_id)
        await support.ended(served, run_id)
        waits = await aftermath(served, run_id)
        assert [line["step"] for line in paying.lines()] == ["seat", "charge"]
        await asyncio.to_thread(paying.release)
        effect = await support.newest(served, "b1")
        await served.effects.settle(effect.effect_id, executed=True, by="ann")
        settled = await aftermath(served, run_id, f"{effect.effect_id}/{effect.calls}")
    assert waits.state is State.WAITING
    assert settled.state is State.SUCCEEDED, settled.error_detail
    assert [line["step"] for line in paying.lines()] == ["seat", "charge", "refund-charge", "refund-seat"]


@pytest.mark.invariant("I9")
async def test_a_repeat_waits_while_its_effect_is_being_undone_and_is_then_a_new_one(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    charge = declared(http, "charge")
    fails = True

    async def book(context: outlive.Context) -> Any:
        await charge(context.input)
        if fails:
            raise ValueError("no ticket")

    paying.script("refund-charge", {"hang": True})
    async with core.serving(database, support.agent(book, compensate="failures")) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.ended(served, run_id)
        await support.requests(paying, 1, "refund-charge", what="effect")
        fails = False
        again = (await served.submit("agent", "b1")).run.run_id
        await asyncio.to_thread(paying.release)
        await aftermath(served, run_id)
        assert (await support.ended(served, again)).state is State.SUCCEEDED
    assert [line["step"] for line in paying.lines()] == ["charge", "refund-charge", "charge"]


# ---------------------------------------------------------------- deferred


def mail(http: httpx.AsyncClient) -> Any:
    @effects.effect("mail", key="booking", kind="deferrable", key_ttl=60)
    async def execute(booking: str, text: str) -> Any:
        return await support.pay(http, booking, "mail", text=text)

    return execute


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("succeeds", [True, False])
async def test_S24_a_deferred_effect_is_executed_if_its_run_succeeds_and_never_if_it_does_not(
    database: str, paying: Paying, http: httpx.AsyncClient, succeeds: bool
) -> None:
    send = mail(http)

    async def book(context: outlive.Context) -> Any:
        assert await send(context.input, "hello") is None
        assert paying is not None
        if not succeeds:
            raise ValueError("no ticket")

    async with core.serving(database, support.agent(book)) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        end = core.end(await core.story(served, run_id))
        if succeeds:
            await aftermath(served, run_id)
    assert ("aftermath" in end["effects"]) == succeeds
    assert [line["text"] for line in paying.lines()] == ["hello"] * succeeds
    assert support.rows(database) == [("mail", "b1", 1, "done" if succeeds else "intended")]


async def test_S24_a_deferred_effect_that_a_failed_run_wished_for_is_the_next_runs_to_earn(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    send = mail(http)
    fails = True

    async def book(context: outlive.Context) -> Any:
        await send(context.input, "hello")
        if fails:
            raise ValueError("no ticket")

    async with core.serving(database, support.agent(book)) as served:
        await support.ran(served, "b1")
        fails = False
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.ended(served, run_id)
        await aftermath(served, run_id)
    assert [line["text"] for line in paying.lines()] == ["hello"]


@pytest.mark.invariant("I9")
async def test_S24_a_verdict_that_did_not_commit_releases_nothing_and_one_that_did_once(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    """The transaction fails once before its commit; the repeat makes the verdict and what follows it."""
    send = mail(http)

    async def book(context: outlive.Context) -> Any:
        await send(context.input, "hello")

    async with core.serving(database, support.agent(book)) as served:
        with core.held_before("finish") as held:
            run_id = (await served.submit("agent", "b1")).run.run_id
            await held.arrival()
            assert record.rows(database, "SELECT run_id FROM runs WHERE agent = 'outlive.aftermath'") == []
            assert paying.lines("request") == []
            held.open()
        await support.ended(served, run_id)
        await aftermath(served, run_id)
    assert len(paying.lines()) == 1


# ---------------------------------------------------------------- authority


@pytest.mark.invariant("I9")
async def test_authority_is_asked_when_the_effect_starts_and_not_when_it_was_planned(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    allowed = True

    async def book(context: outlive.Context) -> Any:
        nonlocal allowed
        allowed = False  # the plan was made while it was allowed
        return await support.charging(http, authorize=lambda: allowed)(context)

    async with core.serving(database, support.agent(book)) as served:
        run = await support.ran(served, "b1")
    assert "NotApproved" in str(run.error)
    assert paying.lines("request") == []
    assert support.rows(database) == [("charge", "b1", 1, "intended")]


@pytest.mark.invariant("I9")
async def test_an_approval_is_used_up_once_has_a_scope_and_ends(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    async with core.serving(database, support.agent(support.charging(http, approval=True))) as served:
        assert "NotApproved" in str((await support.ran(served, "b1")).error)
        await served.effects.approve("charge", "other", by="ann")
        await served.effects.approve("charge", "b1", by="ann", inputs={"booking": "dearer"})
        await served.effects.approve("refund", "b1", by="ann")
        assert "NotApproved" in str((await support.ran(served, "b1")).error)
        await served.effects.approve("charge", "b1", by="ann", lasts=0.001)
        assert "NotApproved" in str((await support.ran(served, "b1")).error)
        await served.effects.approve("charge", "b1", by="ann")
        assert (await support.ran(served, "b1")).state is State.SUCCEEDED
        used = "SELECT key, consumed_by FROM approvals WHERE consumed_by IS NOT NULL"
        consumed = record.rows(database, used)
        await served.effects.approve("charge", "b2", by="ann")
        both = await asyncio.gather(*(support.ran(served, booking) for booking in ("b2", "b3")))
    assert [run.state for run in both] == [State.SUCCEEDED, State.FAILED]
    assert [row["key"] for row in consumed] == ["b1"]
    assert [line["reference"] for line in paying.lines()] == ["b1", "b2"]


@pytest.mark.invariant("I9")
async def test_an_answer_that_comes_after_the_run_was_lost_is_kept_as_evidence_and_believed(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    """The executor has the provider's answer and no longer the run: it may not say so, only leave it."""

    async def book(context: outlive.Context) -> Any:
        return await effects.once(
            "charge", key=context.input, call=lambda: late(context.input), lookup=never, lands_within=0
        )

    async def late(booking: str) -> Any:
        answer = await support.pay(http, booking)
        taken_over = "UPDATE runs SET epoch = epoch + 1, claim_token = 'somebody else'"
        await asyncio.to_thread(record.execute, database, taken_over)
        return answer

    async def never() -> Any:
        pytest.fail("the evidence was enough")

    async with core.serving(database, support.agent(book), timing=core.QUICK) as served:
        listening = core.heard(served)
        run_id = (await served.submit("agent", "b1")).run.run_id
        await listening.of(signals.StaleWriteRefused, run_id=run_id, write=signals.Write.EFFECT)
        run = await support.ended(served, run_id)
        found = await support.newest(served, "b1")
    assert run.state is State.SUCCEEDED, run.error_detail
    assert (found.state, found.settled_by) == ("reconciled", "evidence")
    assert len(paying.lines("request")) == 1
    assert failpoints._armed == {}


# ---------------------------------------------------------------- late, lost, mended


@pytest.mark.invariant("I9")
async def test_an_answer_that_comes_after_the_stop_is_evidence_enough_to_undo_it(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    """The thread outlives its run; what it learns is left in the ledger, and the undoing begins by itself."""

    async def refund(done: asking.Executed) -> Any:
        return await support.pay(http, done.key, "refund")

    def in_thread(booking: str) -> None:
        def call() -> Any:
            with httpx.Client(base_url=paying.url, transport=effects.SyncTransport(), timeout=20) as blocking:
                return blocking.post("/charge", json={"reference": booking}).json()["reference"]

        effects.once_in_thread("charge", key=booking, call=call, compensate=refund)

    async def step(context: outlive.Context) -> Any:
        await asyncio.to_thread(in_thread, context.input)

    paying.script("charge", {"hang": True})
    agent = support.agent(step, compensate="always", stop_deadline=0.2)
    async with core.serving(database, agent) as served:
        listening = core.heard(served)
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.requests(paying, 1, what="effect")
        await served.stop(run_id)
        await support.ended(served, run_id)
        first = await aftermath(served, run_id)
        await asyncio.to_thread(paying.release)
        await listening.of(signals.StaleWriteRefused, run_id=run_id, write=signals.Write.EFFECT)
        effect = await support.newest(served, "b1")
        second = await aftermath(served, run_id, f"{effect.effect_id}/{effect.calls}")
        undone = await support.newest(served, "b1")
    assert (first.state, second.state) == (State.WAITING, State.SUCCEEDED)
    assert undone.state == "compensated"
    assert [line["step"] for line in paying.lines()] == ["charge", "refund"]


@pytest.mark.invariant("I9")
async def test_an_open_effect_that_was_to_be_undone_and_is_wanted_again_is_the_other_runs(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    charge = declared(http, "charge")

    async def book(context: outlive.Context) -> Any:
        return await charge(context.input)

    paying.script("charge", {"hang": True})
    async with core.serving(database, support.agent(book, compensate="always")) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.requests(paying, 1, what="effect")
        await served.stop(run_id)
        await support.ended(served, run_id)
        await aftermath(served, run_id)
        await asyncio.to_thread(paying.release)
        runs = [await support.ran(served, "b1") for _ in range(2)]
        found = await support.newest(served, "b1")
    assert [run.state for run in runs] == [State.SUCCEEDED] * 2
    assert (found.state, found.due, found.run_id) == ("done", None, runs[0].run_id)
    assert [line["step"] for line in paying.lines()] == ["charge"]


async def test_an_undoing_that_failed_is_tried_again_when_somebody_says_so(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    charge = declared(http, "charge")

    async def book(context: outlive.Context) -> Any:
        await charge(context.input)
        raise ValueError("no ticket")

    paying.script("refund-charge", {"status": 402})
    async with core.serving(database, support.agent(book, compensate="failures")) as served:
        run_id = (await served.submit("agent", "b1")).run.run_id
        await support.ended(served, run_id)
        failed = await aftermath(served, run_id)
        effect = await support.newest(served, "b1")
        mended = await support.ended(served, await served.effects.retry(effect.effect_id))
        with pytest.raises(errors.AlreadySettled):
            await served.effects.retry(effect.effect_id)
    assert (failed.state, mended.state) == (State.FAILED, State.SUCCEEDED)
    assert [line["step"] for line in paying.lines()] == ["charge", "refund-charge"]


@pytest.mark.invariant("I9")
@pytest.mark.invariant("I15")
async def test_an_answer_that_cannot_be_stored_loses_the_attempt_and_the_next_one_asks_the_provider(
    database: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    async with core.serving(database, support.agent(support.charging(http)), timing=core.QUICK) as served:
        write, lost = served.store.write, 0

        async def failing(script: Any, **options: Any) -> Any:
            nonlocal lost
            if script.name in ("finish", "finish_plainly") and lost < 4:  # as often as it is tried
                lost += 1
                raise errors.StoreUnavailable
            return await write(script, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(served.store, "write", failing)
            run_id = (await served.submit("agent", "b1")).run.run_id
            story = await core.story(served, run_id)
    assert core.end(story)["state"] == "succeeded"
    assert {event.epoch for event in story} == {1, 3}
    assert len(paying.lines()) == 1
    assert len(paying.lines("replayed")) == 1


async def test_an_effect_that_wants_itself_is_told_so(sqlite_url: str) -> None:
    async def step(context: outlive.Context) -> Any:
        async def itself() -> Any:
            return await effects.once("charge", key="k", call=lambda: 1)

        return await effects.once("charge", key="k", call=itself)

    async with core.serving(sqlite_url, support.agent(step, on_unknown="fail")) as served:
        run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert "wants itself" in str(run.error_detail)


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("succeeds", [True, False])
async def test_what_another_run_may_yet_undo_is_waited_for_until_that_run_has_ended(
    database: str, paying: Paying, http: httpx.AsyncClient, succeeds: bool
) -> None:
    charge = declared(http, "charge")
    goes_on = asyncio.Event()

    async def first(context: outlive.Context) -> Any:
        await charge(context.input)
        await goes_on.wait()
        if not succeeds:
            raise ValueError("no ticket")

    async def second(context: outlive.Context) -> Any:
        return await charge(context.input)

    owner = support.agent(first, "first", compensate="failures")
    async with core.serving(database, owner, support.agent(second, "second")) as served:
        await served.submit("first", "b1")
        await support.requests(paying, 1, what="effect")
        waiting = (await served.submit("second", "b1")).run.run_id
        await core.until(lambda: not goes_on.is_set() and paying.lines())
        assert (await served.run(waiting)).state is State.RUNNING
        goes_on.set()
        assert (await support.ended(served, waiting)).state is State.SUCCEEDED
    undone = ["refund-charge", "charge"] if not succeeds else []
    assert [line["step"] for line in paying.lines()] == ["charge", *undone]


async def test_who_waits_too_long_for_another_runs_end_is_told_so(
    sqlite_url: str, paying: Paying, http: httpx.AsyncClient
) -> None:
    charge = declared(http, "charge", budget=0.1)
    goes_on = asyncio.Event()

    async def step(context: outlive.Context) -> Any:
        await charge("b1")
        await goes_on.wait()

    async with core.serving(sqlite_url, support.agent(step, compensate="failures")) as served:
        first = (await served.submit("agent", 1)).run.run_id
        await support.requests(paying, 1, what="effect")
        second = await support.ran(served, 2)
        goes_on.set()
        assert (await support.ended(served, first)).state is State.SUCCEEDED
    assert second.state is State.FAILED
    assert "EffectBusy" in str(second.error)
