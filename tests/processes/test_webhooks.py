"""A process that is killed around a notification: it is heard of at least once, always in the same words."""

from __future__ import annotations

import pytest

from outlive import State
from outlive.testing import telling


@pytest.mark.invariant("I10")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", telling.POINTS, ids=lambda point: point.name)
async def test_S24_killed_at_any_point_its_receiver_hears_of_it_in_the_same_words(
    point: telling.Point, database: str
) -> None:
    """By SIGKILL: from within, at a failpoint, or from outside while the receiver has it (``first.kill``)."""
    outcome = await telling.crash(database, point)
    assert (outcome.run.state, outcome.state) == (State.SUCCEEDED, "delivered")
    assert len(outcome.told) == point.heard
    assert outcome.same
    assert {each.id for each in outcome.told} == {f"{outcome.run.run_id}-1"}
