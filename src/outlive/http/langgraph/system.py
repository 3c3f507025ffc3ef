"""What a client asks before it asks for anything: whether the service is there, and what it can do."""

from __future__ import annotations

import importlib.metadata

from fastapi import APIRouter, Response

import outlive as package
from outlive import cron
from outlive.http import body

_INFO = {
    "version": package.__version__,
    "langgraph_py_version": importlib.metadata.version("langgraph"),
    "flags": {"assistants": True, "crons": cron.installed(), "langsmith": False, "strict_resume": True},
    "host": {"kind": "outlive"},
}
"""Read at the start: to look for it at a request would block the event loop."""


def add(routes: APIRouter) -> None:
    """Add the routes; they are for everybody."""
    routes.get("/ok")(ok)
    routes.get("/info")(info)


async def ok() -> Response:
    """Say that the process lives."""
    return body.Json({"ok": True})


async def info() -> Response:
    """Say which versions these are, and what is there."""
    return body.Json(_INFO)
