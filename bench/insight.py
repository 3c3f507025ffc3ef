"""What the benchmark asks a server about itself: how often it committed, and where its time went."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter

from outlive.store import appending, sqlite, writer

_counted = {"commits": 0}
_profiles: list[cProfile.Profile] = []
WHERE: Sequence[tuple[str, str]] = (
    ("/langgraph/checkpoint/", "checkpoints"),
    ("ormsgpack", "checkpoints"),
    ("/outlive/agents/", "checkpoints"),
    ("/outlive/store/", "database"),
    ("/outlive/http/", "http"),
    ("/outlive/", "run"),
    ("psycopg", "database"),
    ("sqlite", "database"),
    ("/langgraph/", "graph"),
    ("/langchain_core/", "graph"),
    ("/langsmith/", "graph"),
    ("/uvicorn/", "http"),
    ("/starlette/", "http"),
    ("/fastapi/", "http"),
    ("pydantic", "http"),
    ("httptools", "http"),
    ("asyncio", "event loop"),
    ("selectors.py", "event loop"),
    ("threading.py", "event loop"),
    ("/concurrent/", "event loop"),
    ("socket", "event loop"),
)
"""Parts of a run, by where their code is: the first that matches."""


def count_calls(kind: Any, *methods: str) -> None:
    """Count each call of these asynchronous methods as one commit."""
    for name in methods:
        setattr(kind, name, _counting(getattr(kind, name)))


def _counting(method: Callable[..., Any]) -> Callable[..., Any]:
    async def counted(*args: Any, **kwargs: Any) -> Any:
        _counted["commits"] += 1
        return await method(*args, **kwargs)

    return counted


def count_commits(store: Any) -> None:
    """Count the transactions of one of our stores: several pieces of work may share one."""
    if not isinstance(store, sqlite.SqliteStore):
        count_calls(type(store), "write", "write_with", "write_alone")
        kind: Any = appending.Appends
        shared = kind._send_together

        async def sending(appends: Any, taken: list[Any]) -> None:
            _counted["commits"] -= len(taken) - 1
            await shared(appends, taken)

        kind._send_together = sending
        return
    together = writer.commit_together

    def counted(connection: Any, batch: list[Any], patience: float) -> None:
        _counted["commits"] += 1
        together(connection, batch, patience)

    writer.commit_together = counted


def routes() -> APIRouter:
    """Return the routes by which it is asked."""
    router = APIRouter()

    @router.get("/bench/commits")
    async def commits() -> dict[str, int]:
        return dict(_counted)

    @router.post("/bench/profile")
    async def begin() -> None:
        profile = cProfile.Profile()
        _profiles.append(profile)
        profile.enable()

    @router.get("/bench/profile")
    async def end() -> dict[str, float]:
        profile = _profiles.pop()
        profile.disable()
        return _shares(pstats.Stats(profile))

    return router


def _shares(stats: Any) -> dict[str, float]:
    """Seconds of the event loop's thread per part, without those in which it waited."""
    found: dict[str, float] = {}

    def add(where: tuple[str, int, str], seconds: float) -> None:
        part = _part(f"{where[0]}:{where[2]}")
        found[part] = found.get(part, 0.0) + seconds

    for where, (_, _, own, _, callers) in stats.stats.items():
        if "'poll' of 'select.epoll'" in where[2]:
            continue
        if where[0] == "~" and callers:  # built in: whoever called it
            for caller, (_, _, seconds, _) in callers.items():
                add(caller, seconds)
        else:
            add(where, own)
    return found


def _part(where: str) -> str:
    return next((part for pattern, part in WHERE if pattern in where), "python")
