"""The bounds of one encoding, and the reasons that a report gives.

Decides: the numbers. What happens at a bound is the walk's to say: the value there becomes a placeholder.
"""

from __future__ import annotations

from typing import Final

TAG: Final = "$outlive"  # marks an object as one of ours; a mapping with this key is written as pairs
MAX_DEPTH: Final = 100  # nested containers; clients' parsers stop at about 1,000 levels
MAX_NODES: Final = 1_000_000  # values in one encoding: a small value may hold itself many times over
MAX_ITEMS: Final = 10_000  # of a numpy array, or of a collection that is no built-in
MAX_REPORTED: Final = 100  # placeholders in a report; the text may hold more
MAX_SAFE_INTEGER: Final = 2**53 - 1  # the largest integer that JavaScript reads exactly

CYCLE: Final = "contains itself"  # these are the reasons that a report gives, and "raised SomeError"
ITERATOR: Final = "an iterator is not consumed"
NO_FORM: Final = "has no JSON form"
SURROGATES: Final = "lone surrogates replaced by U+FFFD"
TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH}"
TOO_LARGE: Final = f"more than {MAX_ITEMS} items"
TOO_MANY: Final = f"more than {MAX_NODES} values"
