"""Outlive's own API over HTTP: the runs of the probed thread, with their states, reasons and effects.

Only the wire is used, so that the probe sees what any client would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from outlive.probe.evidence import endpoint
from outlive.probe.evidence.found import Found


class Runs:
    """`url` is where the service answers; the runs of a thread are listed at `runs`."""

    def __init__(
        self, url: str, runs: str = "/runs?thread={thread}", headers: Mapping[str, str] | None = None
    ) -> None:
        self._url = url.rstrip("/") + runs
        self._headers = dict(headers or {})

    def begin(self, thread: str) -> None:
        """Each scenario has a thread of its own, so there is nothing to remember."""

    def read(self, thread: str) -> Found:
        body = endpoint.get(self._url.replace("{thread}", thread), self._headers)["body"]
        runs = list(_runs(body))
        facts = {"runs": runs or body}
        effects = Counter(name for run in runs for name in _effects(run))
        return Found(source="outlive", facts=facts, effects=effects if effects else None)


def _runs(body: object) -> Iterator[dict[str, Any]]:
    rows = body.get("runs", ()) if isinstance(body, dict) else body
    if isinstance(rows, list | tuple):
        yield from (row for row in rows if isinstance(row, dict))


def _effects(run: dict[str, Any]) -> Iterator[str]:
    for effect in run.get("effects", ()):
        yield str(effect.get("name", effect)) if isinstance(effect, dict) else str(effect)
