"""Where a service leaves traces: one small class per kind, all answering `begin` and `read`.

A kind decides how a place is read. What the traces mean together is decided in `findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from outlive.probe.evidence import checkpoints, effect_log, endpoint, outlive_api, sql
from outlive.probe.evidence.found import Found
from outlive.probe.plan import PlanError, Source


class Evidence(Protocol):
    """One place with evidence. `begin` remembers how things stand; `read` tells what a scenario added."""

    def begin(self, thread: str) -> None: ...

    def read(self, thread: str) -> Found: ...


KINDS: Mapping[str, Callable[..., Evidence]] = {
    "langgraph-sqlite": checkpoints.Sqlite,
    "langgraph-postgres": checkpoints.Postgres,
    "effect-log": effect_log.EffectLog,
    "sql": sql.Query,
    "http": endpoint.Endpoint,
    "outlive": outlive_api.Runs,
}


def build(source: Source) -> Evidence:
    """The evidence that a plan names. Raises `PlanError` for an unknown kind or setting."""
    if source.kind not in KINDS:
        raise PlanError(f"There is no evidence of kind {source.kind!r}. Known: {', '.join(KINDS)}.")
    try:
        return KINDS[source.kind](**source.settings)
    except TypeError as exc:
        raise PlanError(f"Evidence {source.kind!r}: {exc}.") from exc


__all__ = ["KINDS", "Evidence", "Found", "build"]
