"""Graphs for clients in JavaScript: a test dictates what the model says; what was done stands in a file."""

from __future__ import annotations

import asyncio
import decimal
import json
import math
import pathlib
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

EFFECTS = pathlib.Path("effects.jsonl")
"""What was done, a line each: the thread, and the node."""


class Talk(MessagesState, total=False):
    """Messages, the port where the answer is dictated, and whether a question follows it."""

    port: int
    ask: bool


class Dictated(BaseChatModel):
    """Says what it hears from a port; without one, a few words of its own."""

    port: int

    @property
    def _llm_type(self) -> str:
        return "dictated"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for word in _heard(self.port) if self.port else _words():
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


async def _words() -> AsyncIterator[str]:
    for word in ("one ", "two ", "three"):
        yield word


async def _heard(port: int) -> AsyncIterator[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(b'["", 1]\n')
        while line := await reader.readline():
            said = json.loads(line)
            if isinstance(said, dict):
                raise ValueError(said["fail"])
            yield said
    finally:
        writer.close()


def _done(config: RunnableConfig, node: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(json.dumps([config["metadata"]["thread_id"], node]) + "\n")


async def _charge(state: Talk, config: RunnableConfig) -> dict[str, Any]:
    _done(config, "charge")
    return {"ask": bool(state.get("ask"))}


async def _model(state: Talk, config: RunnableConfig) -> dict[str, Any]:
    answer = await Dictated(port=state.get("port") or 0).ainvoke(state["messages"])
    _done(config, "model")
    return {"messages": [answer]}


async def _ask(state: Talk, config: RunnableConfig) -> dict[str, Any]:
    answer = interrupt({"question": "go on?"})
    _done(config, "ask")
    return {"messages": [AIMessage(f"heard {answer}")], "ask": False}


def _asks(state: Talk) -> str:
    return "ask" if state.get("ask") else END


def _chat() -> Any:
    builder = StateGraph(Talk)
    for name, node in {"charge": _charge, "model": _model, "ask": _ask}.items():
        builder.add_node(name, node)
    builder.add_edge(START, "charge")
    builder.add_edge("charge", "model")
    builder.add_conditional_edges("model", _asks, ["ask", END])
    builder.add_edge("ask", END)
    return builder.compile()


async def _tell(state: Talk) -> dict[str, Any]:
    get_stream_writer()({"percent": 50})
    if state.get("ask"):
        get_stream_writer()(
            {"strange": [math.nan, math.inf, b"bytes", {1}, decimal.Decimal("1.5"), object()]}
        )
    return {}


def _team() -> Any:
    """A worker, who is a graph of its own, and a node after it."""
    worker = StateGraph(Talk)
    worker.add_node("tell", _tell)
    worker.add_node("model", _model)
    worker.add_edge(START, "tell")
    worker.add_edge("tell", "model")
    builder = StateGraph(Talk)
    builder.add_node("worker", worker.compile())
    builder.add_node("charge", _charge)
    builder.add_edge(START, "worker")
    builder.add_edge("worker", "charge")
    return builder.compile()


async def _prepare(state: Talk, config: RunnableConfig) -> dict[str, Any]:
    _done(config, "prepare")
    return {}


def _nested() -> Any:
    """A graph in which the question is one of a graph inside, behind a step of its own."""
    inside = StateGraph(Talk)
    inside.add_node("prepare", _prepare)
    inside.add_node("ask", _ask)
    inside.add_edge(START, "prepare")
    inside.add_edge("prepare", "ask")
    builder = StateGraph(Talk)
    builder.add_node("inside", inside.compile())
    builder.add_edge(START, "inside")
    return builder.compile()


chat = _chat()
nested = _nested()
team = _team()
