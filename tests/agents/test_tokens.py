"""How a model's tokens are recorded is declared with the agent, and none of them is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import START, StateGraph

import outlive
from agents import bench
from outlive import errors
from outlive.agents import langgraph, message_tokens
from outlive.model import Event, EventKind

pytestmark = pytest.mark.anyio
WORDS = [f"w{number} " for number in range(40)]


class Model(GenericFakeChatModel):
    """Says every word at once; ``until``, and then waits for ever."""

    until: int = len(WORDS)

    async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for word in WORDS[: self.until]:
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        if self.until < len(WORDS):
            await asyncio.Event().wait()


def talking(**options: Any) -> langgraph.LangGraphAgent:
    until = options.pop("until", len(WORDS))

    async def talk(state: bench.Steps) -> Any:
        await Model(messages=iter([AIMessage("")]), until=until).ainvoke("go")
        return {"steps": ["talk"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(bench.Steps)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    return langgraph.LangGraphAgent("talk", builder.compile(), policy=bench.JOB, **options)


async def story(database: str, agent: langgraph.LangGraphAgent, *, stop_at: str = "") -> list[Event]:
    """Every event of a run, which is stopped once so much was said."""
    async with outlive.Outlive(database, [agent]) as service:
        run_id = (await service.submit("talk", {"steps": []})).run.run_id
        got: list[Event] = []
        async with asyncio.timeout(bench.WITHIN), aclosing(service.follow(run_id)) as events:
            async for event in events:
                got.append(event)
                if stop_at and said([event]) and stop_at in said([event])[-1]:
                    await service.stop(run_id)
        return got


def said(events: list[Event]) -> list[str]:
    """What each event of a message says."""
    return [
        event.data[0]["content"]
        for event in events
        if event.kind is EventKind.CHUNK and (event.mode or "").startswith("messages")
    ]


def modes(events: list[Event]) -> list[str]:
    return [event.mode or "" for event in events if event.kind is EventKind.CHUNK]


async def test_each_token_is_an_event_unless_something_else_is_declared(database: str) -> None:
    events = await story(database, talking())
    assert [word for word in said(events) if word] == WORDS


async def test_chunked_tokens_are_fewer_events_and_say_the_same(database: str) -> None:
    events = await story(database, talking(tokens="chunked"))
    assert "".join(said(events)) == "".join(WORDS)
    assert len(said(events)) < len(WORDS) / 2
    first = next(event for event in events if event.mode == "messages").data
    assert (first[0]["type"], first[1]["langgraph_node"]) == ("AIMessageChunk", "talk")
    assert modes(events).index("messages") < modes(events).index("updates")  # nothing overtakes a token


async def test_snapshots_show_a_message_as_far_as_it_is_and_whole_at_its_end(database: str) -> None:
    events = await story(database, talking(tokens="snapshots", snapshot_every=0.0))
    shown = said(events)
    assert all("".join(WORDS).startswith(text) for text in shown)
    assert shown == sorted(shown, key=len)
    assert shown[-1] == "".join(WORDS)
    named = [mode for mode in modes(events) if mode.startswith("messages")]
    assert named == ["messages/partial"] * (len(named) - 1) + ["messages/complete"]


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("tokens", ["chunked", "snapshots"])
async def test_what_a_stopped_model_had_said_is_in_the_record(database: str, tokens: Any) -> None:
    agent = talking(tokens=tokens, until=20, snapshot_every=0.01)
    events = await story(database, agent, stop_at="w19 ")
    assert events[-1].data["reason"] == "requested"
    whole = said(events)[-1] if tokens == "snapshots" else "".join(said(events))
    assert whole == "".join(WORDS[:20])
    assert "messages/complete" not in modes(events)


def test_only_a_declared_way_is_taken() -> None:
    with pytest.raises(errors.Misconfigured, match="tokens is 'some'"):
        talking(tokens="some")


def test_tokens_of_different_messages_or_subgraphs_are_told_apart() -> None:
    joins = message_tokens.MessageTokens()

    def key(mode: str, message: Any) -> Any:
        return joins.key(outlive.Chunk(mode=mode, data=(message, {})))

    one = AIMessageChunk(content="x", id="1")
    assert key("messages", one) == key("messages", AIMessageChunk(content="y", id="1")) is not None
    assert key("messages", one) != key("messages", AIMessageChunk(content="y", id="2"))
    assert key("messages", one) != key("messages|sub:1", one)
    assert key("messages", AIMessage(content="whole", id="1")) is None
    assert key("messages", AIMessageChunk(content="x")) is None
    assert key("custom", one) is None
    assert joins.key(outlive.Chunk(mode="messages", data="odd")) is None
