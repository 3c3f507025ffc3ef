"""What may name something: threads, keys, tenants, effects.

Decides nothing else: everything that comes from outside as a name passes here before anything runs.
"""

from __future__ import annotations

import re

from outlive import errors

LONGEST_NAME = 512
"""Characters that a thread's name, a key or a tenant may have."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def check_name(field: str, text: object) -> None:
    """Raise ``InvalidInput`` unless ``text`` is None or a short printable string.

    NUL cannot be stored in PostgreSQL's text, and lone surrogates cannot be encoded at all.
    """
    if text is None:
        return
    if not isinstance(text, str):
        raise errors.InvalidInput(f"{field} must be a string.", field=field)
    if len(text) > LONGEST_NAME:
        raise errors.InvalidInput(f"{field} is longer than {LONGEST_NAME} characters.", field=field)
    if any(ch < " " or "\ud800" <= ch <= "\udfff" or ch == "\x7f" for ch in text):
        raise errors.InvalidInput(f"{field} holds a control character or a lone surrogate.", field=field)


def traceparent(text: str | None) -> str | None:
    """Return a W3C traceparent in the form of version 00, or None if it is none: such a one is to be ignored.

    It comes from anybody, is kept with the run and goes to whatever collects traces.
    """
    if text is None or len(text) > LONGEST_NAME or (found := _TRACEPARENT.fullmatch(text)) is None:
        return None
    if text.startswith("00-") and found[1] is not None:  # only a later version may say more
        return None
    return f"00-{text[3:55]}"
