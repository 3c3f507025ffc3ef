"""What the experiments inside one process share: a quick chain, a slow saver, and ways to cut a run."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import operator
import pathlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, TypedDict

import anyio
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

NAMES = ("plan", "charge", "notify", "finish")


class State(TypedDict):
    """What the chain has done so far."""

    steps: Annotated[list[str], operator.add]


class Chain:
    """plan, charge, notify, finish, with a list of what executed and an event at the first charge."""

    def __init__(self, saver: Any, *, notify: float = 0.25) -> None:
        self.executed: list[str] = []
        self.charged = asyncio.Event()
        builder: Any = StateGraph(State)
        for name in NAMES:
            builder.add_node(name, self._node(name, notify if name == "notify" else 0.005))
        for before, after in zip((START, *NAMES), (*NAMES, END), strict=True):
            builder.add_edge(before, after)
        self.graph = builder.compile(checkpointer=saver)

    def _node(self, name: str, seconds: float) -> Callable[[Any], Any]:
        async def work(state: Any) -> dict[str, list[str]]:
            del state
            await asyncio.sleep(seconds)
            self.executed.append(name)
            if name == "charge":
                self.charged.set()
            return {"steps": [name]}

        return work

    async def run(self, thread: str, durability: str) -> None:
        """Send a message and read the answer to its end."""
        config = {"configurable": {"thread_id": thread}}
        stream = self.graph.astream({"steps": []}, config, stream_mode="updates", durability=durability)
        async for _ in stream:
            pass


class SlowSaver(AsyncSqliteSaver):
    """LangGraph's own saver with a database that takes its time for each checkpoint. Seconds."""

    delay = 0.04

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self.delay)
        return await super().aput(*args, **kwargs)


class ShieldedSaver(SlowSaver):
    """The same, with each checkpoint written by a task of its own that a cancellation does not reach."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writing: set[asyncio.Task[Any]] = set()

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        task = asyncio.create_task(super().aput(*args, **kwargs))
        self.writing.add(task)
        task.add_done_callback(self.writing.discard)
        return await asyncio.shield(task)


class InThreads:
    """A synchronous saver used from threads, as drivers are: a cancelled caller does not stop the write.

    `writing` is set when the write of a checkpoint with a charge in it has begun.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writing = threading.Event()

    delay = 0.12
    put: Callable[..., Any]
    put_writes: Callable[..., Any]
    get_tuple: Callable[..., Any]

    async def aput(self, *args: Any) -> Any:
        return await asyncio.to_thread(self._slowly, *args)

    def _slowly(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        if "charge" in checkpoint["channel_values"].get("steps", ()):
            self.writing.set()
        time.sleep(self.delay)
        return self.put(config, checkpoint, *args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.to_thread(self.put_writes, *args, **kwargs)

    async def aget_tuple(self, config: Any) -> Any:
        return await asyncio.to_thread(self.get_tuple, config)


class ThreadedSaver(InThreads, SqliteSaver):
    """On SQLite."""


@contextlib.asynccontextmanager
async def saver(kind: type[AsyncSqliteSaver], path: pathlib.Path) -> AsyncIterator[Any]:
    """An open saver of this kind on a file, with its tables made."""
    async with kind.from_conn_string(str(path)) as opened:
        await opened.setup()
        yield opened


@contextlib.contextmanager
def threaded_postgres(dsn: str) -> Iterator[Any]:
    """An open threaded saver over a pool, with its tables made."""
    postgres: Any = importlib.import_module("langgraph.checkpoint.postgres").PostgresSaver
    pools: Any = importlib.import_module("psycopg_pool")
    options = {"autocommit": True, "row_factory": importlib.import_module("psycopg.rows").dict_row}
    with pools.ConnectionPool(dsn, min_size=1, max_size=4, kwargs=options) as pool:
        opened: Any = type("ThreadedPostgres", (InThreads, postgres), {"delay": 0.2})(pool)
        opened.setup()
        yield opened


@contextlib.contextmanager
def threaded(path: pathlib.Path) -> Iterator[Any]:
    """An open threaded saver on a file."""
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        opened = ThreadedSaver(connection)
        opened.setup()
        yield opened


async def cut_as_starlette_does(run: Any, when: Callable[[], Any]) -> None:
    """Cancel the run through a cancel scope: the cancellation returns at every further await."""
    async with anyio.create_task_group() as group:

        async def driven() -> None:
            await run
            group.cancel_scope.cancel()

        group.start_soon(driven)
        await when()
        group.cancel_scope.cancel()


async def cut_once(run: Any, when: Callable[[], Any]) -> None:
    """Cancel the task that drives the run, once."""
    task = asyncio.ensure_future(run)
    await when()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
