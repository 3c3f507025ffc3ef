"""Plans that once failed, made as small as they would go: they pass now, and are as sharp as they were."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outlive.testing.simulation import Plan, simulate
from outlive.testing.simulation.plan import Fault, Op, Strike, Want
from simulation import mutations


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A plan, and the bug that it found: the mutation that puts it back."""

    bug: str
    plan: Plan


KEPT = (
    Kept(
        bug="nobody looks at how an agent that was given up on ended",
        plan=Plan(
            seed=1,
            ops=(
                Op(
                    number=4,
                    at=1.1489996171853922,
                    want=Want.ASK,
                    via="p2",
                    agent="short",
                    key="k4",
                    warm=2.0,
                    stubborn=1.001,
                    steps=1,
                    pace=0.3,
                    leaves_after=4,
                    away=0.8,
                ),
            ),
        ),
    ),
    Kept(
        bug="nobody looks at how a join ended",
        plan=Plan(
            seed=38,
            ops=(
                Op(
                    number=1,
                    at=6.851660538723713,
                    want=Want.FIRE,
                    via="p0",
                    thread="t2",
                    agent="curt",
                    key="shared0",
                    steps=1,
                    pace=1.0,
                    leaves_after=0,
                ),
                Op(
                    number=7,
                    at=9.910853579111615,
                    want=Want.WATCH,
                    via="p0",
                    thread="t1",
                    agent="chat",
                    key="k7",
                    pace=3.0,
                    leaves_after=2,
                    away=2.5,
                    target=1,
                ),
            ),
            strikes=(
                Strike(
                    at=6.259502306484574,
                    fault=Fault.CUT_OFF,
                    process="busiest",
                    lasts=13.0,
                    degree=0.4,
                    on="save",
                ),
            ),
        ),
    ),
)
ALARMS = (
    Plan(  # a holder that was cut off is frozen while it lets go
        seed=102125,
        ops=(
            Op(
                number=1,
                at=3.6189833231085378,
                want=Want.FIRE,
                via="p2",
                agent="fragile",
                key="k1",
                stubborn=1.001,
                steps=1,
                pace=3.0,
                fails_at=1,
                leaves_after=2,
            ),
        ),
        strikes=(
            Strike(at=3.9271669780876173, fault=Fault.CUT_OFF, process="busiest", lasts=13.0, degree=0.1),
            Strike(at=7.8882928318612775, fault=Fault.FREEZE, process="busiest", lasts=5.0, degree=0.1),
        ),
    ),
    Plan(  # a frozen process reads a request only when it is shutting down
        seed=204322,
        ops=(
            Op(number=2, at=0.8, want=Want.ASK, via="p1", agent="chat", key="k2", steps=1, pace=4.0),
            Op(
                number=3,
                at=8.0,
                want=Want.PRY,
                via="p1",
                thread="t0",
                agent="chat",
                key="k3",
                steps=1,
                pace=3.0,
                target=2,
            ),
            Op(
                number=13,
                at=8.595455163502896,
                want=Want.ASK,
                via="p1",
                thread="t0",
                agent="chat",
                key="k13",
                pace=6.0,
                leaves_after=0,
                target=1,
            ),
        ),
        strikes=(
            Strike(at=3.624117360621794, fault=Fault.FREEZE, process="p2", lasts=6.0, degree=0.4),
            Strike(at=8.427357176811352, fault=Fault.SHUTDOWN, process="p2", lasts=1.0, degree=0.1),
            Strike(
                at=0.40447792912997715,
                fault=Fault.SHUTDOWN,
                process="busiest",
                lasts=9.0,
                degree=0.4,
                on="settle",
            ),
        ),
    ),
)
"""Plans that once raised a false alarm."""
SEEDS = (31, 51, 132, 191, 234, 494, 787, 794, 844, 1095, 1134, 1224, 1273, 1287, 1395, 1447, 1643, 2313)
"""Seeds that raised an alarm, true or false, while the simulation was made."""


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.bug)
def test_a_kept_plan_breaks_nothing_any_more(kept: Kept) -> None:
    assert simulate(kept.plan).violations == ()


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.bug)
def test_a_kept_plan_still_finds_the_bug_that_it_was_kept_for(kept: Kept) -> None:
    mutation = next(mutation for mutation in mutations.ALL if mutation.name == kept.bug)
    with mutation.applied() as sabotage:
        assert simulate(kept.plan, sabotage=sabotage).broken & mutation.noticed_as


@pytest.mark.parametrize("plan", ALARMS, ids=lambda plan: plan.seed)
def test_a_false_alarm_is_raised_no_more(plan: Plan) -> None:
    assert simulate(plan).violations == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kept_seed_breaks_nothing_any_more(seed: int) -> None:
    assert simulate(seed).violations == ()
