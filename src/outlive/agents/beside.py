"""Where the store of the runs is, there graphs keep their checkpoints and their items as well.

Decides which of LangGraph's own stores serves which database.
"""

from __future__ import annotations

import importlib
from typing import Any, assert_never

from outlive import errors
from outlive.agents import fenced_saver, items
from outlive.store import retry, sql


async def checkpoints(store: Any) -> fenced_saver.Checkpoints:
    """Return where an open store keeps checkpoints; raises ``SchemaMismatch``, ``StoreUnavailable``."""
    dialect: sql.Dialect = store.dialect
    match dialect:
        case sql.Dialect.SQLITE:
            module = _import("saver_sqlite")
            await _set_up(store, module.setup_sqlite)
            found: fenced_saver.Checkpoints = module.SqliteCheckpoints(store)
        case sql.Dialect.POSTGRESQL:
            module = _import("saver_postgres")
            await module.check_postgres(store)
            found = module.PostgresCheckpoints(store)
        case _:
            assert_never(dialect)
    return found


async def memory(store: Any) -> items.Keeping:
    """Return where an open store keeps graphs' items; raises ``SchemaMismatch``, ``StoreUnavailable``."""
    dialect: sql.Dialect = store.dialect
    match dialect:
        case sql.Dialect.SQLITE:
            module = _import("items_sqlite")
            await _set_up(store, module.setup_sqlite)
            found: items.Keeping = module.SqliteItems(store)
        case sql.Dialect.POSTGRESQL:
            module = _import("items_postgres")
            await module.check_postgres(store)
            found = module.PostgresItems(store)
        case _:
            assert_never(dialect)
    return found


async def _set_up(store: Any, work: Any) -> None:
    try:
        await store.in_writer(work)
    except retry.Transient as failure:
        raise errors.StoreUnavailable("LangGraph's tables could not be made: the file is busy.") from failure


def _import(name: str) -> Any:
    # By name, so that nobody needs the driver of a database that he does not use.
    try:
        return importlib.import_module(f"outlive.agents.{name}")
    except ImportError as missing:
        raise errors.Misconfigured(
            "LangGraph's store for this database is not installed.",
            hint="Run: pip install 'outlive[langgraph,postgres]'",
        ) from missing
