"""Every stream mode, compared with what the same graph yields here: the same data, in that order."""

from __future__ import annotations

import copy
import json
import re
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_server import graphs
from langgraph_server.conftest import Service
from outlive import encoding

HELLO: Any = {"messages": [{"role": "user", "content": "hello", "id": "first"}]}
MODES = ["values", "updates", "custom", "tasks", "checkpoints", "debug", "messages-tuple", "tools"]
_OURS = frozenset({"thread_id", "run_id", "assistant_id", "graph_id", "parent_ids", "ls_integration"})
_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00)?")


def plain(value: Any) -> str:
    """A value as JSON, without what differs between any two runs: ids are numbered as they come."""
    text = json.dumps(_shared(json.loads(encoding.encode(value).text)), sort_keys=True)
    seen: dict[str, str] = {}
    text = _ID.sub(lambda found: seen.setdefault(found[0], f"id {len(seen)}"), text)
    return _TIME.sub("time", text)


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        shared = {name: _shared(each) for name, each in value.items() if name not in _OURS}
        return {name: each for name, each in shared.items() if name != "metadata" or each}
    return [_shared(each) for each in value] if isinstance(value, list) else value


async def streamed(service: Service, modes: list[str], *, subgraphs: bool) -> list[tuple[str, Any]]:
    """The frames of a run, without those that tell of the run."""
    thread: Any = await service.sdk.threads.create()
    asked: Any = modes
    stream = service.sdk.runs.stream(
        thread["thread_id"], "nested", input=HELLO, stream_mode=asked, stream_subgraphs=subgraphs
    )
    parts = [part async for part in stream]
    internal = (await service.outlive.thread(thread["thread_id"], tenant=service.tenant)).thread_id
    assert internal not in json.dumps([part.data for part in parts])
    assert [part.event for part in parts if part.event in ("metadata", "end")] == ["metadata", "end"]
    return [(part.event, part.data) for part in parts[1:-1]]


def here() -> Any:
    """The same graph, without a service around it."""
    graph = copy.copy(graphs.nested())
    graph.checkpointer = InMemorySaver()
    return graph


def alone() -> Any:
    """The config of a thread of its own."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}}


async def yielded(modes: list[str], *, subgraphs: bool) -> list[tuple[str, Any]]:
    """What the graph itself streams, under the names of the wire.

    The service asks for messages always, and models give theirs other ids when they are asked to stream.
    """
    wanted = {"messages" if mode == "messages-tuple" else mode for mode in modes}
    asked: Any = sorted(wanted | {"messages"})
    items = here().astream(HELLO, alone(), stream_mode=asked, subgraphs=True)
    return [
        ("|".join((mode, *namespace)), data)
        async for namespace, mode, data in items
        if mode in wanted and (subgraphs or not namespace)
    ]


def _same(streamed: list[tuple[str, Any]], yielded: list[tuple[str, Any]]) -> None:
    """The whole at once: an id that stands in two frames must be the same in both."""
    for place, (one, other) in enumerate(zip(streamed, yielded, strict=False)):
        assert plain([one]) == plain([other]), place
    assert plain(streamed) == plain(yielded)


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_has_what_the_graph_yields_in_that_order(
    service: Service, mode: str, subgraphs: bool
) -> None:
    wanted = await yielded([mode], subgraphs=subgraphs)
    assert wanted or (mode in ("custom", "messages-tuple", "tools") and not subgraphs)
    _same(await streamed(service, [mode], subgraphs=subgraphs), wanted)


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_all_modes_together_come_in_the_graphs_own_order(service: Service, subgraphs: bool) -> None:
    _same(await streamed(service, MODES, subgraphs=subgraphs), await yielded(MODES, subgraphs=subgraphs))


async def test_messages_are_the_tuples_put_together(service: Service) -> None:
    both = await streamed(service, ["messages", "messages-tuple"], subgraphs=True)
    chunks = [data[0] for name, data in both if name.startswith("messages|") and "Chunk" in data[0]["type"]]
    partial = [data[0] for name, data in both if name.startswith("messages/partial")]
    so_far = ""
    for chunk, shown in zip(chunks, partial, strict=True):
        so_far += chunk["content"]
        assert (shown["content"], shown["id"], shown["type"]) == (so_far, chunk["id"], "ai")
    assert so_far == "one two three"
    told = [data for name, data in both if name.startswith("messages/metadata")]
    assert next(iter(told[0].values()))["metadata"]["langgraph_node"] == "speak"
    assert AIMessageChunk(content=so_far).content == partial[-1]["content"]


async def test_events_are_those_of_every_runnable_inside(service: Service) -> None:
    wanted = []
    outermost = None
    options: Any = {"stream_mode": ["values", "updates"], "subgraphs": True}
    async for event in here().astream_events(HELLO, alone(), version="v2", **options):
        outermost = outermost or event["run_id"]
        own = event["event"] == "on_chain_stream" and event["run_id"] == outermost
        if not own and "langsmith:hidden" not in event.get("tags", ()):
            wanted.append(("events", event))
    found = await streamed(service, ["events"], subgraphs=False)
    kinds = [(data["event"], data["name"]) for _, data in found]
    assert ("on_chat_model_stream", "GenericFakeChatModel") in kinds
    assert kinds == [(event["event"], event["name"]) for _, event in wanted]
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        assert plain(one["data"]) == plain(other["data"])


async def test_events_beside_other_modes_change_neither(service: Service) -> None:
    modes = ["values", "updates", "events"]
    together = await streamed(service, modes, subgraphs=True)
    others = [one for one in together if one[0] != "events"]
    _same(others, await yielded(["values", "updates"], subgraphs=True))
    assert len(together) > len(others)


async def test_a_run_with_events_stops_fails_and_waits_like_any_other(service: Service) -> None:
    thread: Any = await service.sdk.threads.create()
    failing: Any = {"fail": True}
    stream = service.sdk.runs.stream(thread["thread_id"], "steps", input=failing, stream_mode="events")
    parts = [part async for part in stream]
    assert [part.event for part in parts[-2:]] == ["error", "end"]
    assert parts[-2].data["error"] == "ValueError"
    waiting: Any = await service.sdk.threads.create()
    hello = service.sdk.runs.stream(waiting["thread_id"], "chat", input=HELLO, stream_mode="events")
    assert [part.data["status"] async for part in hello if part.event == "end"] == ["success"]
    assert (await service.sdk.threads.get(waiting["thread_id"]))["status"] == "interrupted"
    held: Any = await service.sdk.threads.create()
    hold = uuid.uuid4().hex
    made = await service.sdk.runs.create(
        held["thread_id"], "steps", input={"hold": hold}, stream_mode="events"
    )
    await graphs.reached[hold].wait()
    await service.sdk.runs.cancel(held["thread_id"], made["run_id"], wait=True)
    assert (await service.sdk.runs.get(held["thread_id"], made["run_id"]))["status"] == "interrupted"
    assert graphs.executed[hold] == ["plan", "charge"]
    went_on: Any = await service.sdk.runs.wait(held["thread_id"], "steps", command={"update": {"hold": ""}})
    assert went_on["steps"] == ["plan", "charge", "notify"]
