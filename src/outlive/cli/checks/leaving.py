"""The smallest ASGI application that notes what its server does when a client leaves. Run by ``serving``."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
_seen: dict[str, Any] = {}


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """``/leave`` streams and never ends; ``/seen`` tells what became of it."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/leave":
        await _stream(scope, receive, send)
        return
    told = json.dumps(_seen | {"pid": os.getpid()}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": told})


async def _stream(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    _seen["spec_version"] = scope.get("asgi", {}).get("spec_version", "2.0")
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
    try:
        while (await receive())["type"] != "http.disconnect":  # noqa: ASYNC110 - receive() is what waits
            await asyncio.sleep(0)
        _seen["told_at"] = time.time()
        await asyncio.sleep(5)  # will it be cancelled as well?
    except asyncio.CancelledError:
        _seen["cancelled_at"] = time.time()
        raise
