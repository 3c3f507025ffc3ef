"""Makes a failing plan smaller, and prints it as Python."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from enum import Enum
from typing import Any, TypeVar

from outlive.testing.simulation.plan import Op, Plan, Strike
from outlive.testing.simulation.simulate import Result, Sabotage, simulate

T = TypeVar("T")


def shrink(plan: Plan, *, sabotage: Sabotage | None = None, most: int = 300) -> Result:
    """Return the smallest plan found that breaks one of the same promises, in at most ``most`` runs.

    A plan that breaks none is returned as it is.
    """
    best = simulate(plan, sabotage=sabotage)
    wanted, left = best.broken, most
    while wanted and left > 0:
        for candidate in _smaller(best.plan):
            tried = simulate(candidate, sabotage=sabotage)
            left -= 1
            if tried.broken & wanted:
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
        for simpler in _simpler(op):
            yield dataclasses.replace(plan, ops=(*ops[:at], simpler, *ops[at + 1 :]))


def _halves(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    half = len(items) // 2
    if half:
        yield items[half:]
        yield items[:half]


def _but(items: tuple[T, ...], at: int) -> tuple[T, ...]:
    return items[:at] + items[at + 1 :]


def _simpler(op: Op) -> Iterator[Op]:
    """The same intention with one thing as it usually is."""
    plain: list[dict[str, Any]] = [{"delayed": None}, {"strays": False}, {"stubborn": 0.0}, {"warm": 0.0}]
    for change in (*plain, {"chunks": 0}):
        simpler = dataclasses.replace(op, **change)
        if simpler != op:
            yield simpler
    if op.steps > 1:
        yield dataclasses.replace(op, steps=1)


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
