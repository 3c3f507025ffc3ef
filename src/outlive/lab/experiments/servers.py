"""Does the same policy have the same outcome on every ASGI server, with and without middleware?"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.probe.evidence import outlive_api
from outlive.probe.findings import Finding
from outlive.probe.plan import Outcome, Server
from outlive.probe.servers import installed

#: Attempt, plan, charge: then the client leaves.
CHUNKS = 3


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server, and what else it is told."""

    name: str
    server: Server
    arguments: tuple[str, ...] = ()
    needs: str = ""

    @property
    def here(self) -> bool:
        return installed(self.server) and (not self.needs or importlib.util.find_spec(self.needs) is not None)


SERVERS = (
    Served(
        name="uvicorn (httptools)",
        server=Server.UVICORN,
        needs="httptools",
        arguments=("--http", "httptools"),
    ),
    Served(name="uvicorn (h11)", server=Server.UVICORN, arguments=("--http", "h11")),
    Served(
        name="gunicorn -k uvicorn_worker",
        server=Server.GUNICORN,
        needs="uvicorn_worker",
        arguments=("-k", "uvicorn_worker.UvicornWorker"),
    ),
    Served(name="gunicorn -k asgi", server=Server.GUNICORN),
    Served(name="granian", server=Server.GRANIAN),
    Served(name="hypercorn", server=Server.HYPERCORN),
)
POLICIES = {"cancel": Outcome.STOPS, "continue": Outcome.COMPLETES}


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive():
        raise Unavailable("this installation cannot serve agents")
    quick = bench.options.quick
    leavings = ("leave",) if quick else ("leave", "leave-rst", "leave-early")
    arrangements = [
        (served, middleware)
        for served in (SERVERS[1:2] if quick else SERVERS)
        for middleware in ((True,) if quick else (False, True))
    ]
    bench.plan(len(arrangements) * len(POLICIES) * len(leavings))
    rows: list[Mapping[str, object]] = []
    for number, (served, middleware) in enumerate(arrangements):
        head = {"server": served.name, "middleware": "BaseHTTPMiddleware" if middleware else "none"}
        if not served.here:
            rows.append({**head, "as declared": "not installed"})
            continue
        found = dict(_left(bench, number, served, leavings, middleware=middleware))
        said = {f"{policy}, {leaving}": _said(finding) for (policy, leaving), finding in found.items()}
        held = all(finding.outcome is POLICIES[policy] for (policy, _), finding in found.items())
        rows.append({**head, **said, "as declared": held})
    return Measured(ok=all(row["as declared"] for row in rows), rows=rows)


def _left(
    bench: Bench, number: int, served: Served, leavings: tuple[str, ...], *, middleware: bool
) -> Iterator[tuple[tuple[str, str], Finding]]:
    with stage.outlive(
        bench.place(f"served-{number}"),
        server=served.server,
        arguments=served.arguments,
        middleware=middleware,
    ) as service:
        for policy, leaving in itertools.product(POLICIES, leavings):
            yield (policy, leaving), service.play(policy, leaving, chunks=CHUNKS)
            bench.step()


def _said(finding: Finding) -> str:
    runs = [run for found in finding.trace.at_end for run in outlive_api.runs_of(found)]
    executed = [
        f"{count}x {node}" if count > 1 else node for node, count in finding.executed.items() if count
    ]
    return f"{', '.join(runs)} after {', '.join(executed) or 'nothing'}"


EXPERIMENT = Experiment(
    name="servers",
    title="The same policies on every ASGI server",
    asserts="A disconnect has the outcome that the policy declares, on every server, behind middleware too.",
    play=_play,
)
