"""Looks through a checkpoint database for threads that were left part-way, with the graph that wrote them.

Decides what is left out: threads that are finished, that wait at a question or a static breakpoint, and that
are too young to be nobody's.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot

from outlive.agents.position import Graph, position_of, stands
from outlive.states import Position
from outlive.torn import Record, Report, Torn, foreign, provider
from outlive.tree import written

FAR = 1000
"""Checkpoints before the newest one among which the last clean one is looked for."""


def over(graph: Graph, saver: BaseCheckpointSaver[Any]) -> Graph:
    """Return the graph with this saver; not by ``graph.copy``, which forgets the types it may hold."""
    copied = copy.copy(graph)
    copied.checkpointer = saver
    return copied


def address(thread: str) -> RunnableConfig:
    """Return where a thread's newest checkpoint is."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


async def look(
    url: str, graph: Graph, *, older_than: float, nodes: Mapping[str, str], threads: tuple[str, ...] = ()
) -> Report:
    """Report the torn threads of a database, or of these, on which nothing moved for so many seconds."""
    left_out: Counter[str] = Counter()
    torn: list[Torn] = []
    unreadable: dict[str, str] = {}
    async with foreign.looked_at(url) as opened:
        reading = over(graph, opened.saver)
        for head in opened.heads:
            if threads and head.thread_id not in threads:
                continue
            try:
                found = await _one(reading, head, older_than, nodes)
            except Exception as failure:  # one thread that this graph cannot read must not hide the others
                unreadable[head.thread_id] = f"{type(failure).__name__}: {str(failure)[:200]}"
                continue
            if isinstance(found, str):
                left_out[found] += 1
            else:
                torn.append(found)
    return Report(torn=tuple(torn), left_out=dict(left_out), unreadable=unreadable)


async def _one(graph: Graph, head: foreign.Head, older_than: float, nodes: Mapping[str, str]) -> Torn | str:
    """Return the thread if it is torn; else why it is left out."""
    at = written(head.newest)
    age = time.time() - at if at is not None else float("inf")
    if age < older_than:
        return "younger"
    position, state = await stands(graph, address(head.thread_id))
    if position is not Position.TORN:
        return position.value
    records = await recorded(graph, head.thread_id, state)
    seen = await provider.asked(state.values, records, nodes, "")
    return Torn(thread=head.thread_id, age=age, head=head.head, next=tuple(state.next), seen=tuple(seen))


async def recorded(graph: Graph, thread: str, state: StateSnapshot) -> dict[str, Record]:
    """Say of each node that this turn of the thread has reached whether it ran, by the checkpoints."""
    ran: set[str] = set()
    history = graph.aget_state_history(address(thread), before=state.config, limit=FAR)
    async for older in history:
        if await position_of(graph, older) is Position.CLEAN:
            break
        ran.update(older.next)
    left = {task.name for task in state.tasks if task.result is None}
    ran.update(task.name for task in state.tasks if task.result is not None)
    return dict.fromkeys(ran, Record.RAN) | dict.fromkeys(left, Record.LEFT)
