"""Presence as scripts: who watches a run, until when, and how far they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlive.model import Run, millis, seconds
from outlive.policy import OnDisconnect
from outlive.store import steps
from outlive.store.script import Steps, script, statement

HOLD = 30.0
"""Seconds of presence that remain when the server itself ended the stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Who watched a run: how many ever and now, the furthest seq sent to one, and the last who left, and why.

    ``cause`` is ``end``, ``disconnect``, ``ours`` (the server ended that stream) or ``lost``: the viewer, or
    its server, was not heard of any more.  Of whoever watches now, ``seen`` is some seconds behind.
    """

    viewers: int
    watching: int
    seen: int
    left_at: float | None
    cause: str | None

    def public(self, run: Run) -> dict[str, Any]:
        """Return it as JSON-able values; ``delivery`` is None until the run has ended."""
        return {
            "viewers": self.viewers,
            "watching": self.watching,
            "seen": self.seen,
            "delivery": self._delivery(run),
            "left_at": self.left_at,
            "left_because": self.cause,
        }

    def _delivery(self, run: Run) -> str | None:
        if not run.state.terminal:
            return None
        if self.seen >= run.last_seq:
            return "delivered"
        return "partly_seen" if self.seen else "unseen"


@script(single=True)
def join(
    viewer: str, run_id: str, lease: float, last_seq: int, *, thread_id: str | None = None
) -> Steps[None]:
    """Record that ``viewer`` watches ``run_id`` for the next ``lease`` seconds, from behind ``last_seq``.

    With a ``thread_id`` it watches the thread, and with it every run of the thread that is live meanwhile;
    ``run_id`` is empty then, and ``last_seq`` the thread's.
    """
    yield statement(
        "join",
        viewer=viewer,
        run_id=run_id,
        thread_id=thread_id,
        lease_ms=millis(lease),
        last_seq=last_seq,
    )


@script()
def tie(run_id: str) -> Steps[None]:
    """Have a live run stop once nobody watches it, as if it had been submitted so."""
    run = yield from steps.known(run_id)
    tied = run.policy.but(on_disconnect=OnDisconnect.CANCEL)
    yield statement("tie_run", run_id=run_id, policy=tied.to_json())


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


@script(reads=True)
def evidence(run_id: str) -> Steps[Evidence]:
    """Return who watched a run, and how far."""
    row = (yield statement("evidence", run_id=run_id, hold_ms=millis(HOLD)))[0]
    seen = row["seen"]
    if row["thread_seen"] is not None:
        found = yield statement("seen_of_thread", run_id=run_id, thread_seq=row["thread_seen"])
        seen = max(seen, found[0]["seq"] if found else 0)
    return Evidence(
        viewers=row["viewers"],
        watching=row["watching"],
        seen=seen,
        left_at=seconds(row["left_at"]),
        cause=row["cause"],
    )
