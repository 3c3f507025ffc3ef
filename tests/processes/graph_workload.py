"""A graph for processes of their own; apart from the other agents, for LangGraph is slow to import."""

from __future__ import annotations

from typing import Any, TypedDict

import langgraph.graph

import outlive
from outlive import failpoints
from outlive.agents import langgraph as langgraph_agent
from outlive.agents import saver_postgres, saver_sqlite
from outlive.testing.processes import gate, say


class State(TypedDict):
    """What the graph knows."""

    done: list[str]


_ran: list[str] = []


def _with_a_point(checkpoints: Any) -> None:
    """A point right before the checkpoint writes that follow the first node, whatever proves their claim."""
    write = checkpoints.write

    async def write_after_first(self: Any, *args: Any) -> Any:
        if _ran:
            failpoints.reach("checkpoint")
        return await write(self, *args)

    checkpoints.write = write_after_first


_with_a_point(saver_sqlite.SqliteCheckpoints)
_with_a_point(saver_postgres.PostgresCheckpoints)


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
