"""What a database URL names: a store, a schema to migrate, a file that is there or not.

The only module that names a concrete store.  PostgreSQL's is imported when a URL asks for it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from outlive import errors, signals
from outlive.store import Store, sqlite

T = TypeVar("T")


def open_store(database: str, direct: str | None, happenings: signals.Signals) -> Store:
    """Return the store that a URL names, not yet open; raises ``Misconfigured``."""
    return _dispatch(
        database,
        sqlite=functools.partial(_sqlite_store, happenings=happenings),
        postgres=functools.partial(_postgres_store, direct=direct, happenings=happenings),
    )


def migrate(database: str, *, include_post: bool = True) -> list[str]:
    """Bring a database's schema up to date; returns the migrations applied.  Blocks."""
    return _dispatch(
        database,
        sqlite=functools.partial(_migrate_sqlite, include_post=include_post),
        postgres=functools.partial(_migrate_postgres, include_post=include_post),
    )


def exists(database: str) -> bool:
    """Say whether a SQLite database's file is there; a server's databases are taken to be."""
    return _dispatch(database, sqlite=lambda path: Path(path).exists(), postgres=lambda _: True)


def _dispatch(database: str, *, sqlite: Callable[[str], T], postgres: Callable[[str], T]) -> T:
    scheme, colon, rest = database.partition(":")
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > len("///"):
        return sqlite(rest.removeprefix("///"))
    if scheme in ("postgresql", "postgres") and colon:
        return postgres(database)
    raise errors.Misconfigured(
        "The database URL is neither SQLite nor PostgreSQL.",
        hint="Use sqlite:///file.db (sqlite:////absolute/file.db) or postgresql://user@host/name.",
    )


def _sqlite_store(path: str, *, happenings: signals.Signals) -> Store:
    return sqlite.SqliteStore(path, happenings=happenings)


def _postgres_store(dsn: str, *, direct: str | None, happenings: signals.Signals) -> Store:
    postgres = _import_postgres()
    store: Store = postgres.PostgresStore(dsn, direct_dsn=direct, happenings=happenings)
    return store


def _import_postgres() -> Any:
    try:
        return importlib.import_module("outlive.store.postgres")
    except ImportError as missing:
        raise errors.Misconfigured(
            "PostgreSQL support is not installed.", hint="Run: pip install 'outlive[postgres]'"
        ) from missing


def _migrate_sqlite(path: str, *, include_post: bool) -> list[str]:
    return sqlite.migrate_file(path, include_post=include_post)


def _migrate_postgres(dsn: str, *, include_post: bool) -> list[str]:
    applied: list[str] = _import_postgres().migrate_database(dsn, include_post=include_post)
    if installed("langgraph.checkpoint.postgres"):
        importlib.import_module("outlive.agents.saver_postgres").setup_postgres(dsn)
    return applied


def installed(module: str) -> bool:
    """Say whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
