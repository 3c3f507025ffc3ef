"""What the processes of these tests serve."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

import outlive
from outlive import policy


@outlive.agent("gated", policy=policy.job())
async def gated(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Say which attempt this is, and again once the gate whose port is the input opens."""
    yield ["before", context.attempt]
    reader, writer = await asyncio.open_connection("127.0.0.1", context.input)
    try:
        await reader.readexactly(1)
    finally:
        writer.close()
    yield ["after", context.attempt]


@outlive.agent("flood", policy=policy.job())
async def flood(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """More than any buffer between two processes holds, and then nothing."""
    for _ in range(context.input):
        yield "x" * 100_000
    await asyncio.Event().wait()


both = [gated, flood]


async def plain(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """A generator without a policy of its own."""
    yield context.input


async def no_generator(context: outlive.Context) -> None:
    """Something that cannot be served."""


class State(TypedDict):
    """The state of the graph."""

    n: int


async def add(state: State) -> State:
    """The only node."""
    return {"n": state["n"] + 1}


builder = StateGraph(State)
builder.add_node("add", add)
builder.add_edge(START, "add")
builder.add_edge("add", END)
graph = builder.compile()


class Impatient:
    """An agent during whose start the process is told to end."""

    name = "impatient"
    policy = policy.job()
    drains = False

    async def bind(self, store: Any, happenings: Any) -> None:
        """Be told to end before the server is there to hear it."""
        os.kill(os.getpid(), signal.SIGTERM)

    async def stream(self, context: outlive.Context) -> AsyncGenerator[Any, None]:
        """Never called."""
        yield context.input


impatient = Impatient()
