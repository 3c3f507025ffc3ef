"""The least that an idle stream can cost: a bare ASGI application that sends one chunk and waits."""

from __future__ import annotations

from typing import Any

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def app(database: str) -> Any:
    """Return the application; it needs no database."""
    del database

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        await receive()
        await send(HEAD)
        await send({"type": "http.response.body", "body": b"event: chunk\ndata: 1\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    return application


async def _live(receive: Any, send: Any) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})
