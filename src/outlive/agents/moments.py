"""The states of a thread of a graph, read and changed as of a checkpoint.

Decides how LangGraph's snapshots look to an application: nothing in them names our internal thread ids.
Whether a state may be changed now is for whoever holds the thread to know.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import PregelTask, StateSnapshot, StateUpdate

from outlive import agents, encoding, errors
from outlive.agents import fenced_saver, graph_call, prelude
from outlive.agents.position import Graph, position_of, stands
from outlive.agents.positions import Moment, Place
from outlive.model import Claim, Run
from outlive.states import Position


class Remembering(abc.ABC):
    """The part of an agent of a graph that reads and changes the states of threads."""

    _own: BaseCheckpointSaver[Any] | None
    _store: Any

    @property
    def elsewhere(self) -> bool:
        """Whether the checkpoints are in the graph's own saver, and not beside the runs."""
        return self._own is not None

    @property
    @abc.abstractmethod
    def reading(self) -> Graph:
        """The graph over its checkpoints, to read states by internal thread id; it cannot write."""

    @abc.abstractmethod
    def _saver(self, claim: Claim | None) -> fenced_saver.FencedSaver: ...

    @abc.abstractmethod
    def _with(self, saver: fenced_saver.FencedSaver) -> Graph: ...

    async def moment(self, thread_id: str, place: Place) -> Moment:
        """Return the state of a thread at a checkpoint, its subgraphs' too; raises ``NotFound``."""
        return await read(self.reading, thread_id, place)

    async def check_answer(self, thread_id: str, given: Any) -> None:
        """See whether an answer is for what a thread asks; raises ``InvalidInput``, which names that."""
        try:
            state = await self.reading.aget_state(address(thread_id, Place()), subgraphs=True)
        except errors.StateUnreadable:  # the run will find that too, and its record tells the operator why
            return
        graph_call.check_answer(given["command"]["resume"], [one.id for one in state.interrupts])

    async def moments(self, thread_id: str, place: Place, limit: int) -> list[Moment]:
        """Return up to ``limit`` states, newest first, older than the place's checkpoint if it names one."""
        return await history(self.reading, thread_id, place, limit)

    async def changed(
        self, claim: Claim, place: Place, values: Any, as_node: str | None, metadata: dict[str, Any]
    ) -> Place:
        """Write a state behind the place's, as if a node had, under the fence; returns where it is."""
        saver = self._saver(claim)
        try:
            graph = self._with(saver)
            return await update(graph, claim.thread_id, place, (values, as_node), metadata)
        finally:
            await saver.settled()
            saver.check()

    async def stepped(
        self, claim: Claim, supersteps: Sequence[Sequence[StateUpdate]], metadata: dict[str, Any]
    ) -> None:
        """Write one checkpoint for each of ``supersteps``, as if nodes had, under the fence.

        Raises ``InvalidInput``, ``Fenced``.
        """
        saver = self._saver(claim)
        where = cast("RunnableConfig", {**address(claim.thread_id, Place()), "metadata": metadata})
        try:
            await self._with(saver).abulk_update_state(where, supersteps)
        except (InvalidUpdateError, ValueError) as wrong:
            raise _not_taken(wrong, "supersteps") from wrong
        finally:
            await saver.settled()
            saver.check()

    async def taken_back(self, run: Run) -> tuple[str, ...]:
        """Take back what was left part-way on the thread that this run holds; returns the runs that were."""
        saver = self._saver(run.claim)
        context = agents.Context(run=run, claim=run.claim)
        first = prelude.Prelude(
            graph=self._with(saver), context=context, maker=graph_call.Maker(), store=self._store
        )
        try:
            left = await first.look()
            return () if left is None else await first.take_back(left)
        finally:
            await saver.settled()
            saver.check()

    def writing(self, claim: Claim) -> fenced_saver.FencedSaver:
        """Return a saver that writes checkpoints of the thread that ``claim`` holds."""
        return self._saver(claim)

    async def forget(self, thread_id: str) -> None:
        """Delete a thread from the graph's own saver; what is beside the runs goes with them."""
        if self._own is not None:
            await self._own.adelete_thread(thread_id)


def address(thread_id: str, place: Place) -> RunnableConfig:
    """Return where a checkpoint is: the newest one, unless the place names one."""
    configurable: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": place.namespace}
    if place.checkpoint_id is not None:
        configurable["checkpoint_id"] = place.checkpoint_id
    return {"configurable": configurable}


async def read(graph: Graph, thread_id: str, place: Place) -> Moment:
    """Return the state at a checkpoint, its subgraphs' too; raises ``NotFound``."""
    where = address(thread_id, place)
    if place.checkpoint_id is None and not place.namespace:
        position, snapshot = await stands(graph, where)
    else:
        snapshot = await graph.aget_state(where, subgraphs=True)
        position = await _position(graph, snapshot)
    if snapshot.created_at is None and place.checkpoint_id is not None:
        raise errors.NotFound(f"The thread has no checkpoint {place.checkpoint_id}.", field="checkpoint_id")
    return _moment(snapshot, position)


async def history(graph: Graph, thread_id: str, place: Place, limit: int) -> list[Moment]:
    """Return up to ``limit`` states, newest first, older than the place's checkpoint if it names one."""
    newest = address(thread_id, Place(namespace=place.namespace))
    before = address(thread_id, place) if place.checkpoint_id is not None else None
    found = graph.aget_state_history(newest, before=before, limit=limit)
    return [_moment(snapshot, await _position(graph, snapshot)) async for snapshot in found]


async def update(
    graph: Graph, thread_id: str, place: Place, wanted: tuple[Any, str | None], metadata: dict[str, Any]
) -> Place:
    """Write a checkpoint with values, as a node's, behind the one that the place names; returns where it is.

    Raises ``NotFound``, and ``InvalidInput`` for values or a node that the graph does not take.
    """
    where = address(thread_id, place)
    saver = cast("BaseCheckpointSaver[Any]", graph.checkpointer)
    if place.checkpoint_id is not None and await saver.aget_tuple(where) is None:
        raise errors.NotFound(f"The thread has no checkpoint {place.checkpoint_id}.", field="checkpoint_id")
    try:
        written = await graph.aupdate_state(cast("RunnableConfig", {**where, "metadata": metadata}), *wanted)
    except InvalidUpdateError as wrong:
        raise _not_taken(wrong, "values") from wrong
    return _place(written) or place


def _not_taken(wrong: Exception, field: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"The graph does not take this: {str(wrong)[:200]}.",
        hint="Name a node of the graph in as_node, and keys of its state in values.",
        field=field,
    )


async def _position(graph: Graph, snapshot: StateSnapshot) -> Position:
    """Tell where the thread stood while this was its newest checkpoint."""
    return await position_of(graph, snapshot)


def _moment(snapshot: StateSnapshot, position: Position) -> Moment:
    return Moment(
        place=_place(snapshot.config),
        parent=_place(snapshot.parent_config),
        position=position,
        created_at=snapshot.created_at,
        next=tuple(snapshot.next),
        values=_plain(snapshot.values),
        metadata=_plain(dict(snapshot.metadata or {})),
        interrupts=_plain(list(snapshot.interrupts)),
        tasks=tuple(_task(task) for task in snapshot.tasks),
    )


def _task(task: PregelTask) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": task.id,
        "name": task.name,
        "error": None if task.error is None else type(task.error).__name__,
        "interrupts": _plain(list(task.interrupts)),
        "result": _plain(task.result),
        "state": None,
    }
    if isinstance(task.state, StateSnapshot):
        shown["state"] = _inner(task.state)
    return shown


def _inner(snapshot: StateSnapshot) -> dict[str, Any]:
    place = _place(snapshot.config)
    return {
        "checkpoint": place.public() if place else None,
        "next": list(snapshot.next),
        "values": _plain(snapshot.values),
        "tasks": [_task(task) for task in snapshot.tasks],
    }


def _place(config: RunnableConfig | None) -> Place | None:
    found = (config or {}).get("configurable", {})
    if found.get("checkpoint_id") is None:
        return None
    return Place(checkpoint_id=found["checkpoint_id"], namespace=found.get("checkpoint_ns") or "")


def _plain(value: Any) -> Any:
    return json.loads(encoding.encode(value).text)
