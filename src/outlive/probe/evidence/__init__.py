"""Where a service leaves traces: one small class per kind, all answering `begin` and `read`.

A kind decides how a place is read. What the traces mean together is decided in `findings`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from outlive.probe.evidence import checkpoints, effect_log, endpoint, outlive_api, sql
from outlive.probe.evidence.found import Found
from outlive.probe.plan import PlanError, Source

Answer = TypeVar("Answer")


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


def build(source: Source, *, directory: pathlib.Path | None = None, url: str = "") -> Evidence:
    """The evidence that a plan names. Raises `PlanError` for an unknown kind or setting.

    A relative path is looked up where the service runs (`directory`), since it is the service that writes
    there; an address without a host is the service's own (`url`).
    """
    if source.kind not in KINDS:
        raise PlanError(f"There is no evidence of kind {source.kind!r}. Known: {', '.join(KINDS)}.")
    settings = dict(source.settings)
    if directory is not None and "path" in settings:
        settings["path"] = str(directory / settings["path"])
    if directory is not None and sql.is_file(str(settings.get("database", "a=b"))):
        settings["database"] = str(directory / settings["database"])
    if str(settings.get("url", "x")).startswith("/") or settings.get("url") == "":
        settings["url"] = url + settings["url"]
    try:
        return _Readable(source.kind, KINDS[source.kind](**settings))
    except TypeError as exc:
        raise PlanError(f"Evidence {source.kind!r}: {exc}.") from exc


class _Readable:
    """Evidence whose trouble is told as what it is: a plan that names a place that cannot be read."""

    def __init__(self, kind: str, inner: Evidence) -> None:
        self._kind = kind
        self._inner = inner

    def begin(self, thread: str) -> None:
        self._ask(self._inner.begin, thread)

    def read(self, thread: str) -> Found:
        return self._ask(self._inner.read, thread)

    def _ask(self, question: Callable[[str], Answer], thread: str) -> Answer:
        try:
            return question(thread)
        except PlanError:
            raise
        except ModuleNotFoundError as exc:
            raise PlanError(
                f"Evidence {self._kind!r} needs {exc.name}, which is not installed here."
            ) from exc
        except Exception as exc:  # drivers have trees of errors of their own
            raise PlanError(f"Evidence {self._kind!r} cannot be read: {type(exc).__name__}: {exc}") from exc


__all__ = ["KINDS", "Evidence", "Found", "build"]
