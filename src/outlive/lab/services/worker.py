"""A worker in a process of its own: orders and events are rows in a SQLite file that both sides poll.

The shape that takes the run out of the web process altogether, as small as it can be: no retries, no leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from outlive.lab.services import graphs, savers

QUEUE_VARIABLE = "OUTLIVE_LAB_WORKER"

#: How often either side looks. Seconds.
LOOK = 0.02


@contextlib.contextmanager
def _queue() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(os.environ[QUEUE_VARIABLE], timeout=20, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, thread TEXT, taken INTEGER)")
    connection.execute("CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, id TEXT, body TEXT)")
    with contextlib.closing(connection):
        yield connection


def submit(thread: str) -> str:
    """Write an order; returns its id."""
    order = uuid.uuid4().hex
    with _queue() as queue:
        queue.execute("INSERT INTO orders VALUES (?, ?, 0)", (order, thread))
    return order


async def follow(order: str) -> AsyncIterator[Any]:
    """What the worker reports about an order, until it is done."""
    seen = 0
    while True:
        with _queue() as queue:
            rows = queue.execute(
                "SELECT number, body FROM events WHERE id = ? AND number > ? ORDER BY number", (order, seen)
            ).fetchall()
        for number, body in rows:
            seen = number
            if body == "null":
                return
            yield json.loads(body)
        await asyncio.sleep(LOOK)


@contextlib.asynccontextmanager
async def process() -> AsyncIterator[None]:
    """A worker process for as long as the service lives."""
    with _queue():
        pass
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "outlive.lab.services.worker")
    try:
        yield
    finally:
        child.kill()
        await child.wait()


def _take() -> tuple[str, str] | None:
    with _queue() as queue:
        row = queue.execute(
            "UPDATE orders SET taken = 1 WHERE id = (SELECT id FROM orders WHERE taken = 0 LIMIT 1)"
            " RETURNING id, thread"
        ).fetchone()
    return (row[0], row[1]) if row else None


def _report(order: str, body: Any) -> None:
    with _queue() as queue:
        queue.execute("INSERT INTO events (id, body) VALUES (?, ?)", (order, json.dumps(body)))


def work() -> None:
    """Take orders one after another, for ever; end with the parent."""
    parent = os.getppid()
    with savers.synchronous(os.environ["OUTLIVE_LAB_DATABASE"]) as saver:
        graph = graphs.chain(graphs.sync_node).compile(checkpointer=saver)
        while os.getppid() == parent:
            order = _take()
            if order is None:
                time.sleep(LOOK)
                continue
            config = {"configurable": {"thread_id": order[1]}}
            for chunk in graph.stream({"steps": []}, config, stream_mode="updates"):
                _report(order[0], chunk)
            _report(order[0], None)


if __name__ == "__main__":
    work()
