"""The probe's own small application, served beside the probed one by the same server and framework.

It answers what a platform does on a disconnect, independent of anybody's handler. It is built at its first
use, from what is installed: nothing without Starlette, fewer routes without FastAPI.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any

#: Paths that are the probe's own.
PREFIX = "/__outlive_probe__"

#: Answered without any framework: the probe asks here whether it is its own service that listens.
HELLO = f"{PREFIX}/hello"

#: Seconds between the steps of a canary, and how many there are: long enough to leave in the middle of.
STEP = 0.3
STEPS = 20

_application: Any = None


def application() -> Any:
    """The canary as an ASGI application."""
    global _application  # noqa: PLW0603  (one per process)
    if _application is None:
        _application = _build()
    return _application


def _build() -> Any:
    if importlib.util.find_spec("starlette") is None:
        return nothing
    return importlib.import_module(f"{__package__}.canary_routes").application(_native())


def _native() -> list[Any]:
    if importlib.util.find_spec("fastapi") is None:
        return []
    routes: list[Any] = importlib.import_module(f"{__package__}.canary_fastapi").routes()
    return routes


async def nothing(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    """Answer that there is nothing."""
    del scope, receive
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
