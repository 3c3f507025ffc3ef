"""Makes the nodes of a graph known to whoever may have to cut them, at every depth.

LangGraph ends a run by cancelling each node's task, also in the turns between the node's return and the write
of what it returned: the node has executed and nobody knows.  Here a cut reaches a node's own code and nothing
else.  It leaves the node as something that bubbles up: the other nodes of the step end in their own way, and
neither the step nor its checkpoint is taken for complete.

Nodes of graphs that a node's code calls by itself, and tasks of the functional API, are not known: they are
cancelled as LangGraph does it.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._runnable import RunnableCallable
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel

from outlive import cancellation
from outlive.agents.position import Graph


class NodeCut(GraphBubbleUp):
    """A node was cut, or not begun, because its run is being ended."""


def cuttable(graph: Graph) -> Graph:
    """Return a copy of ``graph`` whose nodes can be cut; the graph is not changed."""
    made = copy.copy(graph)
    made.nodes = {name: _node(node) for name, node in graph.nodes.items()}
    return made


def _node(node: Any) -> Any:
    bound = node.bound
    if isinstance(bound, Pregel):
        inner = cuttable(bound)
        return node.copy({"bound": inner, "subgraphs": [inner]})
    if isinstance(bound, RunnableCallable):
        return node.copy({"bound": _callable(bound, bound.afunc)}) if bound.afunc else node
    return node.copy({"bound": _Whole(bound)})


def _callable(bound: RunnableCallable, function: Callable[..., Any]) -> RunnableCallable:
    """Surround no more than the function: what LangGraph does around it must not be cut."""
    made = copy.copy(bound)
    in_thread = bound.func is not None and getattr(function, "__wrapped__", None) is bound.func
    made.afunc = _part(function, yields=not in_thread)
    return made


def _part(function: Callable[..., Any], *, yields: bool) -> Callable[..., Any]:
    async def part(*args: Any, **kwargs: Any) -> Any:
        parts = cancellation.CURRENT.get()
        if parts is None:
            return await function(*args, **kwargs)
        try:
            with parts.part(yields=yields):
                return await function(*args, **kwargs)
        except cancellation.Cut:
            raise NodeCut from None

    return part


class _Whole(Runnable[Any, Any]):
    """A node that is any other runnable."""

    def __init__(self, inner: Runnable[Any, Any]) -> None:
        self.name = inner.get_name()
        self._inner = inner
        self._call = _part(inner.ainvoke, yields=True)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Like the runnable's own."""
        return self._inner.invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Like the runnable's own, and can be cut."""
        return await self._call(input, config, **kwargs)

    def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Like the runnable's own: who reads it in pieces cancels it as LangGraph does."""
        return self._inner.astream(*args, **kwargs)
