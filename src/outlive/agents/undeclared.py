"""Notices what LangGraph drops in silence: keys of an update that the graph's state does not declare.

A node that returns ``{"charge_id": ...}`` against a state without it ends well, and the id is gone.  What
is dropped is neither streamed nor stored, so only a callback still sees what the node returned.  Watches the
nodes of the outermost graph; a subgraph's own nodes, and what a subgraph hands up, are its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from outlive import agents

_NESTED = "|"
_STEP = "graph:step:"


class Undeclared(AsyncCallbackHandler):
    """A callback for one attempt; ``take`` gives the notes since the last time."""

    run_inline = True  # otherwise LangChain makes a task per call

    def __init__(self, graph: Any) -> None:
        self._declared: frozenset[str] = frozenset()
        self._nodes: frozenset[str] = frozenset()
        if isinstance(graph, CompiledStateGraph):
            subgraphs = {name for name, _ in graph.get_subgraphs()}
            self._declared = frozenset(graph.builder.channels) | frozenset(graph.builder.managed)
            self._nodes = frozenset(graph.builder.nodes) - subgraphs
        self._running: dict[UUID, str] = {}
        self._seen: set[tuple[str, str]] = set()
        self._found: list[agents.Note] = []

    def take(self) -> list[agents.Note]:
        """Return what was found since the last call; each node and key is told once."""
        found, self._found = self._found, []
        return found

    async def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remember which node a chain is the run of, if it is one of ours."""
        about = metadata or {}
        node = about.get("langgraph_node")
        outermost = _NESTED not in about.get("langgraph_checkpoint_ns", _NESTED)
        if node in self._nodes and outermost and any(tag.startswith(_STEP) for tag in tags or ()):
            self._running[run_id] = node

    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a node that returned nothing."""
        self._running.pop(run_id, None)

    async def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Compare what a node returned with what its graph declares."""
        node = self._running.pop(run_id, None)
        if node is None:
            return
        for key in sorted(set(_keys(outputs)) - self._declared):
            if (node, key) not in self._seen:
                self._seen.add((node, key))
                self._found.append(_note(node, key))


def _keys(returned: Any) -> Iterator[str]:
    if isinstance(returned, Command):
        if returned.graph is None:
            yield from _keys(returned.update)
    elif isinstance(returned, dict):
        yield from (key for key in returned if isinstance(key, str))
    elif isinstance(returned, list | tuple):
        for each in returned:
            if isinstance(each, dict | Command):
                yield from _keys(each)


def _note(node: str, key: str) -> agents.Note:
    return agents.Note(
        code="undeclared_update",
        message=f"Node {node!r} returned {key!r}, which the graph's state does not declare; it was dropped.",
    )
