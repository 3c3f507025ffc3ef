"""How does a run look as one trace when the worker that drives it is killed?"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from outlive import databases, runtime
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable

WIDTH = 40
"""Characters of a timeline."""


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive() or not all(
        map(databases.installed, ("opentelemetry.sdk", "standardwebhooks"))
    ):
        raise Unavailable("this installation cannot serve agents, send webhooks and record spans")
    sharing = importlib.import_module("outlive.testing.sharing")
    stores = {"sqlite": f"sqlite:///{bench.place('trace.db')}"}
    if not bench.options.quick and (dsn := bench.postgres()) is not None:
        stores["postgresql"] = dsn
    bench.plan(len(stores))
    rows: list[Mapping[str, object]] = []
    held = True
    for store, database in stores.items():
        runtime.migrate(database)
        spans = asyncio.run(sharing.shared(database))
        held &= _one_trace([each.span for each in spans])
        rows += [{"store": store, **row} for row in _rows(sharing.in_order(spans))]
        bench.step()
    return Measured(ok=held, rows=rows)


def _one_trace(spans: Sequence[Any]) -> bool:
    """Whether all of it is one trace that tells of the loss, and of a charge that was not made again."""
    charges = [span.about.get("ledger") for span in spans if span.name == "effect charge"]
    names = {span.name for span in spans}
    return (
        len({span.trace for span in spans}) == 1
        and sum(span.parent is None for span in spans) == 1
        and {"run.submit", "run.lost", "run.attempt", "effect ship", "notification"} <= names
        and charges.count(None) == 1
        and charges.count("answer") == 1
    )


def _rows(ordered: Sequence[tuple[int, Any]]) -> list[Mapping[str, object]]:
    """The tree as text, each span with its place in time."""
    begun = min(each.span.begun for _, each in ordered)
    whole = max(each.span.ended for _, each in ordered) - begun
    return [
        {
            "span": _branch(depth, each.span),
            "process": each.process,
            "epoch": each.span.about.get("epoch", ""),
            "state": each.span.about.get("state", ""),
            "at, s": f"{each.span.begun - begun:.2f}",
            "when": _bar((each.span.begun - begun) / whole, (each.span.ended - begun) / whole),
        }
        for depth, each in ordered
    ]


def _branch(depth: int, span: Any) -> str:
    if depth == 0 and span.parent is not None:
        return f"(of the attempt that was killed) {span.name}"
    return f"{'   ' * (depth - 1)}{'└─ ' * (depth > 0)}{span.name}"


def _bar(begin: float, end: float) -> str:
    first, last = int(begin * (WIDTH - 1)), int(end * (WIDTH - 1))
    return "·" * first + "█" * (last - first + 1) + "·" * (WIDTH - 1 - last)


EXPERIMENT = Experiment(
    name="trace",
    title="One trace of two workers",
    asserts="All spans of a run are one trace, although the worker that began it was killed: its attempt is"
    " told by who took the run from it, and its charge is not made again.",
    play=_play,
)
