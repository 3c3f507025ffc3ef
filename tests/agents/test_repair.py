"""A stop during a tool call poisons no thread: a model that refuses open calls never has to."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

import outlive
from agents import bench
from outlive import policy
from outlive.agents import langgraph, repair
from outlive.model import Run
from outlive.states import Position, Reason, State

pytestmark = pytest.mark.anyio
CALLS = [
    {"name": "book", "args": {"what": what}, "id": f"call-{what}", "type": "tool_call"} for what in "abc"
]


class Refused(Exception):
    """What a provider says of a conversation that is not whole."""


class Strict(BaseChatModel):
    """Asks for three calls at once, then answers; refuses calls and results that are not in pairs."""

    seen: list[list[BaseMessage]]

    @property
    def _llm_type(self) -> str:
        return "strict"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """It knows its calls already."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        _check(messages)
        self.seen.append(list(messages))
        asked = isinstance(messages[-1], HumanMessage) and messages[-1].content == "book"
        answer = AIMessage("", tool_calls=CALLS) if asked else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _check(messages: list[BaseMessage]) -> None:
    open_calls: set[str | None] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise Refused(f"{message.tool_call_id} was not asked for")
            open_calls.discard(message.tool_call_id)
        elif open_calls:
            raise Refused(f"no results for {sorted(map(str, open_calls))}")
        if isinstance(message, AIMessage):
            open_calls |= {call["id"] for call in message.tool_calls}


class Desk:
    """Three bookings, of which those not in ``free`` take for ever."""

    def __init__(self) -> None:
        self.free: set[str] = set()
        self.begun: list[str] = []
        self.held = asyncio.Event()

    def tool(self) -> Any:
        """The tool that books."""

        @tool
        async def book(what: str) -> str:
            """Book one thing."""
            self.begun.append(what)
            if what not in self.free:
                if len(self.begun) == 3:
                    self.held.set()
                await asyncio.Event().wait()
            return f"booked {what}"

        return book


def one_by_one(desk: Desk, model: Strict) -> Any:
    """A graph with a task of its own for each call, so that what is finished is kept."""
    node = ToolNode([desk.tool()])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", node)
    builder.add_edge(START, "agent")

    def ask(state: Any) -> Any:
        calls = state["messages"][-1].tool_calls
        return [Send("tools", [call]) for call in calls] or END

    builder.add_conditional_edges("agent", ask, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile()


async def sent(service: outlive.Outlive, text: str, **more: Any) -> Run:
    """A message on the thread."""
    given = {"messages": [{"role": "user", "content": text}]}
    return (await service.submit("graph", given, thread="t", **more)).run


async def ended(service: outlive.Outlive, run: Run) -> Run:
    """A run at its end."""
    async with asyncio.timeout(bench.WITHIN), aclosing(service.follow(run.run_id)) as events:
        async for _ in events:
            pass
    return await service.run(run.run_id)


def messages(run: Run) -> list[Any]:
    """The conversation that a run came to."""
    found: list[Any] = run.public()["output"]["messages"]
    return found


@pytest.mark.parametrize("finished", [0, 1, 2])
@pytest.mark.parametrize("on_torn", ["resume", "restart", "rollback"])
async def test_S20_a_message_after_a_stop_between_calls_is_answered(
    database: str, on_torn: str, finished: int
) -> None:
    desk, model = Desk(), Strict(seen=[])
    desk.free = set("abc"[:finished])
    agent = langgraph.LangGraphAgent("graph", one_by_one(desk, model), policy=policy.job(on_torn=on_torn))
    async with outlive.Outlive(database, [agent]) as service:
        first = await sent(service, "book")
        await asyncio.wait_for(desk.held.wait(), bench.WITHIN)
        await service.stop(first.run_id, reason=Reason.REQUESTED)
        cut = await ended(service, first)
        assert (cut.state, cut.position) == (State.STOPPED, Position.TORN)
        desk.free = set("abc")
        run = await ended(service, await sent(service, "hello"))
        again = await ended(service, await sent(service, "and again"))
    assert (run.state, again.state) == (State.SUCCEEDED, State.SUCCEEDED), run.error_detail
    results = {one["tool_call_id"]: one["content"] for one in messages(again) if one["type"] == "tool"}
    expected = {f"call-{what}": f"booked {what}" for what in "abc"}
    if on_torn == "restart":
        expected |= {f"call-{what}": repair.SAID for what in "abc"[finished:]}
    assert results == ({} if on_torn == "rollback" else expected)


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_S20_a_message_that_interrupts_a_call_is_answered_at_once(database: str, on_busy: str) -> None:
    desk, model = Desk(), Strict(seen=[])
    graph = create_agent(model, [desk.tool()])
    rules = policy.job(on_busy=on_busy, on_torn="restart")
    async with outlive.Outlive(database, [langgraph.LangGraphAgent("graph", graph, policy=rules)]) as service:
        await sent(service, "book")
        await asyncio.wait_for(desk.held.wait(), bench.WITHIN)
        run = await ended(service, await sent(service, "hello"))
    assert run.state is State.SUCCEEDED, run.error_detail
    results = [one["content"] for one in messages(run) if one["type"] == "tool"]
    assert results == ([repair.SAID] * 3 if on_busy == "interrupt" else [])


async def test_S20_closing_calls_twice_or_on_a_whole_thread_changes_nothing(on: bench.Bench) -> None:
    desk, model = Desk(), Strict(seen=[])
    agent = await on.agent(one_by_one(desk, model))
    context = await on.claimed({"messages": [{"role": "user", "content": "book"}]}, thread="t")
    driven = bench.driven(agent, context)
    await asyncio.wait_for(desk.held.wait(), bench.WITHIN)
    await bench.cut(driven)
    graph = agent._with(agent._saver(context.claim))
    thread: Any = {"configurable": {"thread_id": context.run.thread_id}}
    assert set(await repair.close(graph, thread, "x")) == {call["id"] for call in CALLS}
    before = await graph.aget_state(thread)
    assert await repair.close(graph, thread, "x") == ()
    assert await graph.aget_state(thread) == before
    _check(before.values["messages"])


async def test_S20_a_thread_that_was_poisoned_long_ago_is_mended_where_its_calls_are() -> None:
    human, late = HumanMessage("book", id="1"), HumanMessage("hello?", id="3")
    asked = AIMessage("", tool_calls=CALLS[:2], id="2")
    done = ToolMessage("booked a", tool_call_id="call-a", id="4")
    found = repair._open_in({"messages": [human, asked, done, late]})
    _, update = found["messages"]
    whole = update[1:]
    assert [one.id for one in whole if one.id in "1234"] == ["1", "2", "4", "3"]
    _check(whole)
