"""What clients want and what goes wrong, drawn from a seed before anything runs.

A plan is data: it can be printed, shortened and kept.  Everything else that is random while it runs has
streams of its own, so that a shorter plan meets much the same latencies.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from outlive.testing.simulation.cast import POLICIES

T = TypeVar("T")
PROCESSES = ("p0", "p1", "p2")
BUSIEST = "busiest"
"""Whichever process drives most when the fault strikes, or makes the write that it waits for first."""
SPAN = 10.0
"""Virtual seconds in which clients begin and faults strike."""


class Want(StrEnum):
    """What a client does."""

    ASK = "ask"
    FIRE = "fire"
    STOP = "stop"
    WATCH = "watch"
    AGAIN = "again"
    PRY = "pry"
    THREAD = "thread"


class Fault(StrEnum):
    """What goes wrong with a process, or with all of them."""

    KILL = "kill"
    SHUTDOWN = "shutdown"
    FREEZE = "freeze"
    STALL = "stall"
    CUT_OFF = "cut off"
    LOST_REPLIES = "lost replies"
    FAILED_COMMITS = "failed commits"
    SLOW = "slow"
    HINTS_LOST = "hints lost"
    HINTS_REPEATED = "hints repeated"
    SKEW = "skew"
    TOKENS_LOST = "tokens lost"
    PROVIDER = "provider hangs up"


ABRUPT = frozenset({Fault.KILL, Fault.SHUTDOWN, Fault.FREEZE, Fault.STALL, Fault.CUT_OFF})
LASTS = {
    Fault.FREEZE: (0.5, 5.0, 5.0, 6.0, 9.0),
    Fault.STALL: (0.5, 2.0, 5.0, 9.0),
    Fault.CUT_OFF: (0.3, 1.0, 5.0, 6.0, 13.0, 13.0),
}
EVERYWHERE = (Fault.KILL, Fault.KILL, Fault.SHUTDOWN, Fault.FREEZE, Fault.CUT_OFF)
"""What can happen to all processes at once: a power cut, a deploy, a database that is gone."""
_OFTEN: Mapping[Fault, int] = {
    Fault.KILL: 6,
    Fault.SHUTDOWN: 3,
    Fault.FREEZE: 6,
    Fault.STALL: 2,
    Fault.CUT_OFF: 5,
    Fault.LOST_REPLIES: 2,
    Fault.FAILED_COMMITS: 3,
    Fault.TOKENS_LOST: 2,
    Fault.PROVIDER: 2,
}
FREQUENT = tuple(fault for fault in Fault for _ in range(_OFTEN.get(fault, 1)))
"""Every fault, as often as it is to be drawn."""
_WRITES: Mapping[str | None, int] = {None: 4, "append": 2, "save": 2, "settle": 4, "claim": 2}
_RARE = ("submit", "begin", "hand_back", "sweep")
MOMENTS = (*(write for write, often in _WRITES.items() for _ in range(often)), *_RARE)
"""Writes that a fault may wait for, as often as it is to wait for them; None: it waits for nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One client's intention.  ``leaves_after`` chunks it goes away, for ``away`` seconds or for good.

    ``stubborn``: seconds for which its agent goes on after it was cancelled; ``yields``: it yields once more
    then.  ``waits``: the agent ends by asking a person, who answers when the client would have come back.
    ``strays``: with a shared key it says something else than the others.  ``dawdles``: seconds that it takes
    over each event.
    """

    number: int
    at: float
    want: Want
    via: str
    thread: str | None = None
    agent: str = ""
    key: str = ""
    warm: float = 0.0
    stubborn: float = 0.0
    steps: int = 0
    pace: float = 0.0
    chunks: int = 0
    fails_at: int | None = None
    leaves_after: int | None = None
    away: float | None = None
    target: int = 0
    delayed: float | None = None
    strays: bool = False
    waits: bool = False
    yields: bool = False
    dawdles: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    """One fault: when, whom, for how long (seconds), how bad.

    ``on``: not at that time, but at the next write of this kind from then on: between the moment at which the
    process sent it and the moment at which the database takes it.
    """

    at: float
    fault: Fault
    process: str
    lasts: float
    degree: float = 0.0
    on: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A seed's whole script."""

    seed: int
    ops: tuple[Op, ...] = field(default=())
    strikes: tuple[Strike, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Theme:
    """A plan that is all about one thing: which faults, when, for how long, how many, and what is asked."""

    faults: tuple[Fault, ...]
    moments: tuple[str | None, ...]
    lasts: tuple[float, ...]
    strikes: tuple[int, ...]
    asked: Mapping[str, tuple[object, ...]]


_LATE = Theme(  # holders come back late, while the next ones warm up
    faults=(Fault.FREEZE,),
    moments=("settle", "settle", "append", "save"),
    lasts=(4.5, 5.0, 6.0),
    strikes=(2, 3, 4),
    asked={"warm": (2.0, 3.0), "pace": (0.0, 0.3, 1.0)},
)
THEMES = (
    _LATE,
    _LATE,
    Theme(  # commits fail and replies are lost
        faults=(Fault.FAILED_COMMITS, Fault.FAILED_COMMITS, Fault.LOST_REPLIES),
        moments=(None,),
        lasts=(6.0, 9.0),
        strikes=(3, 4, 6),
        asked={"chunks": (1, 3), "pace": (0.3, 1.0), "leaves_after": (None, 4)},
    ),
    Theme(  # viewers leave for good
        faults=(Fault.KILL,),
        moments=(None,),
        lasts=(0.3,),
        strikes=(0, 1),
        asked={
            "want": (Want.ASK,),
            "agent": ("chat", "curt", "short"),
            "thread": (None,),
            "pace": (4.0, 6.0),
            "steps": (2,),
            "leaves_after": (0, 1),
            "away": (None, 2.5),
        },
    ),
    Theme(  # processes are replaced
        faults=(Fault.SHUTDOWN,),
        moments=("claim", "claim", "append", "settle", None),
        lasts=(0.3, 1.0),
        strikes=(2, 3, 4),
        asked={
            "want": (Want.ASK, Want.FIRE),
            "warm": (0.0,),
            "pace": (0.3, 1.0),
            "steps": (1, 2),
            "delayed": (None,),
            "thread": ("t0", "t1", "t2"),
            "agent": ("job", "once", "fragile", "short"),
        },
    ),
    Theme(  # the database is out of reach for long
        faults=(Fault.CUT_OFF,),
        moments=(None, None, "claim"),
        lasts=(13.0, 20.0),
        strikes=(1, 2),
        asked={"want": (Want.ASK, Want.ASK, Want.AGAIN), "leaves_after": (None, 1), "away": (None, 0.1)},
    ),
)


def generate(seed: int) -> Plan:
    """Draw a plan: 8 to 18 client operations over a few threads, and up to 12 faults.

    Half of the plans have a theme.  Half of the others know only a few kinds of fault, of agents and of
    moments.  What needs the same bad luck twice would hardly ever happen if all happened a little everywhere.
    """
    rolls = random.Random(f"plan/{seed}")
    threads = [f"t{number}" for number in range(rolls.randint(1, 4))]
    theme = rolls.choice(THEMES) if rolls.random() < 0.5 else None
    agents = _some(rolls, tuple(POLICIES), 2)
    ops = [_op(rolls, number, threads, agents) for number in range(rolls.randint(8, 18))]
    if theme is not None:
        ops = [_themed(rolls, op, theme.asked) for op in ops]
        many, faults, moments = rolls.choice(theme.strikes), theme.faults, theme.moments
    else:
        many = rolls.choice((0, 1, 1, 2, 4, 6, 9, 12))
        faults, moments = _some(rolls, FREQUENT, 3), _some(rolls, MOMENTS, 2)
    strikes = [_strike(rolls, faults, moments) for _ in range(many)]
    if theme is not None:
        strikes = [dataclasses.replace(strike, lasts=rolls.choice(theme.lasts)) for strike in strikes]
    plan = Plan(seed=seed, ops=tuple(_twice(rolls, op, ops) for op in ops), strikes=tuple(strikes))
    return _seasoned(plan) if rolls.random() < 0.6 else plan


def _seasoned(plan: Plan) -> Plan:
    """Add what some people do, and now and then a fault that strikes every process at once."""
    rolls = random.Random(f"season/{plan.seed}")
    strikes = plan.strikes
    if strikes and rolls.random() < 0.25:
        first = dataclasses.replace(strikes[0], fault=rolls.choice(EVERYWHERE), on=None)
        strikes = (*(dataclasses.replace(first, process=name) for name in PROCESSES), *strikes[1:])
    return dataclasses.replace(plan, ops=tuple(_peculiar(rolls, op) for op in plan.ops), strikes=strikes)


def _peculiar(rolls: random.Random, op: Op) -> Op:
    return dataclasses.replace(
        op,
        want=rolls.choice((op.want,) * 6 + (Want.PRY, Want.THREAD)),
        chunks=rolls.choice((op.chunks,) * 15 + (40,)),
        waits=rolls.random() < 0.25,
        yields=rolls.random() < 0.25,
        dawdles=rolls.choice((0.0, 0.0, 0.0, 0.2)),
    )


def _themed(rolls: random.Random, op: Op, asked: Mapping[str, tuple[object, ...]]) -> Op:
    changed: dict[str, Any] = {name: rolls.choice(values) for name, values in asked.items()}
    return dataclasses.replace(op, **changed)


def _twice(rolls: random.Random, op: Op, ops: list[Op]) -> Op:
    """Half of those who say the same again do so at once: a double click, a retry by a proxy."""
    if op.want is Want.AGAIN and rolls.random() < 0.5 and op.target < len(ops):
        return dataclasses.replace(op, at=ops[op.target].at + rolls.expovariate(1 / 0.005))
    return op


def _some(rolls: random.Random, everything: tuple[T, ...], few: int) -> tuple[T, ...]:
    """All of them, or a few."""
    return tuple(rolls.choice(everything) for _ in range(few)) if rolls.random() < 0.5 else everything


def _op(rolls: random.Random, number: int, threads: list[str], agents: tuple[str, ...]) -> Op:
    want = rolls.choices(tuple(Want)[:5], (6, 3, 3, 1, 3))[0]
    leaves = rolls.choice((None, None, 0, 0, 1, 2, 4))
    pace = rolls.choice((0.0, 0.3, 1.0, 2.0, 3.0, 4.0, 6.0))
    return Op(
        number=number,
        at=rolls.random() * SPAN,
        want=want,
        via=rolls.choice(PROCESSES),
        thread=None if rolls.random() < 0.25 else rolls.choice(threads),
        agent=rolls.choice(agents),
        key=rolls.choice((f"k{number}", f"k{number}", f"shared{rolls.randint(0, 2)}")),
        steps=min(rolls.choice((0, 1, 2, 3, 4)), int(12.0 / max(pace, 0.1))),
        warm=rolls.choice((0.0, 0.0, 0.5, 2.0, 3.0)),
        stubborn=rolls.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.001, 2.5)),
        pace=pace,
        chunks=rolls.choice((0, 1, 3)),
        fails_at=rolls.choice((None, None, None, 1)),
        leaves_after=leaves,
        away=None if leaves is None else rolls.choice((0.1, 0.8, 2.5, None, None, None)),
        target=rolls.randrange(max(1, number)),
        strays=rolls.random() < 0.2,
        delayed=rolls.choice((None, None, None, 2.0)),
    )


def _strike(rolls: random.Random, faults: tuple[Fault, ...], moments: tuple[str | None, ...]) -> Strike:
    fault = rolls.choice(faults)
    return Strike(
        at=rolls.random() * SPAN,
        fault=fault,
        process=rolls.choice((*PROCESSES, *(BUSIEST,) * 4)),
        lasts=rolls.choice(LASTS.get(fault, (0.3, 1.0, 3.0, 6.0, 9.0))),
        degree=rolls.choice((0.1, 0.4, 0.8)),
        on=rolls.choice(moments) if fault in ABRUPT else None,
    )
