"""The checkpoints beside the runs, as transactions: where each stands among the others, and copies of all.

What is in a checkpoint is LangGraph's affair; here are only the addresses and what is said of each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from outlive import errors
from outlive.model import Thread
from outlive.store.script import Steps, script, statement

_MARKS = {"__interrupt__": "asks", "__error__": "failed"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One checkpoint's address, its parent's, and what its metadata says.

    ``marks``: ``asks`` if a task paused there with a question, ``failed`` if one failed there.
    """

    namespace: str
    checkpoint_id: str
    parent: str | None
    metadata: dict[str, Any]
    marks: tuple[str, ...] = ()


@script(reads=True)
def marks(thread_id: str, limit: int) -> Steps[list[Mark]]:
    """Return up to ``limit`` checkpoints of a thread, its subgraphs' too, newest first."""
    if not (yield statement("has_checkpoints")):
        return []
    rows = yield statement("list_checkpoints", thread_id=thread_id, limit=limit)
    said = yield statement("marked_checkpoints", thread_id=thread_id)
    found: dict[tuple[str, str], set[str]] = {}
    for row in said:
        found.setdefault((row["checkpoint_ns"], row["checkpoint_id"]), set()).add(_MARKS[row["channel"]])
    return [
        Mark(
            namespace=row["checkpoint_ns"],
            checkpoint_id=row["checkpoint_id"],
            parent=row["parent_checkpoint_id"],
            metadata=json.loads(row["metadata"] or "{}"),
            marks=tuple(sorted(found.get((row["checkpoint_ns"], row["checkpoint_id"]), ()))),
        )
        for row in rows
    ]


@script()
def copy(source: Thread, tenant: str, target_id: str, target: str) -> Steps[Thread]:
    """Make a thread that has the checkpoints of another, and none of its runs.

    ``target_id`` is minted by the caller, so that a repeat finds its own work.  Raises ``NotFound`` if the
    source is gone, ``Conflict`` if there is a thread of that name.
    """
    yield statement("lock_thread", thread_id=source.thread_id)
    ids = {"thread_id": source.thread_id, "target_id": target_id}
    if not (yield statement("copy_thread", target=target, **ids)):
        rows = yield statement("thread", tenant=tenant, thread=target)
        if not rows:
            raise errors.NotFound(f"There is no thread {source.thread!r}.", field="thread")
        if rows[0]["thread_id"] != target_id:
            raise errors.Conflict(f"There is a thread {target!r} already.", field="to")
    elif (yield statement("has_checkpoints")):
        yield statement("copy_checkpoints", **ids)
        yield statement("copy_checkpoint_writes", **ids)
    rows = yield statement("thread", tenant=tenant, thread=target)
    return Thread.from_row(rows[0])
