"""The executor of a displaced run dies before it has stopped: the message in its place loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from agents import bench
from core import support as core
from outlive.agents.langgraph import LangGraphAgent
from outlive.states import Reason, State
from processes.support import freeze, worker

SERVICE = {"agents": "outlive.lab.services.thread_graphs:served"}
NODES = ["plan", "charge", "notify", "finish"]


def of(turn: str, said: list[dict[str, Any]], field: str) -> list[Any]:
    """What was said of one turn."""
    return [line[field] for line in said if line.get("turn", line.get(field)) == turn and field in line]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_an_executor_that_dies_with_a_stop_on_its_way_leaves_the_message_what_it_began(
    database: str, on_busy: str
) -> None:
    rules = bench.JOB
    submits = LangGraphAgent("booking", bench.booking(bench.Trace()), policy=rules)
    async with core.serving(database, submits, slots=0) as api:
        async with worker(database, slots=1, **SERVICE) as first:
            given = {"turn": "one", "gate": "never", "steps": []}
            displaced = (await api.submit("booking", given, thread="t", policy=rules)).run
            await first.line(at="notify", turn="one")
            await freeze(first, database)  # it will not hear of the stop
            given = {"turn": "two", "gate": "two", "steps": []}
            message = (await api.submit("booking", given, thread="t", policy=rules.but(on_busy=on_busy))).run
            first.kill()
        async with worker(database, slots=1, **SERVICE) as second:
            second.open("never")
            second.open("two")
            events = await core.story(api, message.run_id)
            ended = await api.run(displaced.run_id)
            if on_busy == "rollback":
                await second.line(refunded="one")
            said = [*first.said(), *second.said()]
    assert (ended.state, ended.reason) == (State.STOPPED, Reason.DISPLACED)
    assert core.end(events)["state"] == "succeeded"
    assert of("one", said, "charged") == ["one"]
    assert of("two", said, "charged") == ["two"]
    assert of("two", said, "done") == NODES
    one = NODES if on_busy == "interrupt" else NODES[:2]
    assert of("one", said, "done") == one
    assert of("one", said, "refunded") == ([] if on_busy == "interrupt" else ["one"])
