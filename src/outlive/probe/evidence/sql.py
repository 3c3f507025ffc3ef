"""Any table of the service: a query whose rows name effects, or are shown as they are."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sqlite3
import urllib.parse
from collections import Counter
from typing import Any

from outlive.probe.evidence.found import Found
from outlive.probe.plan import PlanError


def is_file(database: str) -> bool:
    """Whether it is the path of a SQLite file, and no DSN."""
    return "://" not in database and "=" not in database


class Query:
    """`database` is a PostgreSQL DSN or the path of a SQLite file; `{thread}` is bound, not pasted.

    With `effects`, each row is one effect, named by its first column; earlier rows do not count.
    """

    def __init__(self, database: str, query: str, *, effects: bool = False) -> None:
        self._database = database
        self._query = query
        self._effects = effects
        self._before: Counter[str] = Counter()

    def begin(self, thread: str) -> None:
        try:
            self._before = self._counted(self._rows(thread)) if self._effects else Counter()
        except Exception:
            self._before = Counter()  # often the first effect makes the table; if not, reading will say so

    def read(self, thread: str) -> Found:
        rows = self._rows(thread)
        if self._effects:
            return Found(source="sql", effects=self._counted(rows) - self._before)
        return Found(source="sql", facts={self._query: [list(map(str, row)) for row in rows]})

    def _counted(self, rows: list[tuple[Any, ...]]) -> Counter[str]:
        return Counter(str(row[0]) for row in rows)

    def _rows(self, thread: str) -> list[tuple[Any, ...]]:
        values = {"thread": thread}
        if not is_file(self._database):
            psycopg: Any = importlib.import_module("psycopg")
            with psycopg.connect(self._database) as connection:
                query = self._query.replace("%", "%%").replace("{thread}", "%(thread)s").encode()
                return list(connection.execute(query, values).fetchall())
        if not pathlib.Path(self._database).exists():
            raise PlanError(f"{self._database} does not exist: a query's database is a DSN or a SQLite file.")
        place = f"file:{urllib.parse.quote(self._database)}?mode=ro"
        with contextlib.closing(sqlite3.connect(place, uri=True)) as connection:
            return connection.execute(self._query.replace("{thread}", ":thread"), values).fetchall()
