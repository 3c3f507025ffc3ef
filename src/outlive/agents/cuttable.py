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
from contextlib import AbstractContextManager
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._config import patch_configurable
from langgraph._internal._constants import CONFIG_KEY_DURABILITY
from langgraph._internal._runnable import RunnableCallable
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel
from langgraph.pregel._read import DEFAULT_BOUND
from langgraph.pregel._write import ChannelWrite

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
    begins = node.bound is DEFAULT_BOUND
    return node.copy({**_bound(node.bound), "writers": [_writer(one, begins=begins) for one in node.writers]})


def _bound(bound: Any) -> dict[str, Any]:
    if isinstance(bound, Pregel):
        return _subgraph(bound)
    if isinstance(bound, RunnableCallable):
        return {"bound": _callable(bound, bound.afunc)} if bound.afunc else {}
    return {"bound": _Whole(bound)}


def _subgraph(graph: Graph) -> dict[str, Any]:
    inner = cuttable(graph)
    if inner.checkpointer is not False:
        return {"bound": inner, "subgraphs": [inner]}
    # It keeps nothing: LangGraph would wait for a checkpoint of it, and fail, and whoever looks where the
    # thread stands would ask it for its state, and fail.
    inner.ainvoke = _unsynchronised(inner.ainvoke)  # type: ignore[method-assign]
    return {"bound": inner, "subgraphs": []}


def _unsynchronised(call: Callable[..., Any]) -> Callable[..., Any]:
    async def ainvoke(given: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await call(given, patch_configurable(config, {CONFIG_KEY_DURABILITY: "async"}), **kwargs)

    return ainvoke


def _writer(writer: Any, *, begins: bool) -> Any:
    """A conditional edge is asked behind its node's return, and may take its time.

    With ``begins`` nothing has run before it, so nothing is lost with it.
    """
    if isinstance(writer, ChannelWrite) or not isinstance(writer, RunnableCallable) or not writer.afunc:
        return writer
    made = copy.copy(writer)
    made.afunc = _part(writer.afunc, yields=True) if begins else _edge(writer.afunc)
    return made


def _callable(bound: RunnableCallable, function: Callable[..., Any]) -> RunnableCallable:
    """Surround no more than the function: what LangGraph does around it must not be cut."""
    made = copy.copy(bound)
    in_thread = bound.func is not None and getattr(function, "__wrapped__", None) is bound.func
    made.afunc = _part(function, yields=not in_thread)
    return made


def _part(function: Callable[..., Any], *, yields: bool) -> Callable[..., Any]:
    return _surrounded(function, lambda parts: parts.part(yields=yields))


def _edge(function: Callable[..., Any]) -> Callable[..., Any]:
    return _surrounded(function, cancellation.Parts.finishing)


def _surrounded(
    function: Callable[..., Any], around: Callable[[cancellation.Parts], AbstractContextManager[None]]
) -> Callable[..., Any]:
    """Return ``function`` as what those who may cut it know it as, if anybody may."""

    async def surrounded(*args: Any, **kwargs: Any) -> Any:
        parts = cancellation.CURRENT.get()
        if parts is None:
            return await function(*args, **kwargs)
        try:
            with around(parts):
                return await function(*args, **kwargs)
        except cancellation.Cut:
            raise NodeCut from None

    return surrounded


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
