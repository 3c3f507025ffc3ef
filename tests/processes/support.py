"""How the tests here start a process and what they look on with."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sqlite3
from typing import Any

from core import record
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


async def freeze(process: Process, database: str) -> None:
    """Freeze a process from outside, but not in the middle of a write.

    There it would hold SQLite's one lock, and nobody else would get anything done.
    """
    while True:
        process.freeze()
        await process.frozen()
        if not await asyncio.to_thread(locked, database):
            return
        process.thaw()


def locked(database: str) -> bool:
    """Whether somebody is in the middle of a write to a SQLite file."""
    if not database.startswith("sqlite"):
        return False
    path = database.removeprefix("sqlite:///")
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    return False
