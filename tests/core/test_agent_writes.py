"""What becomes of a run whose agent could not store something of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from outlive import agents, errors, lease, policy, runtime, signals
from outlive.agents.generator import GeneratorAgent
from outlive.states import State


async def test_a_run_whose_checkpoint_could_not_be_stored_is_taken_up_again_not_failed(database: str) -> None:
    async def fails_once(context: agents.Context) -> AsyncGenerator[Any, None]:
        yield context.attempt
        if context.attempt == 1:
            raise errors.StoreUnavailable("no checkpoint today")

    agent = GeneratorAgent("saver", fails_once, policy=policy.job())
    short = lease.Timing(lease=1.2, renew_every=0.2, margin=0.2)
    async with runtime.Outlive(database, [agent], timing=short) as outlive:
        with outlive.signals.recording() as seen:
            submitted = await outlive.submit("saver")
            run = await outlive.result(submitted.run.run_id)
    assert run.state is State.SUCCEEDED
    assert run.losses == 1
    assert [type(one) for one in seen].count(signals.RecordingFailed) == 1
