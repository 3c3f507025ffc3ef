"""Does the durability mode change what a disconnect does, or only what is written down about it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from outlive.lab import figures
from outlive.lab.experiment import Bench, Experiment, Figure, Measured
from outlive.probe.evidence.found import Position
from outlive.probe.findings import Finding

MODES = ("sync", "async", "exit")


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=5, quick=1)
    bench.plan(trials * len(MODES))
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    held = True
    service = bench.service()
    for mode in MODES:
        for trial in range(trials):
            finding = service.play(f"inline?durability={mode}", "return", like="inline")
            held &= _as_asserted(mode, finding)
            rows.append({"durability": mode, "trial": trial + 1, **_row(finding)})
            bench.step()
            if trial == 0:
                drawn += figures.of(finding, f"durability={mode}, left and then one more message")
    return Measured(ok=held, rows=rows, figures=[_bars(rows), *drawn])


def _as_asserted(mode: str, finding: Finding) -> bool:
    assert finding.record is not None
    assert finding.at_return is not None
    if finding.executed["charge"] != 2:
        return False
    if mode == "exit":
        looks_clean = finding.record.head == ("plan", "charge", "notify", "finish")
        return finding.at_return.position is Position.NONE and looks_clean
    return finding.at_return.position is Position.TORN


def _row(finding: Finding) -> Mapping[str, object]:
    assert finding.record is not None
    assert finding.at_return is not None
    return {
        "position when left": finding.at_return.position.value,
        "next when left": ", ".join(finding.at_return.next) or "-",
        "pending when left": ", ".join(finding.at_return.tasks) or "-",
        "checkpoints when left": len(finding.at_return.checkpoints),
        "charges executed": finding.executed["charge"],
        "charges in the state": Counter(finding.record.head)["charge"],
    }


def _bars(rows: list[Mapping[str, object]]) -> Figure:
    values = [
        (
            f"{row['durability']} {row['trial']}",
            {
                "executed": int(str(row["charges executed"])),
                "recorded": int(str(row["charges in the state"])),
            },
        )
        for row in rows
    ]
    return figures.bars("Charges after one more message", values)


EXPERIMENT = Experiment(
    name="durability",
    title="Durability modes, then one more message",
    asserts="Both charges execute in every mode; `exit` leaves no trace of the first and ends looking clean.",
    play=_play,
)
