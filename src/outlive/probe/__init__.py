"""See what a disconnect commits, in anybody's ASGI service: a leaving client, evidence, and a plain verdict.

::

    plan = probe.Plan(target=probe.Target(app="service:app"), request=probe.Request(path="/chat"))
    report = probe.run(plan)

The probe decides nothing about the service and imports nothing else of Outlive.
"""

from __future__ import annotations

from outlive.probe.page import render
from outlive.probe.plan import (
    Behaviour,
    Failure,
    Leaving,
    Outcome,
    Plan,
    PlanError,
    Request,
    Scenario,
    Server,
    Source,
    Target,
    from_toml,
    scenarios,
)
from outlive.probe.report import Report, run
from outlive.probe.terminal import show

__all__ = [
    "Behaviour",
    "Failure",
    "Leaving",
    "Outcome",
    "Plan",
    "PlanError",
    "Report",
    "Request",
    "Scenario",
    "Server",
    "Source",
    "Target",
    "from_toml",
    "render",
    "run",
    "scenarios",
    "show",
]
