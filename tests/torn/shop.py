"""Somebody's service: a graph that charges by itself, and what is declared so that a sweep can ask about it.

The provider is a file: each line is something that it did.
"""

from __future__ import annotations

import operator
import os
import pathlib
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from outlive import effects
from outlive.effects.asking import Executed


class Order(TypedDict, total=False):
    """An order of that shop."""

    booking: str
    steps: Annotated[list[str], operator.add]


class Cut(BaseException):
    """What stands for a kill: the node never returns, and nobody writes down that it was there."""


def did() -> list[str]:
    """Everything that the provider did, in order."""
    path = pathlib.Path(os.environ["SHOP_PROVIDER"])
    return path.read_text("utf-8").split() if path.exists() else []


def do(what: str) -> None:
    """Have the provider do something."""
    with pathlib.Path(os.environ["SHOP_PROVIDER"]).open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")


def look_up(call: effects.Call) -> dict[str, str]:
    """Ask it whether it charged a booking, and has not refunded it."""
    if os.environ.get("SHOP_SILENT"):
        raise ConnectionError("no route")
    done = did()
    if os.environ.get("SHOP_FORGETS_REFUNDS"):
        done = [what for what in done if not what.startswith("refund")]
    if done.count(f"charge:{call.key}") <= done.count(f"refund:{call.key}"):
        raise effects.NotExecuted
    return {"receipt": call.key}


def refund(executed: Executed) -> None:
    """Undo a charge."""
    assert executed.result == {"receipt": executed.key}
    do(f"refund:{executed.key}")


@effects.effect("charge", key="booking", kind="reversible", lookup=look_up, compensate=refund, key_ttl=60)
def declared_charge(booking: str) -> Any:
    """What a sweep knows of the charge; the graph itself charges without it."""
    raise AssertionError("a sweep executes nothing")


async def _plan(state: Order) -> Order:
    return {"steps": ["plan"]}


async def _charge(state: Order) -> Order:
    cut = os.environ.get("SHOP_CUT")
    if cut == "before":
        raise Cut
    do(f"charge:{state['booking']}")
    if cut == "after":
        raise Cut
    return {"steps": ["charge"]}


async def _notify(state: Order) -> Order:
    if os.environ.get("SHOP_CUT") == "notify":
        raise Cut
    do(f"notify:{state['booking']}")
    return {"steps": ["notify"]}


async def _ask(state: Order) -> Order:
    return {"steps": [interrupt("sure?")]}


def built(*names: str) -> Any:
    """A graph whose nodes follow each other."""
    nodes = {"plan": _plan, "charge": _charge, "notify": _notify, "ask": _ask}
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Order)
    for name in names:
        builder.add_node(name, nodes[name])
    for before, after in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(before, after)
    return builder


NAMES = ("plan", "charge", "notify")
graph = built(*NAMES).compile()
"""What the sweep is told of the service."""
