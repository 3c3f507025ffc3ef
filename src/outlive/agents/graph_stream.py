"""What a graph's stream yields while it is driven, in the modes that are recorded.

Decides how the events of all runnables inside come beside the other modes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast

from langgraph.runtime import RunControl

from outlive import agents
from outlive.agents import fenced_saver, graph_call
from outlive.agents.position import Graph
from outlive.policy import Durability

Item = tuple[tuple[str, ...], str, Any]
"""Namespace, mode and data of one item of a graph's stream."""
EVENTS = "events"
"""The mode of LangChain's events, which is none of LangGraph's own."""
_HIDDEN = "langsmith:hidden"


def items(
    graph: Graph, call: graph_call.Call, *, durability: Durability, control: RunControl, modes: frozenset[str]
) -> AsyncGenerator[Item, None]:
    """Call a graph and yield what it streams in ``modes``, and in those that tell how it ended."""
    asked: dict[str, Any] = {
        "context": call.context,
        "stream_mode": sorted(graph_call.asked_for(modes) - {EVENTS}),
        "subgraphs": True,
        "durability": durability.value,
        "control": control,
    }
    if EVENTS in modes:
        return _with_events(graph, call, asked)
    return cast("AsyncGenerator[Item, None]", graph.astream(call.input, call.config, **asked))


async def _with_events(
    graph: Graph, call: graph_call.Call, asked: Mapping[str, Any]
) -> AsyncGenerator[Item, None]:
    """What the graph itself streams is among the events, each item as a chunk of the outermost run."""
    events = graph.astream_events(call.input, call.config, version="v2", **asked)
    outermost: Any = None
    async with aclosing(cast("AsyncGenerator[Any, None]", events)) as found:
        async for event in found:
            outermost = outermost or event["run_id"]
            if event["event"] == "on_chain_stream" and event["run_id"] == outermost:
                yield event["data"]["chunk"]
            elif _HIDDEN not in event.get("tags", ()):
                yield (), EVENTS, event


class Control(RunControl):
    """Lets the graph go no further than the running step once the process drains or the run is lost."""

    __slots__ = ("_context", "_saver")

    def __init__(self, context: agents.Context, saver: fenced_saver.FencedSaver) -> None:
        super().__init__()
        self._context = context
        self._saver = saver

    @property
    def drain_requested(self) -> bool:
        """True once no further step may begin."""
        return self._context.draining.is_set() or self._saver.refused or super().drain_requested
