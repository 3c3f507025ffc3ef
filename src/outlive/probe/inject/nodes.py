"""LangGraph: the start and the end of every node, of every graph in the process, without a change to either.

The two functions that run a task are replaced as their module is imported, before anyone can hold the old
ones. The replacements await nothing more than the originals, so a cancellation lands where it would land.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from . import tape  # noqa: TID252  (the directory runs under another name)

#: What LangGraph raises though nothing failed: a node waits for a human, or has told its parent's graph.
PAUSED = "paused"
ENDINGS = {"GraphInterrupt": PAUSED, "NodeInterrupt": PAUSED, "ParentCommand": None}


def patch(module: types.ModuleType) -> None:
    """Record what `langgraph.pregel._retry` runs. Called right after that module was executed."""
    module.__dict__["run_with_retry"] = _sync(module.__dict__["run_with_retry"])
    module.__dict__["arun_with_retry"] = _async(module.__dict__["arun_with_retry"])


def _sync(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def noted(task: Any, *args: Any, **kwargs: Any) -> Any:
        with _span(task):
            return run(task, *args, **kwargs)

    return noted


def _async(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(run)
    async def noted(task: Any, *args: Any, **kwargs: Any) -> Any:
        with _span(task):
            return await run(task, *args, **kwargs)

    return noted


@contextlib.contextmanager
def _span(task: Any) -> Iterator[None]:
    if task.name.startswith("__"):  # LangGraph's own bookkeeping, which no user wrote
        yield
        return
    configurable = task.config.get("configurable", {})
    names = {
        "node": task.name,
        "task": task.id,
        "thread": str(configurable.get("thread_id", "")),
        "label": _label(configurable.get("checkpoint_ns", ""), task.name),
    }
    tape.note("node.start", **names)
    error: str | None = None
    try:
        yield
    except BaseException as exc:
        error = ENDINGS.get(type(exc).__name__, type(exc).__name__)
        raise
    finally:
        tape.note("node.end", error=error, **names)


def _label(namespace: str, name: str) -> str:
    # A node's own namespace is `outer:task|inner:task`; without the task ids it is a readable path.
    return "/".join(part.partition(":")[0] for part in namespace.split("|")) if namespace else name
