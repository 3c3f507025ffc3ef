"""How happenings look in a log: one line each, by a name and fields that programs can read.

Decides the form of a line.  What a happening holds is ``signals``' to say: ids, states and the names of
errors, never what a run was given, yielded or returned.
"""

from __future__ import annotations

import datetime
import json
import logging
import traceback
from typing import Any


class Json(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``event``, and the happening's own fields.

    A record that is about no happening has ``logger`` and ``message`` instead of those.  Of an exception
    there is its class and where it was raised, not its text: that may hold anything.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(_fields(record), default=str)


class Text(logging.Formatter):
    """The same fields as words: ``time LEVEL event name=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = _fields(record)
        head = [fields.pop("time"), fields.pop("level").upper(), fields.pop("event")]
        return " ".join([*head, *(f"{name}={_word(value)}" for name, value in fields.items())])


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    fields: dict[str, Any] = {
        "time": at.isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": getattr(record, "event", "log"),
    }
    happening = getattr(record, "happening", None)
    if happening is None:
        fields.update(logger=record.name, message=record.getMessage())
    else:
        fields.update({name: value for name, value in happening.items() if value is not None})
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = record.exc_info[0].__name__
        fields["raised"] = "".join(traceback.format_tb(record.exc_info[2]))
    return fields


def _word(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
