"""Looks into the database again and again while the demonstration runs.

What is committed together can only be seen from outside, by somebody who looks in between.  Decides nothing:
what it saw goes into the evidence.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from pathlib import Path
from typing import Self

EVERY = 0.02
"""Seconds between two looks."""
TORN = """
SELECT t.external_id AS thread, r.run_id, r.state FROM runs r JOIN threads t ON t.thread_id = r.thread_id
WHERE (r.state NOT IN ('queued', 'running'))
    <> EXISTS (SELECT 1 FROM events e WHERE e.run_id = r.run_id AND e.kind = 'end')
"""
DOUBLE = """
SELECT t.external_id AS thread, count(*) AS running FROM runs r JOIN threads t ON t.thread_id = r.thread_id
WHERE r.state = 'running' GROUP BY r.thread_id HAVING count(*) > 1
"""


class Looks:
    """A thread that looks, for as long as the context lasts; then writes down what it saw."""

    def __init__(self, database: Path, report: Path) -> None:
        self._database = database
        self._report = report
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="demo-looks")
        self._count = 0
        self._torn: dict[str, str] = {}
        self._double: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        seen = {"looks": self._count, "torn": self._torn, "double": self._double}
        self._report.write_text(json.dumps(seen) + "\n", encoding="utf-8")

    def _look_on(self) -> None:
        with contextlib.closing(sqlite3.connect(self._database, timeout=5)) as connection:
            connection.execute("PRAGMA query_only = ON")
            while not self._over.wait(EVERY):
                self._look(connection)

    def _look(self, connection: sqlite3.Connection) -> None:
        self._count += 1
        for thread, run_id, state in connection.execute(TORN):
            self._torn[thread] = f"run {run_id} was seen as {state} without agreeing with its events"
        for thread, running in connection.execute(DOUBLE):
            self._double[thread] = max(running, self._double.get(thread, 0))
