"""Graphs as a service would have them: a chat whose model streams, with a question; steps behind gates."""

from __future__ import annotations

import asyncio
import operator
from collections import defaultdict
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import interrupt

gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""What a run named in ``hold`` waits for."""
reached: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""Set once it waits."""
executed: defaultdict[str, list[str]] = defaultdict(list)
"""Which steps were executed for the run named in ``hold``, over all attempts and threads."""


class Talk(MessagesState):
    """Messages, and who holds the answer back once its first words are said."""

    hold: str


async def _model(state: Talk) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


async def _ask(state: Talk) -> dict[str, Any]:
    if hold := state.get("hold"):
        reached[hold].set()
        await gates[hold].wait()
    return {"messages": [AIMessage(f"heard {interrupt({'question': 'go on?'})}")]}


class Steps(TypedDict, total=False):
    """What the steps have written, and who holds them."""

    steps: Annotated[list[str], operator.add]
    hold: str
    fail: bool


def _step(name: str, *, held: bool = False) -> Any:
    async def step(state: Steps) -> dict[str, Any]:
        hold = state.get("hold", "")
        if held and hold:
            reached[hold].set()
            await gates[hold].wait()
        executed[hold].append(name)
        if name == "notify" and state.get("fail"):
            raise ValueError("the secret of this agent")
        return {"steps": [name]}

    return step


def chat() -> Any:
    """A model, then a question."""
    builder = StateGraph(Talk)
    builder.add_node("model", _model)
    builder.add_node("ask", _ask)
    builder.add_edge(START, "model")
    builder.add_edge("model", "ask")
    builder.add_edge("ask", END)
    return builder.compile()


def steps() -> Any:
    """Plan, charge, and notify behind a gate, if the input names one."""
    builder = StateGraph(Steps)
    builder.add_node("plan", _step("plan"))
    builder.add_node("charge", _step("charge"))
    builder.add_node("notify", _step("notify", held=True))
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "charge")
    builder.add_edge("charge", "notify")
    builder.add_edge("notify", END)
    return builder.compile()


class Memory(TypedDict, total=False):
    """Whom a graph is to remember what of, and what it remembers then."""

    user: str
    fact: str
    known: list[str]


async def _remember(state: Memory, runtime: Runtime[None]) -> dict[str, Any]:
    assert runtime.store is not None
    await runtime.store.aput(("facts", state["user"]), state["fact"], {"fact": state["fact"]})
    found = await runtime.store.asearch(("facts", state["user"]))
    return {"known": sorted(item.value["fact"] for item in found)}


def _recall(state: Memory, runtime: Runtime[None]) -> dict[str, Any]:
    """A node that is no coroutine, which LangGraph runs in a thread."""
    assert runtime.store is not None
    found = runtime.store.get(("facts", state["user"]), state["fact"])
    return {"known": [*state["known"], f"again {found.value['fact'] if found else 'nothing'}"]}


def memory() -> Any:
    """Remember something over all threads, and recall it."""
    builder = StateGraph(Memory)
    builder.add_node("remember", _remember)
    builder.add_node("recall", _recall)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", "recall")
    builder.add_edge("recall", END)
    return builder.compile()


@tool
def look_up(word: str) -> str:
    """Say what a word means."""
    return f"{word} means itself"


async def _speak(state: Talk) -> dict[str, Any]:
    await look_up.ainvoke({"word": "hello"})
    get_stream_writer()({"name": "progress", "of": "speaking"})
    return await _model(state)


def _sum_up(state: Talk) -> dict[str, Any]:
    get_stream_writer()("summing up")
    return {"messages": [AIMessage(f"{len(state['messages'])} messages", id="sum")]}


def nested() -> Any:
    """A graph inside a graph: a model and a word of its own inside, another outside."""
    inner = StateGraph(Talk)
    inner.add_node("speak", _speak)
    inner.add_edge(START, "speak")
    inner.add_edge("speak", END)
    builder = StateGraph(Talk)
    builder.add_node("inside", inner.compile())
    builder.add_node("sum_up", _sum_up)
    builder.add_edge(START, "inside")
    builder.add_edge("inside", "sum_up")
    builder.add_edge("sum_up", END)
    return builder.compile()


class Whose(TypedDict, total=False):
    """What a graph was told of its user."""

    identity: str
    role: str
    named: str
    permissions: list[str]


async def _whose(state: Whose, config: RunnableConfig) -> Whose:
    del state
    runtime = get_runtime()
    user = config["configurable"]["langgraph_auth_user"]
    known = runtime.server_info.user if runtime.server_info else None
    assert known is not None
    assert config["configurable"]["langgraph_auth_user_id"] == known.identity
    return {
        "identity": user["identity"],
        "role": user.role,
        "named": known.display_name,
        "permissions": list(known.permissions),
    }


def whose() -> Any:
    """One step, which says what it was told of its user."""
    builder = StateGraph(Whose)
    builder.add_node("whose", _whose)
    builder.add_edge(START, "whose")
    return builder.compile()
