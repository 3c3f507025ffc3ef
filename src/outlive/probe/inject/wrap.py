"""The outermost ASGI layer: passes every message through and notes what server and application say.

It adds no task, no queue and no await of its own, so that cancellation arrives where it would have arrived.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from . import canary, tape  # noqa: TID252  (the directory runs under another name)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The client says with this header which of the probe's calls it is.
CLIENT_HEADER = b"x-outlive-probe"

_numbers = itertools.count(1)


def recorded(app: App) -> App:
    """The same application, with its happenings on tape, and the canary beside it."""

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _call(_choose(app, scope), scope, receive, send)
        elif scope["type"] == "lifespan":
            await app(scope, _lifespan(receive), send)
        else:
            await app(scope, receive, send)

    return outermost


def _choose(app: App, scope: Scope) -> App:
    if scope["path"] == canary.HELLO:
        return canary.nothing
    return canary.application() if scope["path"].startswith(canary.PREFIX) else app


async def _call(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    token = tape.request.set(f"{os.getpid()}-{next(_numbers)}")
    tape.note("request.start", path=scope["path"], client=_client(scope), asgi=scope.get("asgi", {}))
    error: str | None = None
    try:
        await app(scope, _receiving(receive), _sending(send))
    except BaseException as exc:
        error = type(exc).__name__
        raise
    finally:
        tape.note("request.end", error=error)
        tape.request.reset(token)


def _client(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == CLIENT_HEADER), None)


def _receiving(receive: Receive) -> Receive:
    async def noted() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            tape.note("request.disconnect")
        return message

    return noted


def _sending(send: Send) -> Send:
    chunks = tape.Often("chunk")

    async def noted(message: Message) -> None:
        try:
            await send(message)
        except BaseException as exc:
            tape.note("send.error", error=type(exc).__name__)
            raise
        if message["type"] == "http.response.body" and message.get("body"):
            chunks.note(size=len(message["body"]))

    return noted


def _lifespan(receive: Receive) -> Receive:
    async def noted() -> Message:
        message = await receive()
        tape.note(message["type"])
        return message

    return noted
