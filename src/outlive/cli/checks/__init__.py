"""What ``outlive doctor`` looks at: each check says what it found, how bad that is, and what to do.

Decides what a finding is.  The checks are in the modules beside this one, by what they look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is.  ``skip``: it could not be looked at, or there is nothing to look at here."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found.  ``do`` is what to do about it; nothing where nothing needs doing."""

    check: str
    level: Level
    found: str
    do: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, level=Level.OK, found=found)


def skip(check: str, found: str) -> Finding:
    """It was not looked at."""
    return Finding(check=check, level=Level.SKIP, found=found)


def warn(check: str, found: str, do: str) -> Finding:
    """It works, and will hurt one day."""
    return Finding(check=check, level=Level.WARN, found=found, do=do)


def fail(check: str, found: str, do: str) -> Finding:
    """It does not work."""
    return Finding(check=check, level=Level.FAIL, found=found, do=do)
