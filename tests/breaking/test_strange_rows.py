"""One row that a newer version wrote does not keep this one from its work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import policy


@support.job()
async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Do next to nothing."""
    yield context.input


@pytest.mark.parametrize(
    ("field", "value"),
    [("on_busy", "interrupt"), ("recovery", None), ("max_losses", -1), ("run_timeout", "1m")],
)
async def test_a_policy_of_a_newer_version_holds_up_neither_its_run_nor_any_other(
    database: str, field: str, value: object
) -> None:
    async with support.serving(database, agent, slots=0) as api:
        ids = [(await api.submit("agent", n)).run.run_id for n in range(2)]
        strange = json.dumps(policy.job().to_dict() | {field: value})
        record.execute(database, f"UPDATE runs SET policy = '{strange}' WHERE run_id = '{ids[0]}'")
        assert {run.run_id for run in await api.runs()} == set(ids)
        async with support.serving(database, agent), asyncio.timeout(support.WITHIN):
            ended = [await api.result(run_id) for run_id in ids]
    assert [run.state for run in ended] == [outlive.State.SUCCEEDED] * 2


def test_what_cannot_be_read_of_a_policy_is_taken_for_the_most_careful() -> None:
    read = outlive.RunPolicy.from_json('{"recovery":"migrate","grace":"soon","on_busy":"enqueue","new":1}')
    assert read.recovery is policy.Recovery.STOP
    assert read.on_busy is policy.OnBusy.ENQUEUE
    assert read.on_disconnect is policy.OnDisconnect.CONTINUE
    assert read.max_losses == 0
    assert read.durability is policy.Durability.SYNC
