"""The application of the documentation, with a handler and pages of the tests', and open to other origins."""

from __future__ import annotations

import importlib
import pathlib
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header
from fastapi.staticfiles import StaticFiles
from starlette.middleware.cors import CORSMiddleware

import outlive

documented: Any = importlib.import_module("app")
app: FastAPI = documented.app
app.mount("/pages", StaticFiles(directory=pathlib.Path(__file__).with_name("pages")))
app.add_middleware(
    CORSMiddleware,
    allow_origins=["*"],
    allow_methods=["GET", "POST"],
    allow_headers=["Idempotency-Key", "Last-Event-ID"],
    expose_headers=["Outlive-Run", "Outlive-Admitted", "Retry-After", "Date"],
)


@app.post("/chat")
async def chat(
    text: Annotated[str, Body(embed=True)],
    idempotency_key: Annotated[str, Header()],
    last_event_id: Annotated[str | None, Header()] = None,
) -> outlive.EventStream:
    """A handler of one's own, as the README has it."""
    made = await documented.runs.submit("assistant", text, key=idempotency_key)
    return outlive.stream(documented.runs, made, after=last_event_id)
