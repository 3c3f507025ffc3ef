"""A graph for processes of their own; apart from the other agents, for LangGraph is slow to import."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from typing import Any, TypedDict

import langgraph.graph

import outlive
from outlive import failpoints
from outlive.agents import fenced_saver
from outlive.agents import langgraph as langgraph_agent
from outlive.model import Claim
from outlive.testing.processes import gate, say


class State(TypedDict):
    """What the graph knows."""

    done: list[str]


_hold = fenced_saver.hold
_ran: list[str] = []


def _hold_after_first(claim: Claim) -> Any:
    """A point right before the checkpoint writes that follow the first node, and before their proof."""
    if _ran:
        _let_writes_end()
        failpoints.reach("checkpoint")
    return _hold(claim)


def _let_writes_end() -> None:
    """Frozen in the middle of a write, this process would hold SQLite's one lock."""
    database = json.loads(sys.argv[1])["database"]
    if database.startswith("sqlite"):
        path = database.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")


fenced_saver.hold = _hold_after_first


async def _first(state: State) -> dict[str, Any]:
    say(node="first")
    await gate("first").wait()
    _ran.append("first")
    return {"done": [*state["done"], "first"]}


async def _second(state: State) -> dict[str, Any]:
    say(node="second")
    await gate("second").wait()
    return {"done": [*state["done"], "second"]}


def _graph() -> Any:
    builder = langgraph.graph.StateGraph(State)
    builder.add_node("first", _first)
    builder.add_node("second", _second)
    builder.add_edge(langgraph.graph.START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", langgraph.graph.END)
    return builder.compile()


agents = [langgraph_agent.LangGraphAgent("graph", _graph(), policy=outlive.job())]
