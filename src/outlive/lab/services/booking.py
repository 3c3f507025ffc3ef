"""One service with the booking agent behind every shape of handler that people write.

`POST /{shape}?thread=...&durability=...`. OUTLIVE_LAB_DATABASE is a SQLite file or a PostgreSQL DSN.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from outlive.lab.services import graphs, savers, worker

DATABASE_VARIABLE = "OUTLIVE_LAB_DATABASE"
WORKER_VARIABLE = "OUTLIVE_LAB_WORKER"

_detached: set[asyncio.Task[None]] = set()


@contextlib.asynccontextmanager
async def _lifespan(service: FastAPI) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        saver = await stack.enter_async_context(savers.asynchronous(os.environ[DATABASE_VARIABLE]))
        threaded = stack.enter_context(savers.synchronous(os.environ[DATABASE_VARIABLE]))
        if WORKER_VARIABLE in os.environ:
            await stack.enter_async_context(worker.process())
        compiled = {
            "chain": graphs.chain(),
            "parallel": graphs.parallel(),
            "nested": graphs.nested(),
            "talkative": graphs.talkative(),
        }
        service.state.graphs = {
            name: builder.compile(checkpointer=saver) for name, builder in compiled.items()
        }
        service.state.threaded = graphs.chain(graphs.sync_node).compile(checkpointer=threaded)
        yield


app = FastAPI(lifespan=_lifespan)


def _run(
    thread: str, durability: str = "async", *, graph: str = "chain", mode: str = "updates", **more: Any
) -> Any:
    config = {"configurable": {"thread_id": thread}}
    modes = mode.split(",") if "," in mode else mode
    return app.state.graphs[graph].astream(
        {"steps": []}, config, stream_mode=modes, durability=durability, **more
    )


def _frame(chunk: Any) -> str:
    return f"data: {json.dumps(chunk, default=str)}\n\n"


def _streaming(body: AsyncIterator[str], **more: Any) -> Response:
    return StreamingResponse(body, media_type="text/event-stream", **more)


@app.post("/inline")
async def inline(
    thread: str, durability: str = "async", graph: str = "chain", mode: str = "updates", nested: bool = False
) -> Response:
    """The generator of the response drives the run."""

    async def body() -> AsyncIterator[str]:
        async for chunk in _run(thread, durability, graph=graph, mode=mode, subgraphs=nested):
            yield _frame(chunk)

    return _streaming(body())


def _detach(thread: str, queue: asyncio.Queue[Any]) -> asyncio.Task[None]:
    async def drive() -> None:
        try:
            async for chunk in _run(thread):
                queue.put_nowait(chunk)
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(drive())
    _detached.add(task)
    task.add_done_callback(_detached.discard)
    return task


async def _drain(queue: asyncio.Queue[Any]) -> AsyncIterator[str]:
    while (chunk := await queue.get()) is not None:
        yield _frame(chunk)


@app.post("/background")
async def background(thread: str) -> Response:
    """A task of its own drives the run; the response reads a queue."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    _detach(thread, queue)
    return _streaming(_drain(queue))


@app.post("/shielded")
async def shielded(thread: str) -> Response:
    """Each step is awaited under a shield."""

    async def body() -> AsyncIterator[str]:
        run = _run(thread)
        while True:
            try:
                chunk = await asyncio.shield(run.__anext__())
            except StopAsyncIteration:
                return
            yield _frame(chunk)

    return _streaming(body())


@app.post("/polling")
async def polling(thread: str, request: Request) -> Response:
    """Inline, asking before each chunk whether the client is still there."""

    async def body() -> AsyncIterator[str]:
        async for chunk in _run(thread):
            if await request.is_disconnected():
                return
            yield _frame(chunk)

    return _streaming(body())


@app.post("/after-response")
async def after_response(thread: str) -> Response:
    """The run is the response's background task, after a stream that says two words."""

    async def drive() -> None:
        async for _ in _run(thread):
            pass

    async def body() -> AsyncIterator[str]:
        yield _frame("accepted")
        yield _frame("working")
        await asyncio.sleep(0.3)

    return _streaming(body(), background=BackgroundTask(drive))


@app.post("/sync")
def sync(thread: str) -> Response:
    """No `async` anywhere: a worker thread invokes the graph."""
    app.state.threaded.invoke({"steps": []}, {"configurable": {"thread_id": thread}})
    return PlainTextResponse("done")


def _policy(thread: str, *, abandon: bool) -> Response:
    queue: asyncio.Queue[Any] = asyncio.Queue()
    task = _detach(thread, queue)

    async def body() -> AsyncIterator[str]:
        try:
            async for frame in _drain(queue):
                yield frame
        finally:
            if abandon:
                task.cancel()

    return _streaming(body())


@app.post("/policy-abandon")
async def policy_abandon(thread: str) -> Response:
    """A detached run that the response's clean-up cancels."""
    return _policy(thread, abandon=True)


@app.post("/policy-complete")
async def policy_complete(thread: str) -> Response:
    """A detached run that nothing cancels, by decision."""
    return _policy(thread, abandon=False)


@app.post("/anyio-shield")
async def anyio_shield(thread: str) -> Response:
    """The whole loop inside one shielded scope."""

    async def body() -> AsyncIterator[str]:
        with anyio.CancelScope(shield=True):
            async for chunk in _run(thread):
                yield _frame(chunk)

    return _streaming(body())


@app.post("/separate-worker")
async def separate_worker(thread: str) -> Response:
    """The handler writes an order for another process and follows what that process reports."""
    order = worker.submit(thread)

    async def body() -> AsyncIterator[str]:
        async for event in worker.follow(order):
            yield _frame(event)

    return _streaming(body())
