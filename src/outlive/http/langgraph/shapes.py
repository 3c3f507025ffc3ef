"""Runs, threads and assistants as clients of the LangGraph protocol see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from outlive.agents import restored
from outlive.agents.graph_call import KEPT_UNDER as KEPT_UNDER
from outlive.http.langgraph import frames, wire
from outlive.model import Run
from outlive.states import State
from outlive.store.assistants import Assistant
from outlive.store.searching import FoundThread

ASIDE = "aside"
"""Under which name the record of a run says why these clients do not find it any more."""
DELETED, ROLLED_BACK = "deleted", "rolled_back"


def status(run: Run) -> str:
    """Return a run's state in that protocol's words, which tell fewer ends apart."""
    if not run.state.terminal:
        return "pending" if run.state is State.QUEUED else "running"
    return frames.ended_as(run.state, run.reason)


def kept(run: Run) -> dict[str, Any]:
    """Return what the request was that made a run, as far as this protocol made it."""
    found: Any = restored(run.metadata).get(KEPT_UNDER)
    return found if isinstance(found, dict) else {}


def run(run_: Run, assistant_id: str) -> dict[str, Any]:
    """Return a run; ``assistant_id`` is for one that another interface made."""
    request = kept(run_)
    metadata = request.get("metadata") if request else restored(run_.metadata)
    last = run_.ended_at or run_.started_at or run_.created_at
    return {
        "run_id": wire.shown_id(run_.run_id),
        "thread_id": run_.thread,
        "assistant_id": request.get("assistant_id", assistant_id),
        "created_at": time(run_.created_at),
        "updated_at": time(last),
        "status": status(run_),
        "metadata": metadata or {},
        "kwargs": request.get("kwargs") or {"input": restored(run_.input)},
        "multitask_strategy": run_.policy.on_busy.value,
        "cancel_reason": run_.reason.value if run_.reason else None,
    }


def thread(found: FoundThread, state: Mapping[str, Any] | None, error: Any = None) -> dict[str, Any]:
    """Return a thread with its ``state`` (None: nobody has read it, or there is none)."""
    shown = state or {}
    interrupts = {task["id"]: task["interrupts"] for task in shown.get("tasks", ()) if task.get("interrupts")}
    return {
        "thread_id": found.thread.thread,
        "created_at": time(found.thread.created_at),
        "updated_at": time(found.updated_at),
        "state_updated_at": time(found.moved_at),
        "metadata": found.metadata,
        "status": found.status.value,
        "config": {},
        "values": shown.get("values"),
        "interrupts": interrupts,
        "error": error,
    }


def assistant(found: Assistant) -> dict[str, Any]:
    """Return an assistant."""
    return {
        "assistant_id": found.assistant_id,
        "graph_id": found.agent,
        "name": found.name,
        "description": found.description,
        "config": found.config,
        "context": found.context,
        "metadata": found.metadata,
        "version": found.version,
        "created_at": time(found.created_at),
        "updated_at": time(found.updated_at),
    }


def time(seconds: float) -> str:
    """Return seconds since the epoch as clients read times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def selected(shown: Mapping[str, Any], select: Iterable[str] | None) -> dict[str, Any]:
    """Return the fields that were asked for; None: all."""
    if select is None:
        return dict(shown)
    wanted = set(select)
    return {name: value for name, value in shown.items() if name in wanted}
