"""When a schedule's slots are: pure functions of a cron expression, a time zone and a stretch of time.

Decides that a slot is a whole second of UTC, and the same one whoever asks, however often and from when.  The
library that reads expressions gives other times when it begins within a change of the clocks; so it is always
begun well before one, and what lies before the stretch is dropped.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from outlive import errors

AROUND = timedelta(hours=6)
"""How far from a change of the clocks an iteration begins at least; overlaps are far shorter."""
LAST = datetime(9990, 1, 1, tzinfo=UTC).timestamp()
LONGEST = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Cron:
    """A cron expression in a time zone.  Make one by ``parse``, which checks it."""

    expression: str
    timezone: str


def installed() -> bool:
    """Say whether expressions can be read in this process."""
    return importlib.util.find_spec("cronsim") is not None


def parse(expression: str, timezone: str) -> Cron:
    """Return what was checked; raises ``InvalidInput``, and ``Misconfigured`` without the library.

    Five fields, or six with the seconds first.
    """
    if not installed():
        raise errors.Misconfigured(
            "What reads cron expressions is not installed.", hint="Run: pip install 'outlive[schedules]'"
        )
    cron = Cron(expression=expression, timezone=timezone)
    _zone(timezone)
    library = _library()
    try:
        if len(expression) > LONGEST or not expression.isascii():
            raise library.CronSimError(f"more than {LONGEST} characters, or none of ASCII")
        _begun(cron, 0.0)
    except library.CronSimError as failure:
        raise errors.InvalidInput(
            f"{expression[:LONGEST]!r} is no cron expression: {failure}.",
            hint="Five fields: minute hour day month weekday, as in '30 2 * * mon-fri'."
            " A sixth, for seconds, goes first.",
            field="cron",
        ) from None
    return cron


def slots(cron: Cron, since: int, until: float = LAST) -> Iterator[int]:
    """Yield every slot after ``since`` and up to ``until``, in order; all in seconds since the epoch."""
    for moment in _begun(cron, since):
        slot = int(moment.timestamp())
        if slot > until:
            return
        if slot > since:
            yield slot


def following(cron: Cron, since: int, count: int = 1) -> list[int]:
    """Return the next ``count`` slots after ``since``; fewer if no more come within fifty years."""
    return list(itertools.islice(slots(cron, since), count))


def _begun(cron: Cron, since: float) -> Iterator[datetime]:
    """Iterate from where the clocks are not about to change and have not just done so."""
    zone = _zone(cron.timezone)
    start = datetime.fromtimestamp(since, UTC)
    while (start - AROUND).astimezone(zone).utcoffset() != (start + AROUND).astimezone(zone).utcoffset():
        start -= AROUND
    begun: Iterator[datetime] = _library().CronSim(cron.expression, start.astimezone(zone))
    return begun


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise errors.InvalidInput(
            f"{name[:LONGEST]!r} is no time zone that is known here.",
            hint="A name of the IANA database, as in Europe/Berlin.",
            field="timezone",
        ) from None


def _library() -> Any:
    return importlib.import_module("cronsim")
