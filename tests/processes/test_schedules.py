"""Four processes fire a schedule and are killed between the steps of it: each slot becomes one run."""

from __future__ import annotations

import pytest

from outlive.testing import ticking


@pytest.mark.timeout(180)
async def test_S25_four_processes_that_are_killed_between_steps_fire_each_slot_once(database: str) -> None:
    """By SIGKILL, from within, at failpoints (``schedules.submitted=kill`` and others)."""
    outcome = await ticking.ticked(database, 6)
    assert outcome.kills > 0
    assert (outcome.fired, outcome.skipped, outcome.twice, outcome.lost) == (outcome.slots, 0, 0, 0)
    assert outcome.slots >= 5
