"""Threads as they are made beforehand, described, and looked for.

Decides what a thread's status is: busy with a live run, or what its newest end says.  A thread that nobody
made beforehand is made by its first run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlive import errors
from outlive.model import Row, Thread
from outlive.store.assistants import canonical
from outlive.store.script import Steps, script, statement


class ThreadStatus(StrEnum):
    """``interrupted``: its newest run waits for an answer, or was stopped.  ``error``: it failed."""

    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundThread:
    """A thread and what is said of it.  ``moved_at`` is when its runs last changed; times are in seconds."""

    thread: Thread
    metadata: Mapping[str, Any]
    status: ThreadStatus
    updated_at: float
    moved_at: float

    @classmethod
    def from_row(cls, row: Row) -> FoundThread:
        """Build one from a row of ``found_threads``."""
        return cls(
            thread=Thread.from_row(row),
            metadata=json.loads(row["metadata"]),
            status=ThreadStatus(row["status"]),
            updated_at=row["updated_at"] / 1000,
            moved_at=row["moved_at"] / 1000,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadSearch:
    """What threads are looked for by.  ``named`` None: whatever they are called.

    ``allowed`` and ``holding`` narrow it beside ``metadata``: members, and lists that hold some items.
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    status: ThreadStatus | None = None
    named: Sequence[str] | None = None
    limit: int = 10
    offset: int = 0
    by: str = "updated_at"
    ascending: bool = False
    allowed: Mapping[str, Any] = field(default_factory=dict)
    holding: Mapping[str, list[Any]] = field(default_factory=dict)


@script()
def make(thread_id: str, tenant: str, thread: str, metadata: Mapping[str, Any]) -> Steps[bool]:
    """Make a thread before its first run; False if there is one of that name."""
    rows = yield statement(
        "make_thread", thread_id=thread_id, tenant=tenant, thread=thread, metadata=canonical(metadata)
    )
    return bool(rows)


@script()
def say(tenant: str, thread: str, metadata: Mapping[str, Any]) -> Steps[None]:
    """Merge ``metadata`` into a thread's; raises ``NotFound``."""
    rows = yield statement("thread_metadata", tenant=tenant, thread=thread)
    if not rows:
        raise errors.NotFound(f"There is no thread {thread!r}.", field="thread")
    now = json.loads(rows[0]["metadata"])
    merged = {**now, **metadata}
    if merged != now:
        yield statement("say_of_thread", thread_id=rows[0]["thread_id"], metadata=canonical(merged))


@script()
def mark(run_id: str, under: str, words: Mapping[str, Any]) -> Steps[None]:
    """Merge ``words`` into the object ``under`` that name in a run's metadata.

    Neither its executor nor whoever repeats its submit looks at them again.  Raises ``NotFound``.
    """
    rows = yield statement("run_metadata", run_id=run_id)
    if not rows:
        raise errors.NotFound(run_id=run_id)
    now = json.loads(rows[0]["metadata"])
    merged = {**now, under: {**now.get(under, {}), **words}}
    yield statement("say_of_run", run_id=run_id, metadata=json.dumps(merged))


@script(reads=True)
def find(tenant: str, thread: str) -> Steps[FoundThread]:
    """Return one thread; raises ``NotFound``."""
    rows = yield _found(tenant, ThreadSearch(limit=1), thread=thread)
    if not rows:
        raise errors.NotFound(f"There is no thread {thread!r}.", field="thread")
    return FoundThread.from_row(rows[0])


@script(reads=True)
def search(tenant: str, wanted: ThreadSearch) -> Steps[tuple[list[FoundThread], int]]:
    """Return one page, and how many there are in all as far as that page can tell."""
    rows = yield _found(tenant, wanted, thread=None)
    total = rows[0]["total"] if rows else wanted.offset
    return [FoundThread.from_row(row) for row in rows], int(total)


def _found(tenant: str, wanted: ThreadSearch, *, thread: str | None) -> Any:
    return statement(
        "found_threads",
        tenant=tenant,
        thread=thread,
        named=wanted.named is not None,
        threads=list(wanted.named or ()),
        metadata=canonical(wanted.metadata),
        allowed=canonical(wanted.allowed),
        holding=canonical(wanted.holding),
        status=wanted.status.value if wanted.status else None,
        by=wanted.by,
        sign=1 if wanted.ascending else -1,
        limit=wanted.limit,
        offset=wanted.offset,
    )
