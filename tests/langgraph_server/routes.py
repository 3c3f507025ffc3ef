"""Every method of the SDK's clients, called on a real service: what it came to, and if that is as declared.

Decides nothing by itself: the methods are read off the SDK, each is called through the asynchronous and the
synchronous client, and the fields of what came back are compared with what the SDK's types declare.  A method
without a row is a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import __version__ as version
from langgraph_sdk import client as sdk
from langgraph_sdk import schema

from langgraph_server import graphs
from outlive import runtime

CLIENTS = ("assistants", "threads", "runs", "crons", "store")
Ids = dict[str, Any]
Call = Callable[[Any, Ids], Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a method is called, what it is to return, and what is better than there."""

    call: Call
    returns: Any = None
    better: str = ""
    refused: tuple[tuple[Call, str, str], ...] = ()


KEEPS = {"ttl": 5, "strategy": "keep_latest"}
ROWS: dict[str, Row] = {
    "assistants.count": Row(call=lambda c, i: c.assistants.count(), returns=int),
    "assistants.create": Row(call=lambda c, i: c.assistants.create("steps"), returns=schema.Assistant),
    "assistants.delete": Row(call=lambda c, i: c.assistants.delete(i["spare"])),
    "assistants.get": Row(call=lambda c, i: c.assistants.get(i["assistant"]), returns=schema.Assistant),
    "assistants.get_graph": Row(call=lambda c, i: c.assistants.get_graph("steps"), returns=dict),
    "assistants.get_schemas": Row(
        call=lambda c, i: c.assistants.get_schemas(i["assistant"]), returns=schema.GraphSchema
    ),
    "assistants.get_subgraphs": Row(
        call=lambda c, i: c.assistants.get_subgraphs(i["assistant"]), returns=dict
    ),
    "assistants.get_versions": Row(
        call=lambda c, i: c.assistants.get_versions(i["assistant"]), returns=[schema.Assistant]
    ),
    "assistants.search": Row(call=lambda c, i: c.assistants.search(), returns=[schema.Assistant]),
    "assistants.set_latest": Row(
        call=lambda c, i: c.assistants.set_latest(i["assistant"], 1), returns=schema.Assistant
    ),
    "assistants.update": Row(
        call=lambda c, i: c.assistants.update(i["assistant"], name="x"), returns=schema.Assistant
    ),
    "threads.copy": Row(call=lambda c, i: c.threads.copy(i["thread"])),
    "threads.count": Row(call=lambda c, i: c.threads.count(), returns=int),
    "threads.create": Row(
        call=lambda c, i: c.threads.create(),
        returns=schema.Thread,
        better="a thread of `supersteps` is there with all of them, or not at all",
        refused=((lambda c, i: c.threads.create(ttl=KEEPS), "ttl", "`ttl` with `keep_latest`"),),
    ),
    "threads.delete": Row(
        call=lambda c, i: c.threads.delete(i["doomed"]),
        better="409 while what an effect came to is open",
    ),
    "threads.get": Row(call=lambda c, i: c.threads.get(i["thread"]), returns=schema.Thread),
    "threads.get_history": Row(
        call=lambda c, i: c.threads.get_history(i["thread"]),
        returns=[schema.ThreadState],
        better="`before` is a checkpoint, its config, or its id",
    ),
    "threads.get_state": Row(call=lambda c, i: c.threads.get_state(i["thread"]), returns=schema.ThreadState),
    "threads.join_stream": Row(
        call=lambda c, i: c.threads.join_stream(i["thread"], last_event_id="-1"),
        returns=schema.StreamPart,
        better="replays every run, from any id",
    ),
    "threads.prune": Row(
        call=lambda c, i: c.threads.prune([str(uuid.uuid4())]),
        returns=dict,
        refused=(
            (
                lambda c, i: c.threads.prune([i["thread"]], strategy="keep_latest"),
                "keep_latest",
                "`keep_latest`",
            ),
        ),
    ),
    "threads.search": Row(
        call=lambda c, i: c.threads.search(values={"steps": ["plan", "charge", "notify"]}),
        returns=[schema.Thread],
        better="`values` are searched by",
    ),
    "threads.update": Row(
        call=lambda c, i: c.threads.update(i["thread"], metadata={"a": 1}),
        returns=schema.Thread,
        refused=(
            (
                lambda c, i: c.threads.update(i["thread"], metadata={}, ttl=KEEPS),
                "ttl",
                "`ttl` with `keep_latest`",
            ),
        ),
    ),
    "threads.update_state": Row(
        call=lambda c, i: c.threads.update_state(i["thread"], {"steps": []}, as_node="notify"),
        returns=schema.ThreadUpdateStateResponse,
        better="409 while a run is live on the thread",
    ),
    "runs.cancel_many": Row(
        call=lambda c, i: c.runs.cancel_many(thread_id=i["busy"], run_ids=[i["queued"]]),
    ),
    "runs.cancel": Row(
        call=lambda c, i: c.runs.cancel(i["busy"], i["live"], wait=True),
        better="with `rollback` the run is kept with what it executed, on Outlive's own routes",
    ),
    "runs.create": Row(
        call=lambda c, i: c.runs.create(i["thread"], "steps", input={}),
        returns=schema.Run,
        refused=(
            (
                lambda c, i: c.runs.create(
                    i["thread"], "steps", after_seconds=9, multitask_strategy="rollback"
                ),
                "later",
                "`after_seconds` with `rollback` or `interrupt`",
            ),
            (
                lambda c, i: c.runs.create(i["thread"], "steps", webhook="https://you.example"),
                "webhook",
                "`webhook` where the service sends none",
            ),
        ),
    ),
    "runs.create_batch": Row(
        call=lambda c, i: c.runs.create_batch([{"assistant_id": "steps", "input": {}}]), returns=[schema.Run]
    ),
    "runs.delete": Row(
        call=lambda c, i: c.runs.delete(i["busy"], i["live"]),
        better="the run's record stays, on Outlive's own routes",
    ),
    "runs.get": Row(call=lambda c, i: c.runs.get(i["thread"], i["run"]), returns=schema.Run),
    "runs.join": Row(
        call=lambda c, i: c.runs.join(i["thread"], i["run"]), returns=dict, better="an unknown run is 404"
    ),
    "runs.join_stream": Row(
        call=lambda c, i: c.runs.join_stream(i["thread"], i["run"]),
        returns=schema.StreamPart,
        better="every run is replayed from any id, and ends with `end`; an unknown run is 404",
    ),
    "runs.list": Row(call=lambda c, i: c.runs.list(i["thread"]), returns=[schema.Run]),
    "runs.stream": Row(
        call=lambda c, i: c.runs.stream(None, "steps", input={}),
        returns=schema.StreamPart,
        better="every event has an id, and the last is `end` with the status",
    ),
    "runs.wait": Row(call=lambda c, i: c.runs.wait(None, "steps", input={}), returns=dict),
    "crons.count": Row(call=lambda c, i: c.crons.count(), returns=int),
    "crons.create": Row(call=lambda c, i: c.crons.create("steps", schedule="0 0 1 1 *"), returns=schema.Cron),
    "crons.create_for_thread": Row(
        call=lambda c, i: c.crons.create_for_thread(i["thread"], "steps", schedule="0 0 1 1 *"),
        returns=schema.Cron,
    ),
    "crons.delete": Row(call=lambda c, i: c.crons.delete(i["doomed cron"])),
    "crons.search": Row(call=lambda c, i: c.crons.search(), returns=[schema.Cron]),
    "crons.update": Row(
        call=lambda c, i: c.crons.update(i["cron"], schedule="0 0 2 1 *"), returns=schema.Cron
    ),
    "store.delete_item": Row(call=lambda c, i: c.store.delete_item(["a"], "none")),
    "store.put_item": Row(
        call=lambda c, i: c.store.put_item(["a"], "k", {"v": 1}),
        refused=((lambda c, i: c.store.put_item(["a"], "k", {"v": 1}, index=["v"]), "index", "`index`"),),
    ),
    "store.get_item": Row(call=lambda c, i: c.store.get_item(["a"], "k"), returns=schema.Item),
    "store.list_namespaces": Row(
        call=lambda c, i: c.store.list_namespaces(), returns=schema.ListNamespaceResponse
    ),
    "store.search_items": Row(
        call=lambda c, i: c.store.search_items(["a"]),
        returns=schema.SearchItemsResponse,
        refused=((lambda c, i: c.store.search_items(["a"], query="like this"), "query", "`query`"),),
    ),
}
ELSEWHERE = {"threads.stream": "the event stream protocol, called in `test_event_streams.py`"}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "langgraph_routes.md"
HEAD = """# Each method of the Python SDK

Generated by `PYTHONPATH=tests:. .venv/bin/python -m langgraph_server.routes` for `langgraph-sdk` {version}.
Each row is a call that was made on a real service, by the asynchronous client and by the synchronous one;
its fields were compared with those that the SDK's types declare. *Same*: all declared fields are there.
*Better*: they are, and there is more to it, which tests of its own show. *Refused*: what is named is answered
with 422, which says so.

| method | answer | verdict | |
|---|---|---|---|
"""


def methods() -> list[str]:
    """The public methods of the SDK's clients; raises if the synchronous ones have others."""
    found = {kind: _methods(get) for kind, get in (("async", sdk.get_client), ("sync", sdk.get_sync_client))}
    assert found["async"] == found["sync"]
    return found["async"]


def _methods(get: Callable[..., Any]) -> list[str]:
    client = get(url="http://127.0.0.1:1", api_key="x")
    return sorted(
        f"{part}.{name}"
        for part in CLIENTS
        for name, _ in inspect.getmembers(getattr(client, part), inspect.ismethod)
        if not name.startswith("_")
    )


async def prepared(client: sdk.LangGraphClient) -> Ids:
    """One thing of each kind: a thread that has ended, one that is busy, and so on."""
    thread, busy, doomed = [(await client.threads.create())["thread_id"] for _ in range(3)]
    run = await client.runs.create(thread, "steps", input={})
    await client.runs.join(thread, run["run_id"])
    hold = uuid.uuid4().hex
    live = await client.runs.create(busy, "steps", input={"hold": hold})
    await asyncio.wait_for(graphs.reached[hold].wait(), 20)
    queued = await client.runs.create(busy, "steps", input={})
    assistants = [(await client.assistants.create("steps"))["assistant_id"] for _ in range(2)]
    cron: Any = await client.crons.create("steps", schedule="0 0 1 1 *")
    doomed_cron: Any = await client.crons.create("steps", schedule="0 0 1 1 *")
    return {
        "thread": thread,
        "busy": busy,
        "doomed": doomed,
        "run": run["run_id"],
        "live": live["run_id"],
        "queued": queued["run_id"],
        "assistant": assistants[0],
        "spare": assistants[1],
        "cron": cron["cron_id"],
        "doomed cron": doomed_cron["cron_id"],
    }


async def rows(url: str, tenant: str) -> dict[str, str]:
    """Call every method, and return each one's line; raises for what is not as it says."""
    found = {}
    async with sdk.get_client(url=url, api_key=f"{tenant}-a") as several:
        with sdk.get_sync_client(url=url, api_key=f"{tenant}-b") as single:
            async with sdk.get_client(url=url, api_key=f"{tenant}-b") as other:
                mine, others = await prepared(several), await prepared(other)
            for name, row in ROWS.items():
                shown = _fields(name, await called(row.call, several, mine), row.returns)
                again = _fields(name, await asyncio.to_thread(_taken, row.call, single, others), row.returns)
                assert shown == again, (name, shown, again)
                said = [
                    what for call, word, what in row.refused if await _is_refused(call, word, several, mine)
                ]
                found[name] = _line(name, shown, row, said)
    for name, where in ELSEWHERE.items():
        found[name] = f"| `{name}` | | same | {where} |"
    return found


def _line(name: str, shown: str, row: Row, said: list[str]) -> str:
    verdict = "better" if row.better else "same"
    words = [*([row.better] if row.better else []), *([f"refused: {', '.join(said)}"] if said else [])]
    return f"| `{name}` | {shown} | {verdict}{', refused' if said else ''} | {'; '.join(words)} |"


async def called(call: Call, client: Any, ids: Ids) -> Any:
    """What a call comes to; of a stream its first part."""
    result = call(client, ids)
    if inspect.isawaitable(result):
        result = await result
    if not hasattr(result, "__aiter__"):
        return result
    try:
        return await anext(result)
    finally:
        await result.aclose()


def _taken(call: Call, client: Any, ids: Ids) -> Any:
    result = call(client, ids)
    if not hasattr(result, "__next__"):
        return result
    try:
        return next(result)
    finally:
        result.close()


async def _is_refused(call: Call, word: str, client: Any, ids: Ids) -> bool:
    status, text = 200, ""
    try:
        await call(client, ids)
    except httpx.HTTPStatusError as failure:
        status, text = failure.response.status_code, failure.response.text
    assert (status, word in text) == (422, True), (word, status, text)
    return True


def _fields(name: str, result: Any, declared: Any) -> str:
    """Compare what came back with what is declared; return it in words."""
    if isinstance(declared, list):
        assert isinstance(result, list), (name, result)
        assert result, name
        return f"list of {_fields(name, result[0], declared[0])}"
    if declared is schema.StreamPart:
        assert result.id, name
        assert isinstance(result.event, str), name
        return "`StreamPart`"
    if declared in (int, dict):
        assert isinstance(result, declared), (name, result)
        return "a number" if declared is int else "an object"
    if declared is None:
        return ""
    assert isinstance(result, Mapping), (name, result)
    missing = _required(declared) - result.keys()
    assert not missing, f"{name}: {sorted(missing)} of {declared.__name__} are missing"
    return f"`{declared.__name__}`"


def _required(declared: Any) -> set[str]:
    """The SDK's annotations are texts, so what may be missing is not in ``__optional_keys__``."""
    hints = typing.get_type_hints(declared, include_extras=True)
    optional = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
    return set(hints) - optional


async def page(url: str, tenant: str) -> str:
    """Return the page."""
    found = await rows(url, tenant)
    return HEAD.format(version=version) + "".join(f"{found[name]}\n" for name in sorted(found))


async def main() -> None:
    """Write the page."""
    from langgraph_server.conftest import serving  # noqa: PLC0415 - which is pytest's

    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/outlive.db"
        runtime.migrate(database)
        async with serving(database) as (_, url):
            PAGE.write_text(await page(url, "page"), "utf-8")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
