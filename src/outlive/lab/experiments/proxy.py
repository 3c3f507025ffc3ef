"""When does the origin learn that a client behind nginx has left, and what does a handler make of it?"""

from __future__ import annotations

from collections.abc import Mapping

from outlive.lab import figures
from outlive.lab.experiment import Bench, Experiment, Figure, Measured, Unavailable
from outlive.probe import nginx, platform
from outlive.probe.findings import Finding
from outlive.probe.plan import Outcome

#: A stream that speaks all the time, and the booking, whose third node is silent for half a second.
TALKATIVE, SILENT = "a step every 0.3 s", "the inline booking, silent in `notify`"


def _play(bench: Bench) -> Measured:
    if nginx.binary() is None:
        raise Unavailable(nginx.ABSENT)
    bench.plan(1 + len(nginx.CONFIGURATIONS))
    talkative = platform.behind_nginx(bench.service().running)
    bench.step()
    rows: list[Mapping[str, object]] = [
        {"origin": TALKATIVE, "configuration": name, **_facts(facts)} for name, facts in talkative.items()
    ]
    outcomes: dict[str, Outcome | None] = {}
    drawn: list[Figure] = []
    for name, options in nginx.CONFIGURATIONS.items():
        with nginx.proxy(bench.service().running.url, options) as url:
            finding = bench.service().play("inline", "leave", url=url)
        outcomes[name] = finding.outcome
        rows.append({"origin": SILENT, "configuration": name, **_seen(finding)})
        drawn += figures.of(finding, f"inline behind nginx, {name}")[:1]
        bench.step()
    return Measured(ok=_at_once(rows) and _as_asserted(outcomes), rows=rows, figures=drawn)


def _at_once(rows: list[Mapping[str, object]]) -> bool:
    steps = {
        str(row["configuration"]): int(str(row["steps after"])) for row in rows if row["origin"] == TALKATIVE
    }
    return steps["defaults"] == steps["proxy_buffering off"] == 0 < steps["proxy_ignore_client_abort on"]


def _as_asserted(outcomes: Mapping[str, Outcome | None]) -> bool:
    ignoring = outcomes["proxy_ignore_client_abort on"]
    told = {outcome for name, outcome in outcomes.items() if name != "proxy_ignore_client_abort on"}
    return told == {Outcome.STOPS} and ignoring in {Outcome.PARTIAL, Outcome.COMPLETES}


def _facts(facts: object) -> Mapping[str, object]:
    seen = facts if isinstance(facts, dict) else {}
    return {
        "cancelled after": _seconds(seen.get("time_to_cancel")),
        "exception": seen.get("exception") or "-",
        "steps after": seen.get("steps_after_close"),
        "await in finally": "finished" if seen.get("finally_await_finished") else "cut off",
        "background task": "ran" if seen.get("background_task_ran") else "-",
        "outcome": "-",
    }


def _seen(finding: Finding) -> Mapping[str, object]:
    seen = finding.platform
    return {
        "cancelled after": _seconds(seen.time_to_cancel),
        "exception": seen.exception or "-",
        "steps after": seen.steps_after_close,
        "outcome": finding.outcome.value if finding.outcome else "-",
    }


def _seconds(seconds: object) -> str:
    return f"{seconds:.2f} s" if isinstance(seconds, float) else "never"


EXPERIMENT = Experiment(
    name="proxy",
    title="The same disconnect behind nginx",
    asserts="Buffering hides no disconnect; ignoring aborts does, so that an inline handler does not stop.",
    play=_play,
)
