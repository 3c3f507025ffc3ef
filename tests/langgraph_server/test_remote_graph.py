"""RemoteGraph, LangGraph's own client of a graph elsewhere: called by itself, and as another graph's node."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command
from langgraph_sdk.client import get_sync_client

from langgraph_server.conftest import Service

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def thread() -> RunnableConfig:
    """A thread of which nobody has heard."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}}


@pytest.fixture
def remote(service: Service) -> Iterator[Any]:
    """Makes remote graphs of the service by their names."""
    with get_sync_client(url=service.url, api_key=service.tenant) as sync:

        def made(name: str) -> RemoteGraph:
            return RemoteGraph(name, client=service.sdk, sync_client=sync)

        yield made


async def test_a_remote_graph_is_called_like_one_that_is_here(remote: Any, thread: RunnableConfig) -> None:
    steps = remote("steps")
    assert (await steps.ainvoke({}, thread))["steps"] == ["plan", "charge", "notify"]
    state = await steps.aget_state(thread)
    assert (state.values["steps"], state.next) == (["plan", "charge", "notify"], ())
    history = [one async for one in steps.aget_state_history(thread)]
    assert [one.next for one in history] == [(), ("notify",), ("charge",), ("plan",), ("__start__",)]
    older = await steps.aget_state(history[1].config)
    assert older.values["steps"] == ["plan", "charge"]
    again = [one async for one in steps.aget_state_history(thread, before=history[2].config, limit=1)]
    assert again == [history[3]]
    written = await steps.aupdate_state(thread, {"steps": ["by hand"]}, as_node="plan")
    moved = await steps.aget_state(thread)
    assert moved.config["configurable"]["checkpoint_id"] == written["configurable"]["checkpoint_id"]
    assert (moved.values["steps"][-1], moved.next) == ("by hand", ("charge",))
    drawn = await steps.aget_graph()
    assert {"plan", "charge", "notify"} <= drawn.nodes.keys()


async def test_a_remote_graph_streams_each_mode_and_raises_what_failed(
    remote: Any, thread: RunnableConfig
) -> None:
    chat = remote("chat")
    modes = ["values", "updates", "messages"]
    parts = [part async for part in chat.astream(HELLO, thread, stream_mode=modes)]
    assert {part.event.split("/")[0] for part in parts} >= {"values", "updates", "messages"}
    waiting = await chat.aget_state(thread)
    assert waiting.next == ("ask",)
    assert [one.value for one in waiting.interrupts] == [{"question": "go on?"}]
    answered = await chat.ainvoke(Command(resume="yes"), thread)
    assert answered["messages"][-1]["content"] == "heard yes"
    with pytest.raises(RemoteException):
        await remote("steps").ainvoke({"fail": True})


def parent(child: RemoteGraph) -> Any:
    """A graph of which the remote one is the only node."""
    builder = StateGraph(MessagesState)
    builder.add_node("child", child)
    builder.add_edge(START, "child")
    return builder.compile(checkpointer=InMemorySaver())


async def test_a_remote_graph_that_is_a_node_streams_through_its_parent_and_pauses_it(
    remote: Any, thread: RunnableConfig
) -> None:
    child = remote("chat")
    whole = parent(child)
    given: Any = {"messages": [HumanMessage("hello", id="first")]}
    parts = [
        part
        async for part in whole.astream(given, thread, stream_mode=["values", "messages"], subgraphs=True)
    ]
    inner = [(mode, data) for namespace, mode, data in parts if namespace]
    assert {mode for mode, _ in inner} >= {"values", "messages"}
    tokens = [data[0]["content"] for mode, data in inner if mode == "messages"]
    assert "".join(tokens) == "one two three"
    paused = await whole.aget_state(thread)
    assert paused.next == ("child",)
    assert [one.value for one in paused.interrupts] == [{"question": "go on?"}]
    remote_state = await child.aget_state(thread)
    assert [one.id for one in remote_state.interrupts] == [one.id for one in paused.interrupts]
    answered = await child.ainvoke(Command(resume={paused.interrupts[0].id: "yes"}), thread)
    assert answered["messages"][-1]["content"] == "heard yes"
