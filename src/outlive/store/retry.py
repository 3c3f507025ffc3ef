"""Repeating a transaction that the database failed under.

Decides when to repeat and when to give up.  Repeating is safe because every script reads back its own work
(see ``moves``); giving up is loud, never success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlive import errors, seams, signals

T = TypeVar("T")


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

    Raises ``StoreUnavailable`` when the budget is spent.
    """
    give_up = local.monotonic() + budget
    pause = 0.01
    while True:
        try:
            return await attempt()
        except Transient as failure:
            cause = failure
        happenings.emit(signals.StoreRetried(script=name, error=str(cause)))
        left = give_up - local.monotonic()
        if left <= 0:
            raise errors.StoreUnavailable(f"The database did not take {name} in time.") from cause
        await asyncio.sleep(min(left, pause * (0.5 + local.random())))
        pause = min(pause * 2, 0.5)
