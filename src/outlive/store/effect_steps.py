"""What becomes of a run's effects when the run ends: pieces of the transactions that end one.

Like ``steps`` these are generators of statements that assume the locks of their caller.  A call in flight
becomes ``unknown``; what was deferred is released, or what was done is to be undone, by a run of its own that
is made here, in the same transaction: if the verdict is there, so is that run.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from outlive import policy
from outlive.ledger import EXECUTED, Effect, EffectState
from outlive.model import Run, Verdict, millis
from outlive.states import State
from outlive.store.script import Steps, statement

AFTERMATH = "outlive.aftermath"
"""The agent that executes what the end of a run has released or has to undo."""
_POLICY = policy.job(on_busy="enqueue", max_losses=1000)
MOST_NAMED = 100
"""Kinds of effect that an end event names; the counts are always complete."""

Summary = dict[str, Any]


def close(run: Run, verdict: Verdict) -> Steps[Summary | None]:
    """Mark what was in flight, have the aftermath seen to, and return the summary; None without effects."""
    yield statement("cut_effects", run_id=run.run_id)
    counted = yield statement("count_effects", origin=run.origin)
    if not counted:
        return None
    summary = summarised([dict(row) for row in counted])
    due = yield from _due(run, verdict)
    if due:
        summary["aftermath"] = yield from enter_aftermath(run, run.run_id)
    return summary


def _due(run: Run, verdict: Verdict) -> Steps[bool]:
    if verdict.state is State.SUCCEEDED:
        return bool((yield statement("release_effects", run_id=run.run_id)))
    if run.policy.compensates(verdict.state):
        return bool((yield statement("mark_for_compensation", origin=run.origin)))
    return False


def summarised(counted: list[dict[str, Any]]) -> Summary:
    """What a client is told of a run's effects: how many stand how, and which executed, or may have."""
    counts: dict[str, int] = {}
    for row in counted:
        counts[row["state"]] = counts.get(row["state"], 0) + row["many"]
    executed = sorted({row["name"] for row in counted if EffectState(row["state"]) in EXECUTED})
    doubted = sorted({row["name"] for row in counted if row["state"] in ("started", "unknown")})
    return {"counts": counts, "executed": executed[:MOST_NAMED], "unknown": doubted[:MOST_NAMED]}


def aftermath_id(origin: str, cause: str) -> str:
    """The id of the run that sees to a chain's effects after ``cause``: the same at each repeat."""
    return hashlib.sha256(f"aftermath/{origin}/{cause}".encode()).hexdigest()[:32]


def enter_aftermath(run: Run | Effect, cause: str) -> Steps[str]:
    """Queue the run that sees to a chain's effects, on a thread of its own; returns its id.

    An effect stands for its run, whose thread may have been deleted.
    """
    run_id = aftermath_id(run.origin, cause)
    yield statement("insert_run", **_columns(run, run_id))
    return run_id


def _columns(run: Run | Effect, run_id: str) -> dict[str, object]:
    return {
        "run_id": run_id,
        "tenant": run.tenant,
        "thread_id": run_id,
        "thread": run_id,
        "agent": AFTERMATH,
        "pos": 1,
        "not_before": None,
        "input": json.dumps({"origin": run.origin}),
        "metadata": json.dumps({"aftermath_of": run.run_id}),
        "policy": _POLICY.to_json(),
        "notify": run.notify
        if isinstance(run, Run)
        else None,  # whoever heard what was executed hears what became of it
        "traceparent": run.traceparent if isinstance(run, Run) else None,
        "on_disconnect": _POLICY.on_disconnect.value,
        "grace_ms": millis(_POLICY.grace),
        "recovery": _POLICY.recovery.value,
        "max_losses": _POLICY.max_losses,
        "origin": run_id,
        "continues": None,
        "displaces": None,
        "key": None,
        "fingerprint": "",
        "viewer": None,
        "viewer_lease_ms": 0,
        "opening": "{}",
        "agents": [],
        "claim_token": None,
        "worker": None,
        "lease_ms": 0,
        "fresh": True,
    }
