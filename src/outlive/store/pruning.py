"""Retention as scripts: what of an ended run is taken away, a batch at a time, and what is left.

Kept are the end event and everything from the last state before it (mode ``values``), if that is near.  So
what is kept has no hole, and its first event is what a newcomer needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlive import large
from outlive.model import millis
from outlive.store.script import Steps, script, statement

NEAR = 100
"""Events before the end among which the last state is looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """What one batch did; ``over`` if there is nothing left to take."""

    deleted: int
    over: bool


@script(reads=True)
def candidates(retention: float, limit: int) -> Steps[list[str]]:
    """Return runs that ended more than ``retention`` seconds ago and were not pruned, oldest first."""
    rows = yield statement("to_prune", retention_ms=millis(retention), limit=limit)
    return [row["run_id"] for row in rows]


@script()
def prune(run_id: str, batch: int) -> Steps[Pruned]:
    """Delete up to ``batch`` of a run's events, oldest first; a repeat finds them gone and goes on."""
    found = yield statement("pruned_so_far", run_id=run_id)
    if not found:
        return Pruned(deleted=0, over=True)
    thread_id = found[0]["thread_id"]
    yield statement("lock_thread", thread_id=thread_id)
    rows = yield statement("pruned_so_far", run_id=run_id)
    if not rows:
        return Pruned(deleted=0, over=True)
    before, last = rows[0]["oldest_seq"], rows[0]["last_seq"]
    states = yield statement("newest_state", run_id=run_id, after=last - NEAR)
    keep = states[0]["seq"] if states else last
    oldest = min(keep, before + batch)
    gone = yield statement("events_after", run_id=run_id, after=oldest - 2, limit=1)
    if gone and gone[0]["seq"] == oldest - 1:
        yield statement("prune_thread", thread_id=thread_id, oldest_seq=gone[0]["thread_seq"] + 1)
    yield statement("prune_run", run_id=run_id, oldest=oldest, done=oldest == keep)
    yield statement("prune_events", run_id=run_id, oldest=oldest)
    if oldest == keep:
        kept = yield statement("events_after", run_id=run_id, after=oldest - 1, limit=NEAR + 1)
        named = [digest for row in kept if (digest := large.digest_in(row["payload"])) is not None]
        yield statement("prune_bodies", run_id=run_id, kept=named)
    return Pruned(deleted=max(oldest - before, 0), over=oldest == keep)


@script(reads=True)
def oldest(run_id: str) -> Steps[int]:
    """Return the seq of the oldest event of a run that is kept: 1, unless it was pruned."""
    rows = yield statement("oldest_of_run", run_id=run_id)
    return int(rows[0]["oldest_seq"]) if rows else 1


@script(reads=True)
def oldest_of_thread(thread_id: str) -> Steps[int]:
    """Return where the sequence of a thread begins now; what is kept of older runs is on theirs only."""
    rows = yield statement("oldest_of_thread", thread_id=thread_id)
    return int(rows[0]["oldest_seq"]) if rows else 1
