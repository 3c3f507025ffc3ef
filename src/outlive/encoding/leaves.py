"""The text of a value that holds no others, and the name of a mapping's key.

Decides: one form for each type. Lone surrogates are the walk's to replace, since it reports them.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import uuid
from collections.abc import Iterable
from typing import Any, Final

from outlive.encoding import limits

quote: Final = json.encoder.encode_basestring_ascii

_SPELLED: Final = (uuid.UUID, decimal.Decimal, pathlib.PurePath)


def joined(items: Iterable[tuple[str, str]]) -> str:
    """The text of an object from names and texts."""
    return f"{{{','.join(f'{quote(name)}:{text}' for name, text in items)}}}"


def text_of(value: object) -> str:
    """The text of a number, a constant, bytes or a duration; else an empty one."""
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            text: str = form(value)
            return text
    return ""


def tagged(kind: str, text: str) -> str:
    """The text of one of our objects: what text can hold, but JSON cannot."""
    return joined(((limits.TAG, quote(kind)), ("value", text)))


def _integer(value: int) -> str:
    exact = int.__int__(value)
    if -limits.MAX_SAFE_INTEGER <= exact <= limits.MAX_SAFE_INTEGER:
        return str(exact)
    # Python refuses to write more than 4,300 decimal digits; hexadecimal has no limit.
    return tagged("int", quote(str(exact) if exact.bit_length() < 1_000 else hex(exact)))


def _float(value: float) -> str:
    exact = float.__float__(value)
    if math.isfinite(exact):
        return repr(exact)
    return tagged("float", quote("NaN" if math.isnan(exact) else "Infinity" if exact > 0 else "-Infinity"))


def _constant(value: bool | None) -> str:
    return "null" if value is None else "true" if value else "false"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return tagged("bytes", quote(base64.b64encode(bytes(value)).decode("ascii")))


def _seconds(value: datetime.timedelta) -> str:
    return _float(value.total_seconds())


_NUMBERS: Final[Any] = ((bool, _constant), (int, _integer), (float, _float))
_BYTES: Final[Any] = ((bytes, bytearray, memoryview), _bytes)
_FORMS: Final[Any] = ((type(None), _constant), *_NUMBERS, _BYTES, (datetime.timedelta, _seconds))


def spelled(value: Any) -> str | None:
    """The text of a value that is written one way everywhere, else None."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    # Of pydantic's types only some may be printed: addresses, and secrets, which print as asterisks.
    known = isinstance(value, _SPELLED) or is_of(value, "pydantic", "Url", "Secret")
    return str(value) if known else None


def key_of(key: object) -> str | None:
    """The name that a key gets (a number's as `json` gives it), or None if only a pair can hold it."""
    if isinstance(key, enum.Enum):
        return key_of(key.value)
    if isinstance(key, str):
        exact = str.__str__(key)
        return exact if is_unicode(exact) else None
    for kinds, form in _NUMBERS:
        if isinstance(key, kinds):
            number: str = form(key)
            return None if limits.TAG in number else number
    return "null" if key is None else spelled(key)


def is_unicode(text: str) -> bool:
    """Whether it has no lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_of(value: object, package: str, *words: str) -> bool:
    """Whether one of its classes is of this package with one of these words in its name. Imports nothing."""
    kind: Any = type(value)
    return any(word in name for name in _names(kind, package) for word in words)


@functools.lru_cache(maxsize=1_024)
def _names(kind: type, package: str) -> tuple[str, ...]:
    return tuple(base.__name__ for base in kind.__mro__ if base.__module__.startswith(package))
