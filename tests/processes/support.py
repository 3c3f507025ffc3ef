"""How the tests here start a process and what they look on with."""

from __future__ import annotations

import pathlib
from typing import Any

from core import record
from core import support as core
from outlive.testing.processes import Process

TESTS = pathlib.Path(__file__).parent.parent
SHORT = {"lease": 1.5, "renew_every": 0.4, "margin": 0.2}
"""Seconds, for tests that need a lease to run out although its holder's token is still held."""


def worker(database: str, **options: Any) -> Process:
    """A process that drives runs."""
    return Process(database, **{"agents": "processes.workload:agents", "path": [TESTS], **options})


def run_row(database: str, run_id: str) -> record.Row:
    """A run as the record has it."""
    (row,) = record.rows(database, f"SELECT * FROM runs WHERE run_id = '{run_id}'")
    return row


async def just_renewed(database: str, run_id: str) -> None:
    """Wait for the next renewal: its process writes nothing for a while then.

    Frozen in the middle of a write, a process holds SQLite's one lock, and nobody else gets anything done.
    """
    before = run_row(database, run_id)["renewed_at"]
    await core.until(lambda: run_row(database, run_id)["renewed_at"] != before)
