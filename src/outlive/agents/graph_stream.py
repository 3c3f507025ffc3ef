"""What a graph's stream yields while it is driven, in the modes that are recorded.

Decides how the events of all runnables inside come beside the other modes, and that no item names an internal
thread id.
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


# ---------------------------------------------------------------- names of threads


def named(mode: str, data: Any, thread: str) -> Any:
    """Return an item with its caller's name for the thread, where LangGraph has our internal id."""
    if mode == "checkpoints":
        return _checkpoint(data, thread)
    if mode == "debug" and data.get("type") == "checkpoint":
        return {**data, "payload": _checkpoint(data["payload"], thread)}
    return data


def _checkpoint(data: Any, thread: str) -> Any:
    tasks = [
        {**task, "state": _config(task["state"], thread)} if "state" in task else task
        for task in data.get("tasks") or ()
    ]
    configs = {name: _config(data.get(name), thread) for name in ("config", "parent_config")}
    return {**data, **configs, "tasks": tasks}


def _config(config: Any, thread: str) -> Any:
    """Also a subgraph's state, which is the address of its checkpoint, or a state with its own."""
    if not isinstance(config, Mapping):
        return config
    if "configurable" in config:
        return {**config, "configurable": {**config["configurable"], "thread_id": thread}}
    return _checkpoint(config, thread) if "config" in config else config
