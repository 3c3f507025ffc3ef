"""What may name something: threads, keys, tenants, effects.

Decides nothing else: everything that comes from outside as a name passes here before anything runs.
"""

from __future__ import annotations

from outlive import errors

LONGEST_NAME = 512
"""Characters that a thread's name, a key or a tenant may have."""


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
