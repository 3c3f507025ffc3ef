"""The graphs that every server of the benchmark runs, and the modes in which each streams them."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

from outlive.agents import langgraph

MODES = sorted(langgraph.MODES)
CHUNKS = 2_000
TOKEN = "a piece of an answer "


class Steps(TypedDict):
    """A state that remembers which nodes wrote to it."""

    steps: Annotated[list[str], operator.add]


async def _once(state: Steps) -> dict[str, list[str]]:
    return {"steps": ["once"]}


async def _talk(state: Steps) -> dict[str, list[str]]:
    write = get_stream_writer()
    for number in range(CHUNKS):
        write({"n": number, "text": TOKEN})
        await asyncio.sleep(0)  # as a model's stream does between two tokens
    return {"steps": ["talk"]}


def graph(name: str, checkpointer: Any = None) -> Any:
    """Return ``once`` (one node that does nothing) or ``talk`` (one that streams 2,000 chunks), compiled."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Steps)
    builder.add_node(name, {"once": _once, "talk": _talk}[name])
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile(checkpointer=checkpointer)


NAMES = ("once", "talk")
