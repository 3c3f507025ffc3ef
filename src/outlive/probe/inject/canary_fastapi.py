"""The canary's routes that need FastAPI: a dependency with `yield`, and native server-sent events."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount

from . import canary_routes, tape  # noqa: TID252  (the directory runs under another name)
from .canary import PREFIX  # noqa: TID252


def routes() -> list[BaseRoute]:
    """What FastAPI adds to the canary."""
    service = FastAPI(openapi_url=None)
    service.add_api_route("/dependency", _dependency)
    if importlib.util.find_spec("fastapi.sse") is not None:
        native: Any = importlib.import_module("fastapi.sse").EventSourceResponse
        service.add_api_route("/native", _native, response_class=native, response_model=None)
    return [Mount(f"{PREFIX}/fastapi", app=service)]


async def _session() -> AsyncIterator[str]:
    try:
        yield "session"
    except BaseException as exc:
        tape.note("canary.dependency", error=type(exc).__name__)
        raise
    tape.note("canary.dependency", error=None)


async def _dependency(session: Annotated[str, Depends(_session)]) -> Response:
    del session
    return StreamingResponse(canary_routes.steps(), media_type="text/event-stream")


async def _native() -> AsyncIterator[dict[str, Any]]:
    try:
        for number in range(2000):
            yield {"number": number, "filling": "x" * 65536}
    finally:
        tape.note("canary.native.closed")
