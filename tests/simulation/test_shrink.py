"""A smaller plan fails as the larger one does, or it is no smaller plan of that failure."""

from __future__ import annotations

from unittest import mock

import pytest

from outlive.testing.simulation import Violation, agent, as_python, generate, plan, shrink, simulate, timeline
from simulation import bugs, mutations


@pytest.fixture(params=["the end event is missing", "grace does not count"])
def mutation(request: pytest.FixtureRequest) -> mutations.Mutation:
    return next(found for found in mutations.ALL if found.name == request.param)


def test_the_smallest_plan_is_noticed_by_the_check_that_noticed_the_first(
    mutation: mutations.Mutation,
) -> None:
    with mutation.applied() as sabotage:
        seed = next(seed for seed in range(150) if simulate(seed, sabotage=sabotage).violations)
        first = simulate(seed, sabotage=sabotage).violations[0]
        result = shrink(generate(seed), sabotage=sabotage, most=60)
    assert (first.invariant, first.check) in {(found.invariant, found.check) for found in result.violations}
    larger = generate(seed)
    assert len(result.plan.ops) + len(result.plan.strikes) < len(larger.ops) + len(larger.strikes)


def test_the_same_promise_broken_in_another_way_is_another_failure() -> None:
    broken = Violation("I2", "this", check="one way")
    assert broken.like(Violation("I2", "that", at=7.0, check="one way"))
    assert not broken.like(Violation("I2", "this", check="another way"))
    assert not broken.like(Violation("I3", "this", check="one way"))


def test_a_plan_that_breaks_nothing_stays_as_it_is() -> None:
    assert shrink(generate(3)).plan == generate(3)


def test_a_printed_plan_is_the_plan() -> None:
    larger = generate(41)
    names = {name: getattr(plan, name) for name in ("Plan", "Op", "Strike", "Want", "Fault")}
    assert eval(as_python(larger), names) == larger


def test_the_evidence_is_about_the_run_and_comes_before_the_violation() -> None:
    with mock.patch.object(agent.StepsAgent, "do", bugs.record_first):
        result = simulate(3)
    broken = result.violations[0]
    assert broken.at is not None
    lines = timeline.evidence(result, broken)
    run = broken.what.split(" of ")[1][:8]
    assert lines
    assert all(line.at <= broken.at for line in lines)
    assert all(run in line.what for line in lines if line.kind is not timeline.Kind.FAULT)
    assert "is recorded as done" in lines[-1].what
