"""What a run had executed when it was cut is told to, or undone by, the message that comes after it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import outlive
from agents import bench
from core import support as core
from effects import support
from effects.test_aftermath import aftermath, declared
from outlive import Reason, State
from outlive.testing.paying import Paying


@contextlib.asynccontextmanager
async def cut_behind_a_charge(
    database: str, paying: Paying, on_torn: str
) -> AsyncIterator[tuple[outlive.Outlive, str]]:
    """A service whose thread was left behind its charge, and the run that left it."""
    async with support.client(paying) as http:
        charge = declared(http, "charge", kind="reversible")
        trace = bench.Trace()

        async def pay(state: bench.Steps) -> dict[str, list[str]]:
            await charge("b1")
            return {"steps": ["pay"]}

        builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
        builder.add_node("pay", pay)
        builder.add_node("notify", trace.node("notify"))
        builder.add_edge(START, "pay")
        builder.add_edge("pay", "notify")
        rules = outlive.job(on_torn=on_torn)
        agent = outlive.LangGraphAgent("agent", builder.compile(), policy=rules, modes=["updates"])
        async with core.serving(database, agent) as served:
            trace.hold("notify")
            cut = await served.submit("agent", {"steps": []}, thread="t")
            await trace.until("notify")
            await served.stop(cut.run.run_id, reason=Reason.DISCONNECT)
            await support.ended(served, cut.run.run_id)
            yield served, cut.run.run_id


async def notes(served: outlive.Outlive, run_id: str) -> list[Any]:
    """The notes in a run's log."""
    return [event.data for event in await core.story(served, run_id) if event.kind.value == "note"]


@pytest.mark.invariant("I9")
async def test_a_message_that_starts_over_says_what_was_executed_and_executes_it_no_second_time(
    database: str, paying: Paying
) -> None:
    async with cut_behind_a_charge(database, paying, "restart") as (served, cut):
        submitted = await served.submit("agent", {"steps": ["again"]}, thread="t")
        (note,) = await notes(served, submitted.run.run_id)
        run = await support.ended(served, submitted.run.run_id)
    assert run.state is State.SUCCEEDED
    assert note["code"] == "restarted"
    assert cut in note["message"]
    assert "Executed: charge." in note["message"]
    assert [line["step"] for line in paying.lines()] == ["charge"]


@pytest.mark.invariant("I9")
async def test_what_is_taken_back_is_undone_and_stays_in_the_lists(database: str, paying: Paying) -> None:
    async with cut_behind_a_charge(database, paying, "rollback") as (served, cut):
        submitted = await served.submit("agent", {"steps": ["again"]}, thread="t")
        run = await support.ended(served, submitted.run.run_id)
        undone = await aftermath(served, cut, submitted.run.run_id)
        (note,) = await notes(served, submitted.run.run_id)
        kept = await served.effects.of_run(await served.run(cut))
    assert undone.state is State.SUCCEEDED
    assert (run.state, note["code"]) == (State.SUCCEEDED, "rolled_back")
    assert run.public()["output"] == {"steps": ["again", "pay", "notify"]}
    assert [line["step"] for line in paying.lines()][:2] == ["charge", "refund-charge"]
    assert ("charge", "compensated") in {(effect.name, effect.state.value) for effect in kept}


@pytest.mark.invariant("I9")
async def test_what_is_finished_first_charges_no_second_time(database: str, paying: Paying) -> None:
    async with cut_behind_a_charge(database, paying, "resume") as (served, _):
        submitted = await served.submit("agent", {"steps": ["again"]}, thread="t")
        run = await support.ended(served, submitted.run.run_id)
    assert run.public()["output"] == {"steps": ["pay", "notify", "again", "pay", "notify"]}
    assert [line["step"] for line in paying.lines()] == ["charge"]
