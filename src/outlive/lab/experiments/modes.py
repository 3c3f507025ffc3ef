"""Does a cut between two chunks stop the node that is in flight, whatever is streamed?"""

from __future__ import annotations

from collections.abc import Mapping

from outlive.lab import figures
from outlive.lab.experiment import Bench, Experiment, Figure, Measured, interval
from outlive.probe.findings import Finding

#: Path, chunks after which the client leaves, and the node that is then in flight.
CUTS = {
    "updates, one node at a time": ("inline", 2, "notify"),
    "updates, parallel nodes": ("inline?graph=parallel", 2, "charge"),
    "custom": ("inline?graph=talkative&mode=custom", 2, "charge"),
    "messages and updates": ("inline?graph=parallel&mode=messages,updates", 2, "charge"),
    "subgraph": ("inline?graph=nested&nested=true", 2, "book/notify"),
}


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=20, quick=1)
    bench.plan(trials * len(CUTS))
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    service = bench.service()
    for name, (path, chunks, node) in CUTS.items():
        found: list[Finding] = []
        for _ in range(trials):
            found.append(service.play(path, "leave", chunks=chunks))
            bench.step()
        rows.append(_row(name, node, found))
        drawn += figures.of(found[0], name)[:1]
    plainly = str(rows[0]["completed after leaving"]).startswith("0 of")
    others = all(str(row["completed after leaving"]).startswith(f"{trials} of") for row in rows[1:])
    return Measured(ok=plainly and others, rows=rows, figures=drawn)


def _row(name: str, node: str, found: list[Finding]) -> Mapping[str, object]:
    completed = [f for f in found if f.progress is not None and f.progress.after[node]]
    unrecorded = [f for f in completed if f.unrecorded[node]]
    return {
        "streamed": name,
        "in flight": node,
        "completed after leaving": interval(len(completed), len(found)),
        "and is in no checkpoint": interval(len(unrecorded), len(found)),
        "position": ", ".join(dict.fromkeys(f.record.position.value for f in found if f.record)),
    }


EXPERIMENT = Experiment(
    name="modes",
    title="The same cut with parallel nodes, other stream modes and subgraphs",
    asserts="Only one node at a time in `updates` mode is stopped by the cut; in all others it completes.",
    play=_play,
)
