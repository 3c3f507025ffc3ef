"""What do the same disconnects, clicks and kills commit when Outlive serves the agent?"""

from __future__ import annotations

from collections.abc import Mapping

from outlive.lab import figures, stage
from outlive.lab.experiment import Bench, Experiment, Figure, Measured, Unavailable
from outlive.probe import terminal
from outlive.probe.evidence import outlive_api
from outlive.probe.findings import Finding
from outlive.probe.plan import Outcome

#: Attempt, plan, charge: then the client leaves, or the server is told to go.
CHUNKS = 3

QUICK = (("cancel", "leave"), ("continue", "leave"), ("continue", "double-click"), ("continue", "reconnect"))
FULL = (
    *QUICK,
    ("cancel", "return"),
    ("continue", "return"),
    ("continue", "sigterm"),
    ("continue", "sigkill"),
)

#: How often `charge` executes for what the user asked for. A new message on a stopped thread starts over.
CHARGES = {"leave": 1, "double-click": 1, "reconnect": 1, "return": 2, "sigterm": 2, "sigkill": 2}


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive():
        raise Unavailable("this installation cannot serve agents")
    cases = QUICK if bench.options.quick else FULL
    bench.plan(len(cases))
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    held = True
    with stage.outlive(bench.place("service")) as service:
        for policy, behaviour in cases:
            finding = service.play(policy, behaviour, chunks=CHUNKS)
            held &= _as_asserted(policy, behaviour, finding)
            rows.append({"on_disconnect": policy, "client or server": behaviour, **_row(finding)})
            drawn += figures.of(finding, f"{policy}, {behaviour}")
            bench.step()
    return Measured(ok=held, rows=rows, figures=drawn)


def _as_asserted(policy: str, behaviour: str, finding: Finding) -> bool:
    if finding.executed["charge"] != CHARGES[behaviour]:
        return False
    if behaviour in {"leave", "return"}:
        return finding.outcome is (Outcome.STOPS if policy == "cancel" else Outcome.COMPLETES)
    if behaviour in {"sigterm", "sigkill"}:
        return not finding.repeated and (finding.picked_up or finding.outcome is Outcome.COMPLETES)
    return not finding.repeated


def _row(finding: Finding) -> Mapping[str, object]:
    runs = [run for found in finding.trace.at_end for run in outlive_api.runs_of(found)]
    return {
        "outcome": finding.outcome.value if finding.outcome else "-",
        "executed": terminal.counted(finding),
        "repeated": ", ".join(finding.repeated) or "-",
        "picked up and finished": finding.picked_up,
        "runs on record": ", ".join(runs),
    }


EXPERIMENT = Experiment(
    name="outlive",
    title="The same agent served by Outlive",
    asserts="The policy decides; a double click and a reconnect execute once; a lost run is picked up.",
    play=_play,
)
