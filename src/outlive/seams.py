"""The few things the core takes from outside so that a simulation can bend them.

Decides where local time, randomness and fresh ids come from.  The database's clock is not here: safety never
rests on a process's clock, only politeness does (when to renew, when to stop trusting oneself).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds on a clock that also runs while the machine sleeps.

    CLOCK_MONOTONIC stands still during suspend, so a laptop that wakes would trust a lease that
    expired hours ago.
    """
    return time.clock_gettime(_CLOCK)


def new_id() -> str:
    """Return a fresh 32-digit hexadecimal id that sorts by time (RFC 9562, UUID version 7).

    The twelve bits after the version hold the fraction of the millisecond: ids of one process keep their
    order although a database makes several runs within a millisecond.
    """
    stamp, fraction = divmod(time.time_ns(), 1_000_000)
    tail = int.from_bytes(os.urandom(8), "big") & ~(0x3 << 62) | 0x2 << 62
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | (fraction * 4096 // 1_000_000) << 64 | tail
    return f"{value:032x}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seams:
    """Local clock (seconds, never steps back), randomness in [0, 1), and fresh ids."""

    monotonic: Callable[[], float] = boottime
    random: Callable[[], float] = field(default=random.random)
    new_id: Callable[[], str] = new_id


REAL = Seams()
