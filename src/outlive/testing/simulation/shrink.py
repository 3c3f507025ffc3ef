"""Makes a failing plan smaller, and prints it as Python."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from outlive.testing.simulation.cast import MODEL, Cast
from outlive.testing.simulation.plan import Op, Plan, Strike
from outlive.testing.simulation.simulate import Result, Sabotage, simulate

T = TypeVar("T")
Item = TypeVar("Item", Op, Strike)


def shrink(plan: Plan, *, sabotage: Sabotage | None = None, most: int = 300, cast: Cast = MODEL) -> Result:
    """Return the smallest plan found whose first violation is noticed by the same check as this plan's.

    Tries at most ``most`` plans.  A plan that breaks nothing is returned as it is.
    """
    best = simulate(plan, sabotage=sabotage, cast=cast)
    wanted, left = best.violations[:1], most
    while wanted and left > 0:
        for candidate in _smaller(best.plan):
            tried = simulate(candidate, sabotage=sabotage, cast=cast)
            left -= 1
            if any(found.like(wanted[0]) for found in tried.violations):
                best = tried
                break
            if left <= 0:
                break
        else:
            break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Half of it, then one thing less, then simpler things."""
    ops, strikes = plan.ops, plan.strikes
    for kept in _halves(strikes):
        yield dataclasses.replace(plan, strikes=kept)
    for kept_ops in _halves(ops):
        yield dataclasses.replace(plan, ops=kept_ops)
    without = [dataclasses.replace(plan, strikes=_but(strikes, at)) for at in range(len(strikes))]
    without += [dataclasses.replace(plan, ops=_but(ops, at)) for at in range(len(ops))]
    random.Random(plan.seed).shuffle(without)
    yield from without
    for at, op in enumerate(ops):
        for simpler in _changed(op, PLAIN_OP):
            yield dataclasses.replace(plan, ops=(*ops[:at], simpler, *ops[at + 1 :]))
    for at, strike in enumerate(strikes):
        for milder in _changed(strike, PLAIN_STRIKE):
            yield dataclasses.replace(plan, strikes=(*strikes[:at], milder, *strikes[at + 1 :]))


PLAIN_OP: tuple[Mapping[str, Any], ...] = (
    {"delayed": None},
    {"strays": False},
    {"waits": False},
    {"yields": False},
    {"dawdles": 0.0},
    {"stubborn": 0.0},
    {"warm": 0.0},
    {"fails_at": None},
    {"leaves_after": None, "away": None},
    {"chunks": 0},
    {"steps": 1},
)
PLAIN_STRIKE: tuple[Mapping[str, Any], ...] = ({"on": None}, {"lasts": 0.3})
"""What is simpler, one thing at a time; nothing is ever changed back."""


def _halves(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    half = len(items) // 2
    if half:
        yield items[half:]
        yield items[:half]


def _but(items: tuple[T, ...], at: int) -> tuple[T, ...]:
    return items[:at] + items[at + 1 :]


def _changed(item: Item, plain: tuple[Mapping[str, Any], ...]) -> Iterator[Item]:
    """The same thing with one property as it usually is, or at a rounder time."""
    for change in (*plain, {"at": round(item.at, 1)}):
        simpler = dataclasses.replace(item, **change)
        if simpler != item:
            yield simpler


def as_python(plan: Plan) -> str:
    """A plan as an expression that can be pasted into a test; what is as usual is left out."""
    lines = [f"Plan(\n    seed={plan.seed},"]
    for name, items in (("ops", plan.ops), ("strikes", plan.strikes)):
        if items:
            lines += [f"    {name}=(", *(f"        {_call(item)}," for item in items), "    ),"]
    return "\n".join([*lines, ")"])


def _call(item: Op | Strike) -> str:
    given = [
        f"{field.name}={_literal(getattr(item, field.name))}"
        for field in dataclasses.fields(item)
        if getattr(item, field.name) != field.default
    ]
    return f"{type(item).__name__}({', '.join(given)})"


def _literal(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
