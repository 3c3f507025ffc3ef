"""A booking of three nodes whose charge goes to a provider, with the ledger and without it.

The input names the provider's URL, the booking, and whether the provider honours keys.  Points at which the
process can be killed are the ledger's own; the graph without a ledger has two in their place.
"""

from __future__ import annotations

from typing import Any, TypedDict

import httpx
from langgraph.graph import END, START, StateGraph

from outlive import agents, effects, failpoints, policy
from outlive.agents.generator import agent
from outlive.agents.langgraph import LangGraphAgent


class State(TypedDict, total=False):
    """What the booking knows."""

    url: str
    booking: str
    keys: bool
    paid: str


async def plan(state: State) -> State:
    """Nothing that can be seen from outside."""
    return {"booking": state["booking"]}


async def charge_once(state: State) -> State:
    """Charge through the ledger."""
    booking = state["booking"]
    paid = await effects.once(
        "charge", key=booking, call=lambda: _pay(state), key_ttl=3600.0 if state["keys"] else None
    )
    return {"paid": paid}


async def charge_allowed(state: State) -> State:
    """The same with somebody to ask first, so that the wish is on record before the start."""
    booking = state["booking"]
    paid = await effects.once(
        "charge",
        key=booking,
        call=lambda: _pay(state),
        authorize=lambda: True,
        key_ttl=3600.0 if state["keys"] else None,
    )
    return {"paid": paid}


async def charge(state: State) -> State:
    """Charge as a client library does it: with a key of the request's own."""
    failpoints.reach("effects.call")
    paid = await _pay(state)
    failpoints.reach("effects.answered")
    return {"paid": paid}


async def finish(state: State) -> State:
    """Nothing that can be seen from outside; the charge's checkpoint is written before it."""
    failpoints.reach("lab.finish")
    return {"booking": state["booking"]}


async def _pay(state: State) -> str:
    async with httpx.AsyncClient(transport=effects.Transport(), timeout=20.0) as http:
        answer = await http.post(f"{state['url']}/charge", json={"reference": state["booking"]})
        answer.raise_for_status()
        return str(answer.json()["reference"])


def _graph(name: str, node: Any) -> LangGraphAgent:
    steps: Any = StateGraph(State)
    nodes = {"plan": plan, "charge": node, "finish": finish}
    for word, step in nodes.items():
        steps.add_node(word, step)
    for before, after in zip((START, *nodes), (*nodes, END), strict=True):
        steps.add_edge(before, after)
    return LangGraphAgent(name, steps.compile(), policy=policy.job(on_busy="enqueue"), modes=["updates"])


@agent("many", policy=policy.job(on_busy="enqueue"))
async def many(context: agents.Context) -> Any:
    """Have so many effects that do nothing, one after another."""
    for number in range(context.input["count"]):
        await effects.once("nothing", key=[context.run.run_id, number], call=_nothing, key_ttl=60.0)
    yield agents.Outcome(output=None)


async def _nothing() -> None:
    """An effect that costs nothing itself."""


served = [_graph("ledger", charge_once), _graph("asked", charge_allowed), _graph("bare", charge), many]
