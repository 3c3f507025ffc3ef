"""Reads of the ledger as scripts.  They write and lock nothing."""

from __future__ import annotations

from collections.abc import Sequence

from outlive import errors
from outlive.ledger import Effect
from outlive.store import effect_steps
from outlive.store.script import Steps, script, statement


@script(reads=True)
def effect(effect_id: str, tenant: str | None) -> Steps[Effect]:
    """Return one effect; raises ``NotFound``."""
    rows = yield statement("effect", effect_id=effect_id, tenant=tenant)
    if not rows:
        raise errors.NotFound(f"There is no effect {effect_id}.", field="effect_id")
    return Effect.from_row(rows[0])


@script(reads=True)
def newest(tenant: str, name: str, key: str) -> Steps[Effect | None]:
    """Return the newest generation of a key, if there is one."""
    rows = yield statement("find_effect", tenant=tenant, name=name, key=key)
    return Effect.from_row(rows[0]) if rows else None


@script(reads=True)
def effects(tenant: str, *, limit: int, unsettled: bool = False) -> Steps[list[Effect]]:
    """Return up to ``limit`` effects, newest first; or those whose outcome is open, oldest first."""
    if unsettled:
        rows = yield statement("list_unsettled_effects", tenant=tenant, limit=limit)
    else:
        rows = yield statement("list_effects", tenant=tenant, limit=limit)
    return [Effect.from_row(row) for row in rows]


@script(reads=True)
def of_run(origin: str, limit: int) -> Steps[list[Effect]]:
    """Return the effects of a chain of runs, in the order in which they were wished for."""
    rows = yield statement("list_effects_of", origin=origin, limit=limit)
    return [Effect.from_row(row) for row in rows]


@script(reads=True)
def of_thread(thread_id: str, limit: int) -> Steps[list[Effect]]:
    """Return the newest effects of a thread's runs, newest first."""
    rows = yield statement("list_effects_of_thread", thread_id=thread_id, limit=limit)
    return [Effect.from_row(row) for row in rows]


@script(reads=True)
def summary(origin: str) -> Steps[effect_steps.Summary | None]:
    """Return how many effects of a chain stand how; None without effects."""
    counted = yield statement("count_effects", origin=origin)
    return effect_steps.summarised([dict(row) for row in counted]) if counted else None


@script(reads=True)
def due(origin: str) -> Steps[Sequence[Effect]]:
    """Return what the end of a chain has released or has to undo, in the order of the wishes."""
    rows = yield statement("due_effects", origin=origin)
    return [Effect.from_row(row) for row in rows]
