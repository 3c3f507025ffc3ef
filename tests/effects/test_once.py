"""An effect is executed once per business key: whoever asks, however often, and from wherever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

import outlive
from core import support as core
from effects import support
from outlive import State, effects, errors, failpoints
from outlive.effects import asking
from outlive.testing.paying import Paying


@pytest.mark.invariant("I9")
async def test_the_same_key_is_charged_once_and_everybody_gets_the_first_result(
    database: str, paying: Paying
) -> None:
    async with support.client(paying) as http:
        agent = support.agent(support.charging(http))
        async with core.serving(database, agent) as served:
            stories = [
                await core.story(served, (await served.submit("agent", "b1")).run.run_id) for _ in range(3)
            ]
            again = await core.story(served, (await served.submit("agent", "b2")).run.run_id)
    assert [core.data(story) for story in stories] == [[{"reference": "b1"}]] * 3
    assert core.end(again)["effects"] == {"counts": {"done": 1}, "executed": ["charge"], "unknown": []}
    assert [line["reference"] for line in paying.lines()] == ["b1", "b2"]
    assert support.rows(database) == [("charge", "b1", 1, "done"), ("charge", "b2", 1, "done")]


@pytest.mark.invariant("I9")
async def test_S23_a_purchase_that_a_model_invents_new_ids_for_is_charged_once_and_a_second_one_again(
    database: str, paying: Paying
) -> None:
    """The model re-issues a call that broke off, with another tool call's id and a key that it made up."""

    async def buy(http: httpx.AsyncClient, tool_call_id: str, invented_key: str, order: str) -> Any:
        del tool_call_id, invented_key  # the ledger's key comes from what is bought, not from who asks
        return await effects.once(
            "charge", key=order, call=lambda: support.pay(http, order), inputs={"order": order}, key_ttl=60
        )

    async with support.client(paying) as http:

        async def model(context: outlive.Context) -> Any:
            first = await buy(http, "call_1", "k-1", context.input)
            second = await buy(http, "call_2", "k-2", context.input)
            deliberate = await buy(http, "call_3", "k-3", f"{context.input}-once-more")
            return [first, second, deliberate]

        paying.script("charge", {"hang_up": True})
        async with core.serving(database, support.agent(model)) as served:
            run_id = (await served.submit("agent", "o1")).run.run_id
            story = await core.story(served, run_id)
    assert core.data(story) == [[{"reference": "o1"}, {"reference": "o1"}, {"reference": "o1-once-more"}]]
    assert [line["reference"] for line in paying.lines()] == ["o1", "o1-once-more"]


@pytest.mark.invariant("I9")
async def test_parallel_nodes_of_one_run_that_want_the_same_effect_share_it(
    database: str, paying: Paying
) -> None:
    async with support.client(paying) as http:
        charge = support.charging(http)

        async def at_once(context: outlive.Context) -> Any:
            return await asyncio.gather(*(charge(context) for _ in range(8)))

        async with core.serving(database, support.agent(at_once)) as served:
            run = await support.ran(served, "b1")
    assert run.state is State.SUCCEEDED
    assert len(paying.lines("request")) == 1


async def test_a_thread_executes_an_effect_in_itself_and_gets_the_stored_result_the_next_time(
    database: str, paying: Paying
) -> None:
    where: list[str] = []

    def in_thread(order: str) -> Any:
        def call(call: effects.Call) -> Any:
            where.append(threading.current_thread().name)
            with httpx.Client(base_url=paying.url, transport=effects.SyncTransport()) as http:
                return http.post("/charge", json={"reference": order}).json()["reference"]

        return effects.once_in_thread("charge", key=order, call=call, key_ttl=60), call.__name__

    async def step(context: outlive.Context) -> Any:
        first = await asyncio.to_thread(in_thread, context.input)
        return [first[0], (await asyncio.to_thread(in_thread, context.input))[0]]

    async with core.serving(database, support.agent(step)) as served:
        story = await core.story(served, (await served.submit("agent", "b1")).run.run_id)
    assert core.data(story) == [["b1", "b1"]]
    assert len(where) == 1
    assert where[0] != threading.main_thread().name
    (line,) = paying.lines()
    assert line["key"] == support.rows(database, "provider_key")[0][0]


async def test_a_thread_may_not_be_the_loops_and_code_outside_of_a_run_has_no_effects(
    sqlite_url: str,
) -> None:
    async def on_the_loop(context: outlive.Context) -> Any:
        return effects.once_in_thread("charge", key=context.input, call=lambda: 1)

    async with core.serving(sqlite_url, support.agent(on_the_loop)) as served:
        run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert "must not block the event loop" in str(run.error_detail)
    with pytest.raises(errors.Misconfigured, match="no run here"):
        await effects.once("charge", key="b1", call=lambda: 1)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"key": "a\0b"}, "key"),
    ({"key": "x" * (1 << 20)}, "key"),
    ({"key": ""}, "key"),
    ({"key": []}, "key"),
    ({"key": 1.5}, "key"),
    ({"key": True}, "key"),
    ({"key": None}, "key"),
    ({"key": {"a": 1}}, "key"),
    ({"key": ["a", None]}, "key"),
    ({"key": "\ud800"}, "key"),
    ({"name": ""}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"inputs": object()}, "inputs"),
    ({"kind": "free"}, "kind"),
    ({"key_ttl": -1}, "key_ttl"),
    ({"key_ttl": "60"}, "key_ttl"),
    ({"budget": float("nan")}, "budget"),
    ({"resource": 7}, "resource"),
]


@pytest.mark.parametrize(("wrong", "field"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_used_is_refused_by_name_before_anything_runs(
    wrong: dict[str, Any], field: str
) -> None:
    asked = {"key": "b1", "tenant": "", "call": lambda: pytest.fail("it ran"), **wrong}
    with pytest.raises(errors.InvalidInput) as refusal:
        asking.ask(asking.in_coroutine, asked.pop("name", "charge"), **asked)
    assert (refusal.value.field, refusal.value.status) == (field, 422)


async def test_the_same_key_with_other_inputs_is_an_error_and_nothing_is_called(
    database: str, paying: Paying
) -> None:
    async with support.client(paying) as http:

        async def twice(context: outlive.Context) -> Any:
            await support.charging(http, inputs={"amount": 5})(context)
            with pytest.raises(errors.EffectConflict):
                await support.charging(http, inputs={"amount": 6})(context)
            return "refused"

        async with core.serving(database, support.agent(twice)) as served:
            run = await support.ran(served, "b1")
    assert run.state is State.SUCCEEDED
    assert len(paying.lines("request")) == 1


async def test_a_definite_failure_is_kept_and_tried_anew_only_when_that_is_asked_for(
    database: str, paying: Paying
) -> None:
    async with support.client(paying) as http:

        async def tries(context: outlive.Context) -> Any:
            with pytest.raises(httpx.HTTPStatusError):
                await support.charging(http)(context)
            with pytest.raises(errors.EffectFailed, match="HTTPStatusError"):
                await support.charging(http)(context)
            return await support.charging(http, again_after_failure=True)(context)

        paying.script("charge", {"status": 402})
        async with core.serving(database, support.agent(tries)) as served:
            run = await support.ran(served, "b1")
    assert run.state is State.SUCCEEDED, run.error_detail
    assert support.rows(database) == [("charge", "b1", 1, "failed"), ("charge", "b1", 2, "done")]
    assert len({line["key"] for line in paying.lines("request")}) == 2
    assert len(paying.lines()) == 1


async def test_a_key_in_use_is_answered_by_the_identical_call_until_the_first_is_done(
    database: str, paying: Paying
) -> None:
    """The provider has the first request and works on it; the connection broke."""
    async with support.client(paying) as http:

        async def impatient(call: effects.Call) -> Any:
            if not await asyncio.to_thread(paying.lines, "request"):
                broken = asyncio.create_task(support.pay(http, "b1"))
                while not await asyncio.to_thread(paying.lines, "request"):
                    pass
                broken.cancel()
            return await support.pay(http, "b1")

        async def step(context: outlive.Context) -> Any:
            return await effects.once("charge", key=context.input, call=impatient, key_ttl=60)

        paying.script("charge", {"hang": True})
        async with core.serving(database, support.agent(step)) as served:
            run_id = (await served.submit("agent", "b1")).run.run_id
            await support.requests(paying, 3)  # the first, and at least two answered with 409
            await asyncio.to_thread(paying.release)
            run = await support.ended(served, run_id)
    assert run.state is State.SUCCEEDED, run.error_detail
    assert len(paying.lines()) == 1
    assert len({line["key"] for line in paying.lines("request")}) == 1


async def test_one_effect_may_not_make_two_different_requests(sqlite_url: str, paying: Paying) -> None:
    async with support.client(paying) as http:

        async def two() -> Any:
            await support.pay(http, "b1")
            await support.pay(http, "b1", "notify")

        async def step(context: outlive.Context) -> Any:
            return await effects.once("charge", key=context.input, call=two)

        async with core.serving(sqlite_url, support.agent(step, on_unknown="fail")) as served:
            run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert [line["step"] for line in paying.lines()] == ["charge"]


async def test_a_result_that_JSON_cannot_hold_is_the_same_for_every_attempt(sqlite_url: str) -> None:
    async def step(context: outlive.Context) -> Any:
        first = await effects.once("look", key="k", call=lambda: {"raw": b"\x00", "many": (1, 2)})
        return first == await effects.once("look", key="k", call=lambda: pytest.fail("it ran again"))

    async with core.serving(sqlite_url, support.agent(step)) as served:
        story = await core.story(served, (await served.submit("agent", "b1")).run.run_id)
    assert core.data(story) == [True]


async def test_a_graph_that_writes_no_checkpoints_as_it_goes_may_have_no_effects(sqlite_url: str) -> None:
    async def step(context: outlive.Context) -> Any:
        return await effects.once("charge", key="k", call=lambda: pytest.fail("it ran"))

    async with core.serving(sqlite_url, support.agent(step, durability="exit")) as served:
        run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert "Declare durability" in str(run.error_detail)


async def test_ten_thousand_effects_of_one_run_are_all_counted(sqlite_url: str) -> None:
    async def step(context: outlive.Context) -> Any:
        async def one(number: int) -> Any:
            return await effects.once("tick", key=number, call=lambda: number)

        for start in range(0, 10_000, 500):
            await asyncio.gather(*(one(number) for number in range(start, start + 500)))
        return "done"

    async with core.serving(sqlite_url, support.agent(step)) as served:
        async with asyncio.timeout(50):
            run_id = (await served.submit("agent", "b1")).run.run_id
            await served.result(run_id)
        story = await core.story(served, run_id)
    assert core.end(story)["effects"]["counts"] == {"done": 10_000}


async def test_a_failure_between_the_wish_and_the_call_leaves_nothing_started(sqlite_url: str) -> None:
    async def step(context: outlive.Context) -> Any:
        return await effects.once("charge", key="k", call=lambda: pytest.fail("it ran"))

    with core.failing_once("effects.wished"):
        async with core.serving(sqlite_url, support.agent(step)) as served:
            run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert support.rows(sqlite_url) == []
    assert failpoints._armed == {}


def test_a_declaration_that_cannot_work_is_refused_where_it_stands() -> None:
    with pytest.raises(errors.Misconfigured, match="no parameter 'order'"):

        @effects.effect("declared here", key="order")
        async def without(booking: str) -> None:
            """Has no such parameter."""

    @effects.effect("declared here", key="booking")
    async def first(booking: str) -> None:
        """Has it."""

    with pytest.raises(errors.Misconfigured, match="Two effects are named"):

        @effects.effect("declared here", key="booking")
        async def second(booking: str) -> None:
            """Comes too late."""

    assert (first.__name__, first.__doc__) == ("first", "Has it.")
