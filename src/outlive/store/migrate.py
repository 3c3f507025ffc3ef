"""Brings a database's schema to the version that this code needs.

Migrations are plain files, ``NNNN_words_pre.sql`` or ``..._post.sql``: *pre* may run while the old code still
serves, *post* only once it is gone.  A fresh schema is all of them in order.  Everything here blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from outlive import errors
from outlive.model import Row
from outlive.store.script import Statement, statement

LEDGER = "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One file."""

    name: str
    sql: str

    @property
    def post(self) -> bool:
        """True if it may only run once the old code is gone."""
        return self.name.endswith("_post")


class Connection(Protocol):
    """What migrating needs of a database connection: one statement at a time, inside a transaction."""

    def define(self, text: str) -> None:
        """Execute one statement that defines something."""
        ...

    def run(self, step: Statement) -> list[Row]:
        """Execute one block of ``queries.sql`` and return its rows."""
        ...


def known() -> list[Migration]:
    """Return every migration, in order."""
    folder = resources.files("outlive.store").joinpath("migrations")
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(name=file.removesuffix(".sql"), sql=folder.joinpath(file).read_text("utf-8"))
        for file in files
    ]


def apply(connection: Connection, *, include_post: bool = True) -> list[str]:
    """Apply what is missing, in one transaction that the caller owns; returns the names applied."""
    connection.define(LEDGER)
    done = applied(connection)
    names = []
    for migration in known():
        if migration.name in done or (migration.post and not include_post):
            continue
        for sql in _statements(migration.sql):
            connection.define(sql)
        connection.run(statement("record_migration", name=migration.name))
        names.append(migration.name)
    return names


def applied(connection: Connection) -> set[str]:
    """Return the names of the migrations that the database has."""
    if not connection.run(statement("has_ledger")):
        return set()
    return {row["name"] for row in connection.run(statement("applied_migrations"))}


def check(done: set[str]) -> None:
    """Raise ``SchemaMismatch`` unless this code can serve from the database.

    A *post* migration may be missing: it waits until the old code is gone.  One that this code does not know
    may not be there.
    """
    names = {migration.name for migration in known()}
    if missing := sorted(
        migration.name for migration in known() if not migration.post and migration.name not in done
    ):
        raise errors.SchemaMismatch(f"The database lacks {len(missing)} migration(s): {', '.join(missing)}.")
    if unknown := sorted(done - names):
        raise errors.SchemaMismatch(
            f"The database was migrated by a newer version ({', '.join(unknown)}).",
            hint="Run the version of Outlive that made it, or a newer one.",
        )


def _statements(sql: str) -> list[str]:
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
