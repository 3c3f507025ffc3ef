"""Functions that are no async generators are told apart, as early as can be."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from outlive import errors, policy
from outlive.agents.generator import GeneratorAgent
from outlive.states import State


async def gives_nothing(context: outlive.Context) -> None:
    """A coroutine."""


def yields_at_once(context: outlive.Context) -> Any:
    """A generator, but no async one."""
    yield 1


async def yields(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """What an agent is."""
    yield 1


def wraps(context: outlive.Context) -> Any:
    """A plain function that returns one."""
    return yields(context)


def returns(context: outlive.Context) -> Any:
    """A plain function that returns something else."""
    return 1


@pytest.mark.parametrize("function", [gives_nothing, yields_at_once])
def test_a_function_that_is_none_is_refused_when_it_is_declared(function: Any) -> None:
    with pytest.raises(errors.Misconfigured, match="no async generator"):
        outlive.agent("one", policy=policy.job())(function)


@pytest.mark.parametrize(("function", "state"), [(wraps, State.SUCCEEDED), (returns, State.FAILED)])
async def test_a_plain_function_may_return_one(database: str, function: Any, state: State) -> None:
    agent = GeneratorAgent("one", function, policy=policy.job())
    async with outlive.Outlive(database, [agent]) as service:
        run = await service.result((await service.submit("one")).run.run_id)
    assert run.state is state
    assert state is State.SUCCEEDED or "no async generator" in (run.error_detail or "")
