"""A booking whose nodes say what they did, and whose third one waits for a gate that its input names.

The charge goes through the ledger of effects and can be refunded.  What is said survives the death, the stop
and the record of whoever said it.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from outlive import effects, policy
from outlive.agents.langgraph import LangGraphAgent
from outlive.testing.processes import gate, say

NODES = ("plan", "charge", "notify", "finish")


class State(TypedDict):
    """Whose turn of the conversation it is, the gate that ``notify`` waits for, and which nodes wrote."""

    turn: str
    gate: str
    steps: Annotated[list[str], operator.add]


async def _refund(done: Any) -> None:
    say(refunded=done.inputs["turn"])


@effects.effect("charge", key="turn", kind="reversible", compensate=_refund, key_ttl=3600.0)
async def _charge(turn: str) -> str:
    say(charged=turn)
    return turn


async def _work(name: str, state: State) -> None:
    if name == "charge":
        await _charge(state["turn"])
    elif name == "notify":
        say(at="notify", turn=state["turn"])
        await gate(state["gate"]).wait()


def _node(name: str) -> Any:
    async def node(state: State) -> dict[str, list[str]]:
        await _work(name, state)
        say(done=name, turn=state["turn"])
        return {"steps": [name]}

    return node


def _graph() -> Any:
    steps: Any = StateGraph(State)
    for name in NODES:
        steps.add_node(name, _node(name))
    for before, after in zip((START, *NODES), (*NODES, END), strict=True):
        steps.add_edge(before, after)
    return steps.compile()


served = [LangGraphAgent("booking", _graph(), policy=policy.job(on_busy="enqueue"), modes=["updates"])]
