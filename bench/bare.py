"""The handler that one would write without Outlive: it streams a graph inline, over LangGraph's own saver.

A request may ask for durable commits besides the saver's.  They are made where Outlive makes its own (before
the graph is called, before chunks are sent, before the end and after it), each with what was streamed since
the one before; and checkpoints are then awaited before the next step, as Outlive awaits them.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel
from starlette.background import BackgroundTask

from bench import graphs, insight

Commit = Callable[[str, int, str], Awaitable[None]]
TABLE = "CREATE TABLE IF NOT EXISTS log (run TEXT, number INTEGER, body TEXT, PRIMARY KEY (run, number))"


class Asked(BaseModel):
    """A request; ``commits`` are those besides the saver's, ``spread`` chunks apart.

    ``durable``: checkpoints are awaited.  LangGraph's default, and so the bare handler's, is not to.
    """

    agent: str
    input: Any
    durable: bool = False
    commits: int = 0
    spread: int = 1


class Log:
    """The commits of one run that its saver does not make."""

    def __init__(self, run: str, asked: Asked, commit: Commit) -> None:
        self._run = run
        self._commit = commit
        # Ours: when the run is made, before its first chunk is sent, with its verdict, as its viewer leaves;
        # the rest with later chunks.
        self._start, first, self._end, self._left = (asked.commits > number for number in range(4))
        self._appends = first + max(0, asked.commits - 4)
        self._spread = asked.spread
        self._seen = 0
        self._number = 0
        self._waiting: list[str] = []

    async def start(self) -> None:
        """Before the graph is called."""
        if self._start:
            await self._put()

    async def chunk(self, frame: str) -> None:
        """Before a chunk is sent."""
        self._waiting.append(frame)
        if self._appends and self._seen % self._spread == 0:
            self._appends -= 1
            await self._put()
        self._seen += 1

    async def end(self) -> None:
        """Before the stream ends."""
        if self._end:
            await self._put()

    async def left(self) -> None:
        """Once the client has everything."""
        if self._left:
            await self._put()

    async def _put(self) -> None:
        body, self._waiting = "".join(self._waiting), []
        self._number += 1
        await self._commit(self._run, self._number, body)


def app(database: str) -> FastAPI:
    """Return the application over a database."""
    compiled: dict[str, Any] = {}
    commits: list[Commit] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        over = _sqlite if database.startswith("sqlite") else _postgres
        async with over(database) as (saver, commit):
            insight.count_calls(type(saver), "aput", "aput_writes")
            compiled.update({name: graphs.graph(name, saver) for name in graphs.NAMES})
            commits.append(commit)
            yield

    application = FastAPI(lifespan=lifespan)

    @application.post("/runs")
    async def run(asked: Asked) -> StreamingResponse:
        name = uuid.uuid4().hex
        log = Log(name, asked, commits[0])
        frames = _frames(compiled[asked.agent], name, asked, log)
        return StreamingResponse(frames, media_type="text/event-stream", background=BackgroundTask(log.left))

    application.include_router(insight.routes())
    return application


async def _frames(graph: Any, name: str, asked: Asked, log: Log) -> AsyncGenerator[str, None]:
    await log.start()
    number = 0
    config = {"configurable": {"thread_id": name}}
    options = {"stream_mode": graphs.MODES} | ({"durability": "sync"} if asked.durable else {})
    async with aclosing(graph.astream(asked.input, config, **options)) as items:
        async for mode, data in items:
            number += 1
            body = json.dumps({"mode": mode, "data": data}, default=str)
            frame = f"event: chunk\ndata: {body}\nid: {name}:{number}\n\n"
            await log.chunk(frame)
            yield frame
    await log.end()
    yield 'event: end\ndata: {"data":{"state":"succeeded"}}\n\n'


@contextlib.asynccontextmanager
async def _sqlite(database: str) -> AsyncIterator[tuple[Any, Commit]]:
    async with AsyncSqliteSaver.from_conn_string(database.removeprefix("sqlite:///")) as saver:
        await saver.setup()
        await saver.conn.execute(TABLE)
        await saver.conn.commit()

        async def commit(run: str, number: int, body: str) -> None:
            # On the saver's own connection: a second one would wait for the file's only write lock.
            async with saver.lock:
                await saver.conn.execute("INSERT INTO log VALUES (?, ?, ?)", (run, number, body))
                await saver.conn.commit()

        yield saver, commit


@contextlib.asynccontextmanager
async def _postgres(database: str) -> AsyncIterator[tuple[Any, Commit]]:
    kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: Any = AsyncConnectionPool(database, min_size=2, max_size=10, kwargs=kwargs, open=False)
    async with pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()

        async def commit(run: str, number: int, body: str) -> None:
            async with pool.connection() as connection:
                await connection.execute("INSERT INTO log VALUES (%s, %s, %s)", (run, number, body))

        async with pool.connection() as connection:
            await connection.execute(TABLE)
        yield saver, commit
