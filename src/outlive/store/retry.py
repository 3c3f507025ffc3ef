"""Repeating a transaction that the database failed under.

Decides when to repeat and when to give up.  Repeating is safe because every script reads back its own work
(see ``moves``); giving up is loud, never success.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlive import errors, seams, signals

T = TypeVar("T")

SHORTEST_TRY = 0.5
"""Seconds that the last try gets, however little of the budget is left."""


class Transient(Exception):
    """The database failed in a way that a repeat may cure; the outcome of the try is unknown."""


async def until(
    attempt: Callable[[], Awaitable[T]],
    *,
    name: str,
    budget: float,
    local: seams.Seams,
    happenings: signals.Signals,
) -> T:
    """Call ``attempt`` until it stops raising ``Transient``, for at most ``budget`` seconds.

    Raises ``StoreUnavailable`` when the budget is spent.  A try that is still under way then is left to end
    by itself: whether it commits is as unknown as after any lost reply.
    """
    bounded = functools.partial(_bounded, attempt)
    return await until_within(bounded, name=name, budget=budget, local=local, happenings=happenings)


async def until_within(
    attempt: Callable[[float], Awaitable[T]],
    *,
    name: str,
    budget: float,
    local: seams.Seams,
    happenings: signals.Signals,
) -> T:
    """Like ``until``, with tries that keep by themselves to the seconds that they are given."""
    give_up = local.monotonic() + budget
    pause = 0.01
    while True:
        try:
            return await attempt(max(SHORTEST_TRY, give_up - local.monotonic()))
        except Transient as failure:
            cause = failure
        happenings.emit(signals.StoreRetried(script=name, error=str(cause)))
        left = give_up - local.monotonic()
        if left <= 0:
            raise errors.StoreUnavailable(f"The database did not take {name} in time.") from cause
        await asyncio.sleep(min(left, pause * (0.5 + local.random())))
        pause = min(pause * 2, 0.5)


async def _bounded(attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            return await attempt()
    except TimeoutError as late:
        if not bound.expired():
            raise
        raise Transient("no answer within the budget") from late
