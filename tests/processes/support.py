"""How the tests here start a process and what they look on with."""

from __future__ import annotations

import pathlib
from typing import Any

from core import record
from outlive.testing.processes import Process

TESTS = pathlib.Path(__file__).parent.parent
SHORT = {"lease": 1.5, "renew_every": 0.1, "margin": 0.2}
"""Seconds, for tests that need a lease to run out although its holder's token is still held."""


def worker(database: str, **options: Any) -> Process:
    """A process that drives runs."""
    return Process(database, **{"agents": "processes.workload:agents", "path": [TESTS], **options})


def run_row(database: str, run_id: str) -> record.Row:
    """A run as the record has it."""
    (row,) = record.rows(database, f"SELECT * FROM runs WHERE run_id = '{run_id}'")
    return row
