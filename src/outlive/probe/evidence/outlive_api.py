"""Outlive's own API over HTTP: the runs of the probed thread, with their states, reasons and recorded events.

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
        self._url = url.rstrip("/")
        self._runs = self._url + runs
        self._headers = {**(headers or {}), "accept": "application/json"}

    def begin(self, thread: str) -> None:
        """Each scenario has a thread of its own, so there is nothing to remember."""

    def read(self, thread: str) -> Found:
        body = endpoint.get(self._runs.replace("{thread}", thread), self._headers)["body"]
        runs = list(_dicts(body, "runs"))
        steps = sum((self._chunks(str(run.get("run_id"))) for run in runs), Counter[str]())
        return Found(source="outlive", facts={"runs": runs or body}, steps=steps)

    def _chunks(self, run: str) -> Counter[str]:
        # What else is on record (attempts, notes, the end) is Outlive's word and not the agent's work.
        body = endpoint.get(f"{self._url}/runs/{run}/events", self._headers)["body"]
        return Counter("event" for event in _dicts(body, "events") if event.get("kind") == "chunk")


def runs_of(found: Found) -> list[str]:
    """The states of the runs that this evidence tells of, oldest first, with their reasons."""
    runs = list(_dicts(found.facts, "runs"))[::-1] if found.source == "outlive" else []
    return [" ".join([str(run.get("state")), *_because(run)]) for run in runs]


def _because(run: Mapping[str, Any]) -> list[str]:
    return [f"({run['reason']})"] if run.get("reason") else []


def _dicts(body: object, name: str) -> Iterator[dict[str, Any]]:
    rows = body.get(name, ()) if isinstance(body, Mapping) else body
    if isinstance(rows, list | tuple):
        yield from (row for row in rows if isinstance(row, dict))
