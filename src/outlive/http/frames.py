"""How an event becomes bytes that no payload can break out of, and that every client reads alike.

Decides: the framing, and what an error may show. Does not decide: what an event says, or when one is sent.
"""

from __future__ import annotations

import json
import re
from typing import Final

from outlive import errors

HEARTBEAT: Final = b":\n"
"""A comment line without a blank line after it: with one, some clients deliver an empty message."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def frame(
    *,
    data: str,
    id: str | None = None,  # noqa: A002 - the field's name on the wire
    event: str | None = None,
    retry_ms: int | None = None,
) -> bytes:
    """One event as bytes. Nothing in `data` can end the frame or start another one.

    Each line of `data` gets a ``data:`` line of its own, so a client reads every line break as LF; text that
    must arrive exactly is sent as JSON. A lone surrogate in it becomes U+FFFD. The id comes last: a client
    that takes up a frame that was cut off then never moves its cursor past data that it did not get.

    Raises ValueError for an `id` or `event` that is empty (an empty id resets the client's cursor) or that
    holds a control character, a line separator or a lone surrogate, and for a `retry_ms` below zero.
    """
    lines = [] if event is None else [f"event: {_one_line('event', event)}"]
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    if retry_ms is not None:
        lines.append(_retry(retry_ms))
    if id is not None:
        lines.append(f"id: {_one_line('id', id)}")
    text = "\n".join((*lines, "", ""))
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def retry_hint(retry_ms: int) -> bytes:
    """When to connect again, to end a stream with. No blank line, so that no client makes an event of it."""
    return f"{_retry(retry_ms)}\n".encode()


def error_frame(failure: Exception) -> bytes:
    """An ``error`` event. Our own errors are written for the public; of others not even the name is shown."""
    known = failure if isinstance(failure, errors.OutliveError) else None
    body = {
        "code": known.code if known else "stream_failed",
        "message": known.message if known else "The stream failed on the server.",
        "hint": known.hint
        if known
        else "What was sent is valid. Connect again with the last event id to go on.",
    }
    if known and known.run_id:
        body["run_id"] = known.run_id
    return frame(event="error", data=json.dumps(body))


def _one_line(name: str, value: str) -> str:
    if not value or _UNSAFE.search(value):
        raise ValueError(f"the {name} of an event is one line of text that is not empty, not {value!r}")
    return value


def _retry(milliseconds: int) -> str:
    if milliseconds < 0:
        raise ValueError(f"retry_ms is a number of milliseconds from 0 up, not {milliseconds}")
    return f"retry: {milliseconds:d}"
