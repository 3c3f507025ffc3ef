"""Deterministic simulation: whole fleets of Outlive processes in virtual time, under seeded faults.

The code under test is the real one: commands, worker, lease, execution, subscription, presence, sweeper, and
the real ``queries.sql`` on a real SQLite, whose clock is bound to the simulation.  What is simulated is the
world: time, latency, lost replies, wake-ups, processes that stall, freeze, die and restart, and clients that
leave and come back.  A checker then reads the whole history.  The same seed gives the same history, always.
"""

from __future__ import annotations

from outlive.testing.simulation.application import PromiseBroken, Report, simulate_agent
from outlive.testing.simulation.checker import Violation
from outlive.testing.simulation.plan import Plan, generate
from outlive.testing.simulation.shrink import as_python, shrink
from outlive.testing.simulation.simulate import Result, Sabotage, simulate

__all__ = [
    "Plan",
    "PromiseBroken",
    "Report",
    "Result",
    "Sabotage",
    "Violation",
    "as_python",
    "generate",
    "shrink",
    "simulate",
    "simulate_agent",
]
