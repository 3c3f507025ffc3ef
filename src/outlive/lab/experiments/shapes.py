"""Does the shape of the handler decide what a disconnect commits?"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlive.lab import figures, stage
from outlive.lab.experiment import Bench, Experiment, Figure, Measured
from outlive.probe import terminal
from outlive.probe.findings import Finding
from outlive.probe.plan import Outcome

#: All shapes drive the same four nodes, so one undisturbed run is the measure for all of them.
UNDISTURBED = "inline"

Opened = contextlib.AbstractContextManager[stage.Service]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A handler, and what a client that leaves is asserted to do to its run."""

    path: str
    outcome: Outcome
    chunks: int = 2
    like: str | None = UNDISTURBED


ARTICLE = (
    Shape(path="inline", outcome=Outcome.STOPS),
    Shape(path="background", outcome=Outcome.COMPLETES),
    Shape(path="shielded", outcome=Outcome.PARTIAL),
)
OTHERS = (
    Shape(path="polling", outcome=Outcome.STOPS),
    # The run begins when the response is over, so there are only two words to read before.
    Shape(path="after-response", outcome=Outcome.COMPLETES),
    Shape(path="sync", outcome=Outcome.COMPLETES, chunks=0),
    Shape(path="policy-abandon", outcome=Outcome.STOPS),
    Shape(path="policy-complete", outcome=Outcome.COMPLETES),
    Shape(path="anyio-shield", outcome=Outcome.COMPLETES),
    Shape(path="separate-worker", outcome=Outcome.COMPLETES),
)

# The policy decides, not the handler. Its first chunk says that the attempt began.
OUTLIVE = (
    Shape(path="cancel", outcome=Outcome.STOPS, chunks=3, like=None),
    Shape(path="continue", outcome=Outcome.COMPLETES, chunks=3, like=None),
)


@dataclass(frozen=True, kw_only=True)
class Store:
    """A service on some store, to be opened; None where the store is not to be had."""

    name: str
    open: Opened | None
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the shapes did on one store."""

    rows: list[Mapping[str, object]]
    drawn: list[Figure]
    held: bool = True


def _play(bench: Bench) -> Measured:
    stores = list(_stores(bench))
    bench.plan(sum(len(store.shapes) for store in stores if store.open))
    # Side by side they disturb each other a little, which does not matter for a quick look.
    with concurrent.futures.ThreadPoolExecutor(len(stores) if bench.options.quick else 1) as pool:
        seen = list(pool.map(lambda store: _on(bench, store), stores))
    return Measured(
        ok=all(one.held for one in seen),
        rows=[row for one in seen for row in one.rows],
        figures=[figure for one in seen for figure in one.drawn],
    )


def _on(bench: Bench, store: Store) -> Seen:
    if store.open is None:
        row = {"store": store.name, "shape": "-", "outcome": "not measured: no PostgreSQL here"}
        return Seen(rows=[row], drawn=[])
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    held = True
    with store.open as service:
        for shape in store.shapes:
            finding = _one(service, shape, returns=shape is ARTICLE[0] or not bench.options.quick)
            held &= finding.outcome is shape.outcome
            rows.append({"store": store.name, "shape": shape.path, **_row(finding)})
            if store.name == "SQLite" and shape in ARTICLE:
                drawn += figures.of(finding, f"{shape.path} on {store.name}")
            bench.step()
    return Seen(rows=rows, drawn=drawn, held=held)


def _stores(bench: Bench) -> Iterator[Store]:
    everything = ARTICLE + OTHERS
    yield Store(name="SQLite", open=contextlib.nullcontext(bench.service()), shapes=everything)
    shapes = ARTICLE[:1] if bench.options.quick else everything
    yield Store(name="PostgreSQL", open=_postgres(bench, "one", 1), shapes=shapes)
    if not bench.options.quick:
        yield Store(name="PostgreSQL, 4 workers", open=_postgres(bench, "four", 4), shapes=shapes)
    if stage.has_outlive():
        yield Store(name="Outlive on SQLite", open=stage.outlive(bench.place("outlive")), shapes=OUTLIVE)


def _postgres(bench: Bench, name: str, workers: int) -> Opened | None:
    database = bench.postgres()
    if database is None:
        return None
    return stage.service(bench.place(name), database, workers=workers, worker=True)


def _one(service: stage.Service, shape: Shape, *, returns: bool) -> Finding:
    if shape.chunks == 0:
        return service.play(shape.path, "leave-early", like=shape.like)
    name = "return" if returns else "leave"
    return service.play(shape.path, name, chunks=shape.chunks, like=shape.like)


def _row(finding: Finding) -> Mapping[str, object]:
    first = finding.at_return or finding.record
    return {
        "outcome": finding.outcome.value if finding.outcome else "-",
        "after leaving": ", ".join(finding.progress.after) if finding.progress else "-",
        "position": first.position.value if first else "-",
        "next": ", ".join(first.next) if first else "-",
        "executed in the end": terminal.counted(finding),
        "a returning user repeats": _repeats(finding),
    }


def _repeats(finding: Finding) -> str:
    if finding.trace.returned is None:
        return "nobody returned"
    return ", ".join(finding.repeated) or "nothing"


EXPERIMENT = Experiment(
    name="shapes",
    title="Handler shapes: the same agent, the same disconnect",
    asserts="Each shape stops, completes or half-completes as predicted, on every store.",
    play=_play,
)
