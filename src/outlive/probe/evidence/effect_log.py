"""A file to which the service appends a line per effect: the friendliest witness of what really executed."""

from __future__ import annotations

import json
import pathlib
from collections import Counter

from outlive.probe.evidence.found import Found
from outlive.probe.plan import PlanError

#: In a line that is a JSON object, the first of these that is present names the effect.
NAMES = ("effect", "name", "node", "kind")


class EffectLog:
    """Lines are JSON objects, or fields separated by tabs or spaces; `column` (from 0) names the effect.

    With `thread_column`, lines of other threads are left out.
    """

    def __init__(self, path: str, column: int = 0, thread_column: int | None = None) -> None:
        self._path = pathlib.Path(path)
        self._column = column
        self._thread_column = thread_column
        self._from = 0

    def begin(self, thread: str) -> None:
        self._from = self._path.stat().st_size if self._path.exists() else 0

    def read(self, thread: str) -> Found:
        if not self._path.exists():
            return Found(source="effect-log", effects={})
        new = self._path.read_bytes()[self._from :].decode("utf-8", "replace")
        lines = [line for line in new.splitlines() if line.strip()]
        return Found(
            source="effect-log", effects=Counter(filter(None, (self._name(x, thread) for x in lines)))
        )

    def _name(self, line: str, thread: str) -> str | None:
        if line.startswith("{"):
            try:
                fields = json.loads(line)
            except ValueError as exc:
                raise PlanError(f"{self._path} has a line that is no JSON: {line[:80]!r}.") from exc
            return next((str(fields[name]) for name in NAMES if name in fields), None)
        words = line.split("\t") if "\t" in line else line.split()
        if self._thread_column is not None and self._word(words, self._thread_column, line) != thread:
            return None
        return self._word(words, self._column, line)

    def _word(self, words: list[str], column: int, line: str) -> str:
        if column >= len(words):
            raise PlanError(f"{self._path} has a line without column {column}: {line[:80]!r}.")
        return words[column]
