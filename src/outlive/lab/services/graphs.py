"""The graphs of the experiments: a booking of four nodes, and the same booking built in other ways.

Every executed node appends a line to the effect log. The delays make one window easy to hit: a client that
leaves at the second chunk leaves early in `notify`.
"""

from __future__ import annotations

import asyncio
import operator
import os
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

EFFECTS_VARIABLE = "OUTLIVE_LAB_EFFECTS"

#: Seconds per node.
NODES = {"plan": 0.05, "charge": 0.05, "notify": 0.5, "finish": 0.05}


class State(TypedDict):
    """What the booking has done so far."""

    steps: Annotated[list[str], operator.add]


def effect(thread: str, name: str) -> None:
    """Append a line; a single write to a file opened for appending is never interleaved."""
    line = f"{time.monotonic():.4f}\t{thread}\t{name}\t{os.getpid()}\n"
    descriptor = os.open(os.environ[EFFECTS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def node(name: str, seconds: float) -> Callable[..., Any]:
    """An asynchronous node that takes so long, has an effect and says a custom word."""

    async def work(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        del state
        await asyncio.sleep(seconds)
        effect(str(config["configurable"]["thread_id"]), name)
        get_stream_writer()(name)
        return {"steps": [name]}

    return work


def sync_node(name: str, seconds: float) -> Callable[..., Any]:
    """The same for a graph that is invoked from a thread."""

    def work(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        del state
        time.sleep(seconds)
        effect(str(config["configurable"]["thread_id"]), name)
        return {"steps": [name]}

    return work


def chain(make: Callable[[str, float], Any] = node) -> Any:
    """plan, charge, notify, finish, one after another."""
    builder: Any = StateGraph(State)
    for name, seconds in NODES.items():
        builder.add_node(name, make(name, seconds))
    for before, after in zip((START, *NODES), (*NODES, END), strict=True):
        builder.add_edge(before, after)
    return builder


def parallel() -> Any:
    """plan, then charge beside a quick audit, then finish: a chunk arrives while charge is in flight."""
    builder: Any = StateGraph(State)
    for name, seconds in (("plan", 0.05), ("audit", 0.05), ("charge", 0.6), ("finish", 0.05)):
        builder.add_node(name, node(name, seconds))
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "audit")
    builder.add_edge("plan", "charge")
    builder.add_edge(["audit", "charge"], "finish")
    builder.add_edge("finish", END)
    return builder


def nested() -> Any:
    """The chain with `charge` and `notify` inside a subgraph."""
    inner: Any = StateGraph(State)
    for name in ("charge", "notify"):
        inner.add_node(name, node(name, NODES[name]))
    inner.add_edge(START, "charge")
    inner.add_edge("charge", "notify")
    builder: Any = StateGraph(State)
    builder.add_node("plan", node("plan", NODES["plan"]))
    builder.add_node("book", inner.compile())
    builder.add_node("finish", node("finish", NODES["finish"]))
    for before, after in zip((START, "plan", "book", "finish"), ("plan", "book", "finish", END), strict=True):
        builder.add_edge(before, after)
    return builder


def talkative() -> Any:
    """plan, then a charge that tells what it does while it is in flight."""

    async def charge(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        del state
        write = get_stream_writer()
        for word in ("asking", "the", "bank"):
            write(word)
            await asyncio.sleep(0.2)
        effect(str(config["configurable"]["thread_id"]), "charge")
        return {"steps": ["charge"]}

    builder: Any = StateGraph(State)
    builder.add_node("plan", node("plan", 0.05))
    builder.add_node("charge", charge)
    builder.add_node("finish", node("finish", 0.05))
    for before, after in zip(
        (START, "plan", "charge", "finish"), ("plan", "charge", "finish", END), strict=True
    ):
        builder.add_edge(before, after)
    return builder
