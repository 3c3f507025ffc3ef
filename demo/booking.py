"""The agents that the demonstration serves: a booking of four steps, and a courier.

Decides what is executed.  Every step of a booking calls the provider, which keeps its own log of it, under a
key that comes from the booking's number in the input: nothing that is made inside of the graph could repeat.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import os
from collections.abc import AsyncGenerator
from typing import Annotated, Any, TypedDict

import httpx
from langgraph.graph import END, START, StateGraph

from outlive import agents, policy
from outlive.agents import generator
from outlive.agents.langgraph import LangGraphAgent

PROVIDER = os.environ.get("DEMO_PROVIDER", "http://127.0.0.1:8099")
"""Where the provider listens; ``demo.serve`` and ``demo.run`` start one."""

SECONDS = {"plan": 0.3, "charge": 0.0, "notify": 1.5, "finish": 0.5}
"""How long a step works before it calls the provider; a charge takes its 0.3 s over there."""


class Booking(TypedDict):
    """The graph's state."""

    booking: str
    steps: Annotated[list[str], operator.add]


async def plan(state: Booking) -> dict[str, list[str]]:
    """Look for a seat."""
    return await _step("plan", state)


async def charge(state: Booking) -> dict[str, list[str]]:
    """Take the money."""
    return await _step("charge", state)


async def notify(state: Booking) -> dict[str, list[str]]:
    """Tell the guest."""
    return await _step("notify", state)


async def finish(state: Booking) -> dict[str, list[str]]:
    """Issue the ticket."""
    return await _step("finish", state)


async def _step(name: str, state: Booking) -> dict[str, list[str]]:
    await asyncio.sleep(SECONDS[name])
    booking = state["booking"]
    answer = await _provider().post(
        f"/{name}",
        json={"booking": booking},
        headers={"Idempotency-Key": f"{booking}:{name}", "Caller": str(os.getpid())},
    )
    answer.raise_for_status()
    return {"steps": [name]}


@functools.cache
def _provider() -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=PROVIDER, timeout=30.0)


def _graph() -> Any:
    steps = StateGraph(Booking)
    for node in (plan, charge, notify, finish):
        steps.add_node(node)
    steps.add_edge(START, "plan")
    steps.add_edge("plan", "charge")
    steps.add_edge("charge", "notify")
    steps.add_edge("notify", "finish")
    steps.add_edge("finish", END)
    return steps.compile()


# No grace: that a disconnect stops the run shall be seen at once.  A request may ask for `continue` instead.
DECLARED = policy.chat(grace=0)

agent = LangGraphAgent("booking", _graph(), policy=DECLARED, modes=["updates"])


@generator.agent("courier", policy=DECLARED)
async def courier(context: agents.Context) -> AsyncGenerator[Any, None]:
    """Carry something for ``seconds``; say so at the end, unless ``silent``."""
    order = context.input
    yield {"said": "picked up"}
    await asyncio.sleep(order["seconds"])
    if not order.get("silent"):
        yield {"said": "delivered"}
    yield agents.Outcome(output={"epoch": context.claim.epoch})


served = [agent, courier]
