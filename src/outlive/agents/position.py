"""Where a LangGraph thread stands: finished, waiting for a human, or torn.

Decides from the thread's state and the compiled graph alone.  Two cases need the run's record as well: a
thread whose run was killed just behind a static breakpoint looks as if it still waited there, and one whose
run was drained or ran out of steps looks torn although nothing was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.constants import START
from langgraph.pregel import Pregel
from langgraph.types import All, PregelTask, StateSnapshot

from outlive.states import Position as Position

Graph = Pregel[Any, Any, Any, Any]
_RESUME = "__resume__"
_NOBODY = "00000000-0000-0000-0000-000000000000"
"""The task under which LangGraph keeps an answer until the task that asked takes it."""


async def stands(graph: Graph, thread: RunnableConfig) -> tuple[Position, StateSnapshot]:
    """Tell where a thread stands, and its latest state.

    A thread whose run was cut after it had got an answer, and before it could do anything with it, shows its
    question still: asked again, the next answer would be taken for one to the question after it.
    """
    state = await graph.aget_state(thread, subgraphs=True)
    position = await position_of(graph, state)
    if position is Position.WAITING:
        cut = any(task.error and task.interrupts for task in state.tasks)
        given = _given(await cast("BaseCheckpointSaver[Any]", graph.checkpointer).aget_tuple(thread))
        if cut or given is Given.LEFT:
            position = Position.TORN
    return position, state


class Given(Enum):
    """What became of the last answer that a thread was given."""

    NONE = auto()
    LEFT = auto()
    TAKEN = auto()


def _given(found: CheckpointTuple | None) -> Given:
    writes = (found.pending_writes if found else None) or ()
    answers = [(task, value) for task, channel, value in writes if channel == _RESUME and value is not None]
    taken = [value[-1] for task, value in answers if task != _NOBODY and isinstance(value, list) and value]
    left = [value for task, value in answers if task == _NOBODY]
    if not left:
        return Given.NONE
    return Given.TAKEN if left[0] in taken else Given.LEFT


async def forget_answer(graph: Graph, thread: RunnableConfig) -> None:
    """Take away an answer that the task which asked has taken, before that task is begun again.

    LangGraph keeps it for whoever asks next: another question of that task, which nobody has been shown.
    """
    saver = cast("BaseCheckpointSaver[Any]", graph.checkpointer)
    found = await saver.aget_tuple(thread)
    if found is not None and _given(found) is Given.TAKEN:
        await saver.aput_writes(found.config, [(_RESUME, None)], _NOBODY)


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
