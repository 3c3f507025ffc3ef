"""LangGraph's published conformance suite for savers, through the fence."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import BASE_CAPABILITIES

from agents import bench

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("capability", sorted(one.value for one in BASE_CAPABILITIES))
async def test_the_saver_conforms(on: bench.Bench, capability: str) -> None:
    agent = await on.agent(bench.booking(bench.Trace()))
    context = await on.claimed()

    @checkpointer_test(name="fenced")
    async def fenced() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield agent._saver(context.claim)

    report = await validate(fenced, capabilities={capability})
    result = report.results[capability]
    assert result.failures == []
    assert result.passed
    assert result.tests_passed > 3
