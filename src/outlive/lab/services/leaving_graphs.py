"""A graph in which everything happens at once, checkpoints that take their time, and a tape of what executed.

Three nodes stand side by side: one streams a model's tokens, one writes custom data, one is a subgraph.  Two
more follow.  A node is on the tape once nothing of it is left to be cut: between that and its return it
awaits nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

from outlive import signals
from outlive.agents import fenced_saver, langgraph
from outlive.policy import RunPolicy

DELAY = 0.2
"""Seconds that each write of a checkpoint takes on top, as with a database far away."""
WORK = 0.05
"""Seconds that a node works, at most."""
TOGETHER = ("talk", "write", "inner")
NODES = (*TOGETHER, "innermost", "charge", "notify")


def _with(before: Sequence[str], more: Sequence[str]) -> list[str]:
    """A subgraph gives back what it was given: it counts once."""
    return [*before, *(step for step in more if step not in before)]


class State(TypedDict):
    """Whose turn of the conversation it is, and which nodes wrote in which turn."""

    turn: str
    steps: Annotated[list[str], _with]


class Tape:
    """What executed, by thread: a label ``turn:node`` for each end of a node."""

    def __init__(self, seed: int = 0) -> None:
        self._executed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._random = random.Random(seed)

    def of(self, thread_id: str) -> Counter[str]:
        """What executed on a thread so far."""
        return self._executed[thread_id].copy()

    async def work(self) -> None:
        """What each node does: it can be cut here."""
        await asyncio.sleep(self._random.uniform(0, WORK))

    def done(self, state: State, config: RunnableConfig, name: str) -> dict[str, list[str]]:
        """What each node ends with."""
        label = f"{state['turn']}:{name}"
        self._executed[config["configurable"]["thread_id"]][label] += 1
        return {"steps": [label]}


def graph(tape: Tape, checkpointer: Any = None) -> Any:
    """The graph of these nodes, compiled."""

    async def talk(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
        async for _ in model.astream("go"):
            pass
        await tape.work()
        return tape.done(state, config, "talk")

    async def write(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        get_stream_writer()({"progress": 1})
        await tape.work()
        get_stream_writer()({"progress": 2})
        return tape.done(state, config, "write")

    builder: Any = StateGraph(State)
    builder.add_node("talk", talk)
    builder.add_node("write", write)
    builder.add_node("sub", _chain(tape, "inner", "innermost").compile())
    builder.add_node("charge", _node(tape, "charge"))
    builder.add_node("notify", _node(tape, "notify"))
    for node in ("talk", "write", "sub"):
        builder.add_edge(START, node)
    builder.add_edge(["talk", "write", "sub"], "charge")
    builder.add_edge("charge", "notify")
    builder.add_edge("notify", END)
    return builder.compile(checkpointer=checkpointer)


def _chain(tape: Tape, *names: str) -> Any:
    builder: Any = StateGraph(State)
    for name in names:
        builder.add_node(name, _node(tape, name))
    for before, after in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(before, after)
    return builder


def _node(tape: Tape, name: str) -> Any:
    async def node(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        await tape.work()
        return tape.done(state, config, name)

    return node


def recorded(snapshot: Any) -> set[str]:
    """What a thread's newest state holds, with what its open step has written already, at every depth."""
    found = set((snapshot.values or {}).get("steps", ()))
    for task in snapshot.tasks:
        if isinstance(task.result, Mapping):
            found |= set(task.result.get("steps", ()))
        if hasattr(task.state, "tasks"):
            found |= recorded(task.state)
    return found


class SlowAgent(langgraph.LangGraphAgent):
    """The graph as an agent whose checkpoints, once begun to be written, take ``DELAY`` to be there."""

    def __init__(self, name: str, tape: Tape, *, policy: RunPolicy) -> None:
        super().__init__(name, graph(tape), policy=policy)

    async def bind(self, store: Any, happenings: signals.Signals) -> None:
        """Like the graph's own."""
        await super().bind(store, happenings)
        assert self._savers is not None
        slow = _Slow(self._savers.checkpoints)
        self._savers = langgraph.Savers(checkpoints=slow, happenings=happenings, serde=self._serde)


class _Slow:
    def __init__(self, inner: fenced_saver.Checkpoints) -> None:
        self._inner = inner
        self.read = inner.read
        self.next_version = inner.next_version

    async def write(self, *write: Any) -> Any:
        await asyncio.sleep(DELAY)
        return await self._inner.write(*write)


class SlowSaver(AsyncSqliteSaver):
    """LangGraph's own saver, as slow."""

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        """Store a checkpoint."""
        await asyncio.sleep(DELAY)
        return await super().aput(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        """Store what a task wrote."""
        await asyncio.sleep(DELAY)
        await super().aput_writes(*args, **kwargs)
