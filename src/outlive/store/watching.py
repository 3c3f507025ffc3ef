"""Presence as scripts: who watches a run, until when, and how far they read."""

from __future__ import annotations

from collections.abc import Mapping

from outlive.model import millis
from outlive.store.script import Steps, script, statement


@script(single=True)
def join(viewer: str, run_id: str, lease: float, last_seq: int) -> Steps[None]:
    """Record that ``viewer`` watches ``run_id`` for the next ``lease`` seconds."""
    yield statement("join", viewer=viewer, run_id=run_id, lease_ms=millis(lease), last_seq=last_seq)


@script(single=True)
def keep(viewers: Mapping[str, int], lease: float) -> Steps[None]:
    """Extend the presence of live viewers (name → last seq sent) by ``lease`` seconds."""
    yield statement("keep_presence", viewers=list(viewers.items()), lease_ms=millis(lease))


@script(single=True)
def leave(viewer: str, cause: str, last_seq: int, hold: float) -> Steps[None]:
    """Record that ``viewer`` left.  ``hold`` seconds of presence remain if it was we who ended it."""
    yield statement("leave", viewer=viewer, cause=cause, last_seq=last_seq, hold_ms=millis(hold))


@script(single=True)
def leave_at_end(viewers: Mapping[str, int]) -> Steps[None]:
    """Record that viewers (name → last seq sent) left because their run was over."""
    yield statement("leave_at_end", viewers=list(viewers.items()))


@script(reads=True)
def unwatched(limit: int) -> Steps[list[str]]:
    """Return ids of cancellable runs that nobody has watched for their whole grace."""
    rows = yield statement("unwatched", limit=limit)
    return [row["run_id"] for row in rows]
