"""A booking agent of four nodes behind the handlers that people write. Started by the probe, never imported.

EFFECTS names a file that gets a line per executed node; DATABASE is a SQLite file or a PostgreSQL DSN.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import os
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from starlette.background import BackgroundTask

#: Seconds that a node takes; a client that leaves at the second chunk leaves early in `notify`.
NODES = {"plan": 0.05, "charge": 0.05, "notify": 0.7, "finish": 0.05}


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def _effect(thread: str, name: str) -> None:
    with open(os.environ["EFFECTS"], "a", encoding="utf-8") as log:
        log.write(f"{thread}\t{name}\n")


def _node(name: str, seconds: float) -> Callable[..., Any]:
    async def node(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        del state
        await asyncio.sleep(seconds)
        _effect(config["configurable"]["thread_id"], name)
        return {"done": [name]}

    return node


def _builder() -> Any:
    builder = StateGraph(State)
    for name, seconds in NODES.items():
        builder.add_node(name, _node(name, seconds))
    for before, after in zip((START, *NODES), (*NODES, END), strict=True):
        builder.add_edge(before, after)
    return builder


@contextlib.asynccontextmanager
async def _lifespan(service: FastAPI) -> AsyncIterator[None]:
    database = os.environ["DATABASE"]
    saver: Any = AsyncPostgresSaver if database.startswith("postgresql:") else AsyncSqliteSaver
    async with saver.from_conn_string(database) as checkpointer:
        await checkpointer.setup()
        service.state.graph = _builder().compile(checkpointer=checkpointer)
        yield


app = FastAPI(lifespan=_lifespan)
_detached: set[asyncio.Task[None]] = set()


def _run(thread: str) -> Any:
    return app.state.graph.astream(
        {"done": []}, {"configurable": {"thread_id": thread}}, stream_mode="updates"
    )


def _frame(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(list(chunk))}\n\n"


async def _session() -> AsyncIterator[str]:
    yield "session"


async def _bookkeeping() -> None:
    """What a service does after an answer."""


@app.post("/inline")
async def inline(thread: str, session: Annotated[str, Depends(_session)]) -> StreamingResponse:
    del session

    async def body() -> AsyncIterator[str]:
        async for chunk in _run(thread):
            yield _frame(chunk)

    return StreamingResponse(body(), media_type="text/event-stream", background=BackgroundTask(_bookkeeping))


@app.post("/background")
async def background(thread: str) -> StreamingResponse:
    queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def drive() -> None:
        async for chunk in _run(thread):
            queue.put_nowait(chunk)
        queue.put_nowait(None)

    task = asyncio.create_task(drive())
    _detached.add(task)
    task.add_done_callback(_detached.discard)

    async def body() -> AsyncIterator[str]:
        while (chunk := await queue.get()) is not None:
            yield _frame(chunk)

    return StreamingResponse(body(), media_type="text/event-stream")


@app.post("/shielded")
async def shielded(thread: str) -> StreamingResponse:
    async def body() -> AsyncIterator[str]:
        run = _run(thread)
        while True:
            try:
                chunk = await asyncio.shield(run.__anext__())
            except StopAsyncIteration:
                return
            yield _frame(chunk)

    return StreamingResponse(body(), media_type="text/event-stream")
