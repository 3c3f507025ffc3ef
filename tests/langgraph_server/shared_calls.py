"""The calls that every version of the Python SDK has, as a program: what they came to is printed as JSON.

Run with the version to try first in PYTHONPATH: ``shared_calls.py URL KEY``.  Ids and times differ from run
to run, so each is printed as which of them it is.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
from langgraph_sdk import get_client

HELLO: Any = {"messages": [{"role": "user", "content": "hello", "id": "first"}]}
_IDS = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}")
_TIMES = re.compile(r'"\d{4}-\d\d-\d\dT[^"]*"')
Calls = Callable[[Any], Coroutine[Any, Any, Any]]


async def assistants(client: Any) -> Any:
    """Assistants, their versions, and what they are."""
    made = await client.assistants.create("steps", name="mine", metadata={"team": "a"})
    changed = await client.assistants.update(made["assistant_id"], name="ours")
    found = {
        "own": await client.assistants.search(graph_id="chat"),
        "made": made,
        "changed": changed,
        "versions": await client.assistants.get_versions(made["assistant_id"]),
        "back": await client.assistants.set_latest(made["assistant_id"], 1),
        "got": await client.assistants.get(made["assistant_id"]),
        "graph": await client.assistants.get_graph(made["assistant_id"]),
        "schemas": await client.assistants.get_schemas(made["assistant_id"]),
        "subgraphs": await client.assistants.get_subgraphs(made["assistant_id"]),
    }
    await client.assistants.delete(made["assistant_id"])
    return {**found, "gone": await refused(client.assistants.get(made["assistant_id"]))}


async def threads(client: Any) -> Any:
    """A thread from its making to its end."""
    thread = await client.threads.create(metadata={"owner": "ann"}, graph_id="steps")
    name = thread["thread_id"]
    values = await client.runs.wait(name, "steps", input={})
    state = await client.threads.get_state(name)
    history = await client.threads.get_history(name, limit=10)
    written = await client.threads.update_state(name, {"steps": ["by hand"]}, as_node="notify")
    await client.threads.update(name, metadata={"more": 1})
    copied = await client.threads.copy(name)
    found = {
        "thread": thread,
        "values": values,
        "state": state,
        "at": await client.threads.get_state(name, checkpoint_id=history[1]["checkpoint"]["checkpoint_id"]),
        "history": history,
        "older": await client.threads.get_history(name, limit=2, before=history[1]["checkpoint"]),
        "written": sorted(written["checkpoint"]),
        "got": await client.threads.get(name),
        "copied": copied,
        "found": await client.threads.search(metadata={"owner": "ann", "more": 1}, sort_by="created_at"),
        "again": await refused(client.threads.create(thread_id=name)),
        "same": await client.threads.create(thread_id=name, if_exists="do_nothing"),
    }
    await client.threads.delete(name)
    return {**found, "gone": await refused(client.threads.get(name))}


async def runs(client: Any) -> Any:
    """Runs streamed in several modes, answered, joined from the middle, listed."""
    name = (await client.threads.create())["thread_id"]
    modes = ["values", "updates", "messages-tuple", "messages", "debug", "custom"]
    parts = await collected(client.runs.stream(name, "chat", input=HELLO, stream_mode=modes))
    run_id = parts[0].data["run_id"]
    waiting = await client.threads.get_state(name)
    first = f"{run_id.replace('-', '')}:1"  # as an id says; the oldest versions do not hand it out
    rest = client.runs.join_stream(name, run_id, stream_mode=modes, last_event_id=first)
    answered = await collected(client.runs.stream(name, "chat", command={"resume": "yes"}))
    made = await client.runs.create(None, "steps", input={})
    found = {
        "parts": [shown(part) for part in parts],
        "rest is the same": [shown(part) for part in await collected(rest)]
        == [shown(part) for part in parts[1:]],
        "waiting": waiting,
        "answered": [shown(part) for part in answered],
        "listed": await client.runs.list(name),
        "got": await client.runs.get(name, run_id),
        "joined": await client.runs.join(name, run_id),
        "made": sorted(made),
        "batch": [
            sorted(one)
            for one in await client.runs.create_batch(
                [{"assistant_id": "steps", "input": {}}, {"assistant_id": "steps", "input": {}}]
            )
        ],
        "stateless": [shown(one) for one in await collected(client.runs.stream(None, "steps", input={}))],
        "before": await client.runs.wait(None, "steps", input={}, interrupt_before=["charge"]),
        "failed": await client.runs.wait(None, "steps", input={"fail": True}, raise_error=False),
        "nobody": await refused(client.runs.wait(None, "nobody", input={})),
    }
    await client.runs.delete(name, run_id)
    return {**found, "gone": await refused(client.runs.get(name, run_id))}


async def cancels(client: Any) -> Any:
    """Runs cancelled either way."""
    found: dict[str, Any] = {}
    for action in ("interrupt", "rollback"):
        name, run_id, _ = await held(client)
        await client.runs.cancel(name, run_id, wait=True, action=action)
        found[action] = {
            "run": await refused(client.runs.get(name, run_id)),
            "state": (await client.threads.get_state(name))["values"],
            "again": await refused(client.runs.cancel(name, run_id)),
        }
    return found


async def crowded(client: Any) -> Any:
    """A second message on a thread whose first still runs, by each strategy."""
    found: dict[str, Any] = {}
    for strategy in ("reject", "enqueue", "interrupt", "rollback"):
        name, run_id, hold = await held(client)
        second = client.runs.create(name, "steps", input={"hold": ""}, multitask_strategy=strategy)
        made = await refused(second)
        if strategy in ("reject", "enqueue"):
            tell({"release": hold})
        await refused(client.runs.join(name, run_id))
        joined = await client.runs.join(name, made["run_id"]) if "run_id" in made else None
        first = await refused(client.runs.get(name, run_id))
        found[strategy] = {"second": made, "first": first, "joined": joined}
        found[strategy]["state"] = (await client.threads.get_state(name))["values"]
    return found


async def held(client: Any) -> tuple[str, str, str]:
    """A run of the steps that is held behind its charge: its thread, its id, what holds it."""
    name, hold = (await client.threads.create())["thread_id"], uuid.uuid4().hex
    made = await client.runs.create(name, "steps", input={"hold": hold}, stream_mode="updates")
    async for part in client.runs.join_stream(name, made["run_id"], stream_mode="updates"):
        if part.event == "updates" and "charge" in part.data:
            break
    return name, made["run_id"], hold


async def collected(parts: AsyncIterator[Any]) -> list[Any]:
    """Every part of a stream."""
    return [part async for part in parts]


def shown(part: Any) -> Any:
    """A part as far as all versions have it: the oldest know no ids."""
    return [part.event, part.data]


async def refused(call: Coroutine[Any, Any, Any]) -> Any:
    """What a call came to, which may be the status of its refusal."""
    try:
        return await call
    except httpx.HTTPStatusError as failure:
        return {"status": failure.response.status_code}


def alike(found: Any) -> Any:
    """Ids and times as which of them they are."""
    text = json.dumps(found)
    ids: dict[str, str] = {}
    text = _IDS.sub(lambda one: ids.setdefault(one.group().replace("-", ""), f"id {len(ids) + 1}"), text)
    text = re.sub(r'("(?:timestamp|langgraph_request_at_ms)": )[\d.]+', r"\1 0", text)
    return json.loads(_TIMES.sub('"time"', text))


def tell(told: Any) -> None:
    """Print a line for whoever runs this."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def main(url: str, key: str) -> None:
    """Make every call, and print what it came to."""
    client = get_client(url=url, api_key=key)
    every: dict[str, Calls] = {
        "assistants": assistants,
        "threads": threads,
        "runs": runs,
        "cancels": cancels,
        "crowded": crowded,
    }
    tell({name: alike(await calls(client)) for name, calls in every.items()})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
