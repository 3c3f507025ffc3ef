"""A deploy renames a class that checkpoints hold: nothing goes on with something else in its place."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pydantic
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import outlive
from agents import bench
from agents.test_threads import ANSWER, Threads, serving
from outlive import errors, policy
from outlive.agents import langgraph, serde
from outlive.states import State

pytestmark = pytest.mark.anyio
APP = "an_app_with_orders"
KINDS = ("dataclass", "pydantic", "nested")


class Shop:
    """The application's module, in one of its versions."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.module = types.ModuleType(APP)
        sys.modules[APP] = self.module
        serde._FOUND.clear()

    def deploy(self, name: str, *aliases: str) -> Any:
        """Have the class under this name, and no other; returns a graph that uses it."""
        self.module = types.ModuleType(APP)
        sys.modules[APP] = self.module
        serde._FOUND.clear()
        order: Any
        if self.kind == "pydantic":
            order = pydantic.create_model(name, number=(int, ...), __module__=APP)
        else:
            order = dataclasses.make_dataclass(name, [("number", int)])
            order.__module__ = APP
        for known in (name, *aliases):
            setattr(self.module, known, order)
        return self._graph(order)

    def _graph(self, order: Any) -> Any:
        nested = self.kind == "nested"

        class Cart(TypedDict):
            order: Any
            said: Annotated[list[str], lambda old, new: old + new]

        async def make(state: Cart) -> dict[str, Any]:
            return {"order": {"lines": [order(number=7)]} if nested else order(number=7)}

        async def ask(state: Cart) -> dict[str, Any]:
            answer = interrupt("buy it?")
            held = state["order"]["lines"][0] if nested else state["order"]
            return {"said": [f"{type(held).__name__} {held.number} {answer}"]}

        builder: StateGraph[Any, Any, Any, Any] = StateGraph(Cart)
        builder.add_node("make", make)
        builder.add_node("ask", ask)
        builder.add_edge(START, "make")
        builder.add_edge("make", "ask")
        return builder.compile()


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """An application whose state holds an object of a class of its own."""
    yield Shop(request.param)
    sys.modules.pop(APP, None)
    serde._FOUND.clear()


async def test_renamed_state_classes_an_answer_is_not_taken_on_what_cannot_be_read(
    database: str, shop: Shop
) -> None:
    """Loud for whoever answers, for the operator, and nothing is lost: with an alias it goes on."""
    async with serving(database, shop.deploy("Order")) as service:
        assert (await Threads(service).sent({"said": []})).state is State.WAITING
    before = bench.Bench(database).rows()
    async with serving(database, shop.deploy("Purchase")) as service:
        run = await Threads(service).sent(ANSWER)
        assert run.state is State.FAILED
        assert run.public()["error"]["code"] == "state_unreadable"
        assert f"{APP}.Order" in str(run.error_detail)
        assert APP not in str(run.public()["error"])
        with pytest.raises(errors.StateUnreadable):
            await service.submit("graph", {"said": ["new"]}, thread="t")
        with pytest.raises(errors.StateUnreadable):
            await service.state("t")
        assert bench.Bench(database).rows() == before
    async with serving(database, shop.deploy("Purchase", "Order")) as service:
        run = await Threads(service).sent(ANSWER)
    assert run.state is State.SUCCEEDED
    assert run.public()["output"]["said"] == ["Purchase 7 yes"]


async def test_whoever_wants_what_LangGraph_does_gives_its_own_serialiser(database: str) -> None:
    shop = Shop("nested")
    rules = policy.job(on_busy="enqueue")
    runs = []
    for name, state in (("Order", State.WAITING), ("Purchase", State.FAILED)):
        agent = langgraph.LangGraphAgent("graph", shop.deploy(name), policy=rules, serde=JsonPlusSerializer())
        async with outlive.Outlive(database, [agent]) as service:
            given: Any = {"said": []} if name == "Order" else ANSWER
            runs.append(await Threads(service).sent(given))
            assert runs[-1].state is state
    assert runs[-1].public()["error"]["type"] == "AttributeError", "the node got a dict"
    sys.modules.pop(APP, None)


def test_plain_values_and_classes_that_are_there_are_read_as_ever() -> None:
    faithful, plain = serde.Faithful(), JsonPlusSerializer()
    values: list[Any] = [
        {"a": [1, None, {2: b"x"}]},
        State.WAITING,
        errors.__name__,
        {"set": {1, 2}, "tuple": (1, 2)},
        bench.JOB.stop_deadline,
    ]
    for value in values:
        assert faithful.loads_typed(faithful.dumps_typed(value)) == plain.loads_typed(
            plain.dumps_typed(value)
        )
