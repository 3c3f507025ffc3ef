"""Bodies of large events as scripts.  They are stored before the events that name them, by what they hold."""

from __future__ import annotations

import dataclasses

from outlive import errors, large
from outlive.model import Claim, Event
from outlive.store.script import Steps, script, statement


@script(single=True)
def keep(holder: Claim, body: str) -> Steps[None]:
    """Store ``body`` for the events of a run that ``holder`` still holds.

    One that is there is left as it is; a late holder's is not stored, and its append will say so.
    """
    yield statement(
        "keep_body",
        run_id=holder.run_id,
        epoch=holder.epoch,
        claim_token=holder.claim_token,
        digest=large.digest(body),
        body=body,
    )


@script(reads=True)
def event(run_id: str, seq: int) -> Steps[Event]:
    """Return one event, whole; raises ``NotFound``, ``Pruned``."""
    rows = yield statement("events_after", run_id=run_id, after=seq - 1, limit=1)
    if not rows or seq < 1:
        raise errors.NotFound(f"The run has no event {seq}.", run_id=run_id)
    if rows[0]["seq"] != seq:
        oldest = rows[0]["seq"]
        raise errors.Pruned(oldest=oldest, latest=None, snapshot=f"/runs/{run_id}", run_id=run_id)
    found = Event.from_row(rows[0])
    digest = large.digest_in(found.payload)
    if digest is None:
        return found
    bodies = yield statement("body", run_id=run_id, digest=digest)
    if not bodies:
        raise errors.NotFound(f"The body of event {seq} is gone.", run_id=run_id)
    return dataclasses.replace(found, payload=bodies[0]["body"])
