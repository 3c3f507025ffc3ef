"""Single values out of a thread, by paths such as ``values.messages[-1].content``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from outlive import errors

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d{1,9})\]")


def at(value: Any, path: str) -> Any:
    """Return what is at ``path``; None if nothing is.  Raises ``InvalidInput`` for what is no path."""
    place = 0
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise errors.InvalidInput(
                f"{path[:200]!r} is no path.",
                hint="For example: values.messages[-1].content",
                field="extract",
            )
        value = _member(value, step.group(1)) if step.group(1) else _item(value, int(step.group(2)))
        place = step.end()
    return value


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _item(value: Any, index: int) -> Any:
    inside = isinstance(value, Sequence) and not isinstance(value, str) and -len(value) <= index < len(value)
    return value[index] if inside else None


def holds(value: Any, wanted: Any) -> bool:
    """Say whether ``value`` has all that ``wanted`` has, at any depth."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(
            name in value and holds(value[name], part) for name, part in wanted.items()
        )
    return bool(value == wanted)
