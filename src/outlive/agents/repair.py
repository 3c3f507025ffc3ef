"""Closing the tool calls that a cut run has left open, before a new message comes behind them.

A provider refuses a conversation in which a call has no result, for ever.  Results that are there are kept as
they are, those of finished calls of a cut step too; each of the others gets one result that says what is
known: nothing.  Doing it twice changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import PregelTask, StateUpdate

from outlive.agents.position import Graph

SAID = "Interrupted. Whether this call took effect is unknown."
"""What the result says of a call that was cut."""
_RESULTS = uuid.UUID("3c7f2f0e-3f6c-5b0e-9f0e-6c1d2a1b4e57")
"""The namespace of the ids of such results: the same call has the same one, so that it is closed once."""


async def close(graph: Graph, thread: RunnableConfig, run_id: str) -> tuple[str, ...]:
    """Write one checkpoint, as ``run_id``, in which no call is open; returns the ids of those that were.

    It also has what the finished tasks of the cut step returned, which LangGraph keeps for a resume only: a
    new input would make it forget that they ran.  Nothing is written if there is nothing of either.
    """
    state = await graph.aget_state(thread)
    cut = [task for task in state.tasks if task.name != START and task.name in graph.nodes]
    if not cut or not state.next:
        return ()
    done = [task for task in cut if isinstance(task.result, dict) and task.result]
    updates = [StateUpdate(cast("Any", task.result), task.name, task.id) for task in done]
    found = _open_in(_with_results(state.values, done))
    if found:
        # In the name of what was cut, which was to write them: what follows it is next then.
        closing = {channel: repaired for channel, (_, repaired) in found.items()}
        updates.append(StateUpdate(cast("Any", closing), _unfinished(cut, done)))
    if updates:
        await graph.abulk_update_state(_as(thread, run_id), [updates])
    return tuple(call for calls, _ in found.values() for call in calls)


def _unfinished(cut: Sequence[PregelTask], done: Sequence[PregelTask]) -> str:
    return next((task.name for task in cut if task not in done), cut[0].name)


def _with_results(values: Any, done: Sequence[PregelTask]) -> dict[str, list[Any]]:
    """Return the messages of a state by channel, with those that these tasks have written."""
    channels = values.items() if isinstance(values, dict) else ()
    found = {name: list(value) for name, value in channels if _are_messages(value)}
    for task in done:
        for name in found.keys() & cast("Any", task.result).keys():
            written = cast("Any", task.result)[name]
            found[name] += written if isinstance(written, list) else [written]
    return found


def _as(thread: RunnableConfig, run_id: str) -> RunnableConfig:
    return cast("RunnableConfig", {**thread, "metadata": {"run_id": run_id}})


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, BaseMessage) for one in value)


def _open_in(messages: Mapping[str, Sequence[Any]]) -> dict[str, tuple[list[str], list[Any]]]:
    """Return, by channel, which calls have no result, and the update that gives them one."""
    found = {}
    for name, every in messages.items():
        answered = {one.tool_call_id for one in every if isinstance(one, ToolMessage)}
        calls = [call for one in every if isinstance(one, AIMessage) for call in one.tool_calls]
        missing = [call for call in calls if call["id"] not in answered]
        if missing:
            found[name] = [str(call["id"]) for call in missing], _update(every, missing)
    return found


def _update(every: Sequence[AnyMessage], missing: Sequence[Any]) -> list[Any]:
    results = {call["id"]: _result(call) for call in missing}
    last = max(place for place, one in enumerate(every) if _asks(one, results))
    if all(isinstance(one, ToolMessage) for one in every[last + 1 :]) and not any(
        _asks(one, results) for one in every[:last]
    ):
        return list(results.values())
    # Something has come behind an open call already: results belong right behind their call.
    whole: list[Any] = [RemoveMessage(id=REMOVE_ALL_MESSAGES)]
    for one in every:
        whole.append(one)
        if isinstance(one, AIMessage):
            whole += [results[call["id"]] for call in one.tool_calls if call["id"] in results]
    return whole


def _asks(message: Any, results: Mapping[Any, Any]) -> bool:
    return isinstance(message, AIMessage) and any(call["id"] in results for call in message.tool_calls)


def _result(call: Any) -> ToolMessage:
    return ToolMessage(
        content=SAID,
        tool_call_id=call["id"],
        name=call["name"],
        status="error",
        id=str(uuid.uuid5(_RESULTS, str(call["id"]))),
    )
