"""What do SIGKILL and SIGTERM leave, with the client there and with the client gone?"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from outlive.lab import figures, stage
from outlive.lab.experiment import Bench, Experiment, Figure, Measured
from outlive.probe import evidence, plan
from outlive.probe.client import Client
from outlive.probe.evidence.found import Position
from outlive.probe.findings import Finding
from outlive.probe.scenario import filled


def _play(bench: Bench) -> Measured:
    bench.plan(2 if bench.options.quick else 3)
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    with stage.service(bench.place("service"), str(bench.place("kill.db"))) as service:
        killed = service.play("inline", "sigkill")
        bench.step()
        told = None if bench.options.quick else service.play("inline", "sigterm")
        bench.step()
        detached = _detached(service)
        bench.step()
    for name, finding in (("SIGKILL, client there", killed), ("SIGTERM, client there", told)):
        if finding is None:
            continue
        rows.append({"case": name, **_row(finding)})
        drawn += figures.of(finding, name)[:1]
    rows.append({"case": "SIGTERM, detached run, client gone", **detached})
    torn = killed.at_return is not None and killed.at_return.position is Position.TORN
    held = torn and "charge" in killed.repeated and detached["position"] == Position.TORN.value
    return Measured(ok=held, rows=rows, figures=drawn)


def _row(finding: Finding) -> Mapping[str, object]:
    trace, record = finding.trace, finding.at_return
    return {
        "server exited after": f"{trace.exit_seconds} s" if trace.exited else "not in time",
        "position": record.position.value if record else "-",
        "client's stream": trace.views[0].how,
        "a returning user repeats": ", ".join(finding.repeated) or "-",
    }


def _detached(service: stage.Service) -> Mapping[str, object]:
    """The client leaves a detached run, and then the server is told to go: nothing drains the run."""
    thread, aim = "kill-detached", service.plan("background")
    client = Client(filled(aim, service.running.url, thread, 0, {}), thread)
    client.send()
    client.read(chunks=2, seconds=20)
    client.leave(plan.Leaving.FIN)
    began = time.monotonic()
    service.running.signal(signal.SIGTERM)
    exited = service.running.wait_for_exit(10)
    seconds = time.monotonic() - began
    service.running.stop()
    record = evidence.build(aim.evidence[0]).read(thread).record
    return {
        "server exited after": f"{seconds:.3f} s" if exited else "not in time",
        "position": record.position.value if record else "-",
        "client's stream": client.view.how,
        "a returning user repeats": "-",
    }


EXPERIMENT = Experiment(
    name="kill",
    title="Kill and SIGTERM",
    asserts="After a kill the thread is torn and the next message charges again; a detached run dies too.",
    play=_play,
)
