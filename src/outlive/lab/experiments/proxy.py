"""When does the origin learn that a client behind nginx has left?"""

from __future__ import annotations

from collections.abc import Mapping

from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.probe import nginx, platform


def _play(bench: Bench) -> Measured:
    if nginx.binary() is None:
        raise Unavailable(nginx.ABSENT)
    bench.plan(1)
    found = platform.behind_nginx(bench.service().running)
    bench.step()
    rows = [{"configuration": name, **_facts(facts)} for name, facts in found.items()]
    steps = {str(row["configuration"]): int(str(row["steps_after_close"])) for row in rows}
    held = steps["defaults"] == steps["proxy_buffering off"] == 0 < steps["proxy_ignore_client_abort on"]
    return Measured(ok=held, rows=rows)


def _facts(facts: object) -> Mapping[str, object]:
    return facts if isinstance(facts, dict) else {}


EXPERIMENT = Experiment(
    name="proxy",
    title="The same disconnect behind nginx",
    asserts="Buffering hides no disconnect from the origin; ignoring aborts does, until the next writes.",
    play=_play,
)
