"""Values made of JSON's own types: how to tell, and their text from one pass of the C encoder.

Decides: what counts as plain. Does not decide: what becomes of a value that is not.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from outlive.encoding import limits

CONTAINERS: Final = frozenset({dict, list, tuple})
STR: Final = frozenset({str})
_SMALL: Final = frozenset({str, float, bool, type(None)})
_ALL: Final = CONTAINERS | _SMALL | {int}
_PAIR: Final = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
_encode: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def text_of(value: object, *, levels: int, limit: int) -> tuple[str, int]:
    """The text of a value that is plain through and through, and how many values are in it; else ("", 0)."""
    try:
        count = _count(value, levels, limit)
        text = _encode(value) if count else ""  # refuses NaN and the infinities
    except MemoryError:
        raise
    except Exception:  # whatever it was, the walk says it better
        return "", 0
    return ("", 0) if limits.TAG in text or _has_lone_surrogate(text) else (text, count)


def has_only_plain(items: Any) -> bool:
    """Whether each is of a plain type, so that what is not plain lies deeper, or in a number or a text."""
    return _ALL.issuperset(map(type, items))


def _count(value: object, levels: int, limit: int) -> int:
    """How many values are in it, if all are of exact JSON types with str keys and safe integers; else 0.

    Exact types, since a subclass may say something else than it holds. Level by level, so that a cycle ends.
    """
    level: list[Any] = [(value,)]
    seen = 0
    for _ in range(levels + 1):
        below: list[Any] = []
        for container in level:
            if type(container) is dict and not STR.issuperset(map(type, container)):
                return 0
            items = container.values() if type(container) is dict else container
            seen += len(items)
            if seen > limit or not _add_containers(items, below):
                return 0
        if not below:
            return seen
        level = below
    return 0


def _add_containers(items: Any, below: list[Any]) -> bool:
    """Note the containers among the items for the next level; False if an item is not plain."""
    if _SMALL.issuperset(map(type, items)):  # the usual case, without a step of Python for each
        return True
    for item in items:
        kind = type(item)
        if kind in CONTAINERS:
            below.append(item)
        elif kind not in _SMALL and (kind is not int or abs(item) > limits.MAX_SAFE_INTEGER):
            return False
    return True


def _has_lone_surrogate(text: str) -> bool:
    """Whether ASCII JSON spells half a character. Where backslashes make that hard to tell: yes."""
    return "\\ud" in text and ("\\\\ud" in text or "\\ud" in _PAIR.sub(" ", text))
