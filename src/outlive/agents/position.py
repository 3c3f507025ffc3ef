"""Where a LangGraph thread stands: finished, waiting for a human, or torn.

Decides from the thread's state and the compiled graph alone.  Two cases need the run's record as well: a
thread whose run was killed just behind a static breakpoint looks as if it still waited there, and one whose
run was drained or ran out of steps looks torn although nothing was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from langgraph.constants import START
from langgraph.pregel import Pregel
from langgraph.types import All, PregelTask, StateSnapshot

Graph = Pregel[Any, Any, Any, Any]


class Position(StrEnum):
    """Where a thread stands.

    ``clean``: nothing was begun, or all of it is finished.  ``waiting``: it paused at an interrupt or at a
    static breakpoint.  ``torn``: something was begun and not finished, so that a new input would start over
    and repeat nodes that have run.
    """

    CLEAN = "clean"
    WAITING = "waiting"
    TORN = "torn"


async def position_of(graph: Graph, state: StateSnapshot) -> Position:
    """Tell where ``state`` stands; it must be a latest state, read with ``subgraphs=True``."""
    if not state.tasks:
        return Position.CLEAN
    # A thread cut inside a checkpoint write has nothing next, yet its tasks' results are not in its values.
    left = [task for task in state.tasks if task.name in state.next and task.result is None]
    if left and (await _all_wait(graph, left) or await _at_breakpoint(graph, state)):
        return Position.WAITING
    return Position.TORN


async def _all_wait(graph: Graph, tasks: Sequence[PregelTask]) -> bool:
    nested = {name: subgraph async for name, subgraph in graph.aget_subgraphs()}
    for task in tasks:
        if task.interrupts:
            continue
        subgraph = nested.get(task.name)
        if not isinstance(subgraph, Pregel) or not isinstance(task.state, StateSnapshot):
            return False
        if await position_of(subgraph, task.state) is not Position.WAITING:
            return False
    return True


async def _at_breakpoint(graph: Graph, state: StateSnapshot) -> bool:
    """Tell whether no task of the step has begun and the graph stops before it or after the last one."""
    if any(task.error or task.result is not None or task.interrupts for task in state.tasks):
        return False
    if _names(graph.interrupt_before_nodes, state.tasks):
        return True
    if not graph.interrupt_after_nodes or state.parent_config is None:
        return False
    before = await graph.aget_state(state.parent_config)
    return _names(graph.interrupt_after_nodes, before.tasks)


def _names(nodes: All | Sequence[str], tasks: Sequence[PregelTask]) -> bool:
    names = {task.name for task in tasks} - {START}
    return bool(names) if nodes == "*" else not names.isdisjoint(nodes)
