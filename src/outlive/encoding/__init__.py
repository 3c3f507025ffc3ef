"""Strict ASCII JSON for any value that an agent yields.

Decides: which JSON stands for which Python value, what becomes a placeholder, how large a value may grow.
Does not decide: which values are recorded, how text is framed for a client, what is done with a report.

Values of JSON's own types take one pass of the C encoder (`plain`); everything else is taken apart (`walk`).
What text can hold but JSON cannot becomes a tagged object (``{"$outlive": "bytes", "value": "..."}``). What
cannot be held at all becomes a placeholder and is reported: it never costs the run. docs/encoding.md has the
table of forms.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

from outlive.encoding import limits, plain, walk
from outlive.encoding.limits import CYCLE as CYCLE
from outlive.encoding.limits import ITERATOR as ITERATOR
from outlive.encoding.limits import MAX_DEPTH as MAX_DEPTH
from outlive.encoding.limits import MAX_ITEMS as MAX_ITEMS
from outlive.encoding.limits import MAX_NODES as MAX_NODES
from outlive.encoding.limits import MAX_REPORTED as MAX_REPORTED
from outlive.encoding.limits import MAX_SAFE_INTEGER as MAX_SAFE_INTEGER
from outlive.encoding.limits import NO_FORM as NO_FORM
from outlive.encoding.limits import SURROGATES as SURROGATES
from outlive.encoding.limits import TAG as TAG
from outlive.encoding.limits import TOO_DEEP as TOO_DEEP
from outlive.encoding.limits import TOO_LARGE as TOO_LARGE
from outlive.encoding.limits import TOO_MANY as TOO_MANY
from outlive.encoding.walk import Placeholder as Placeholder


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A value as strict JSON in printable ASCII, and what it does not hold (the first `MAX_REPORTED`)."""

    text: str
    placeholders: tuple[Placeholder, ...] = ()


def encode(value: object) -> Encoded:
    """Write any value as strict JSON: no NaN, nothing outside printable ASCII, no lone surrogate.

    Never raises for what it is given (MemoryError, and what is no Exception, such as KeyboardInterrupt, pass
    through), never changes it, and consumes no iterator. The same value has the same text in every process.
    """
    text, _ = plain.text_of(value, levels=MAX_DEPTH, limit=limits.MAX_NODES)
    if text:
        return Encoded(text=text)
    one = walk.Walk()
    try:
        text = one.convert(value, None, 0, tried=True)
    except RecursionError:  # the caller's own stack left too little room
        one.report.clear()
        text = one.placeholder(value, None, TOO_DEEP)
    return Encoded(text=text, placeholders=tuple(one.report))


def fingerprint(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON: key order, and 1 against 1.0, make no difference.

    Meant for the bodies of requests. Values that JSON cannot hold are equal when their placeholders are.
    """
    tree = json.loads(encode(value).text, parse_float=_canonical_number)
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _canonical_number(written: str) -> int | float:
    number = float(written)
    return int(number) if number.is_integer() and abs(number) <= MAX_SAFE_INTEGER else number
