"""The application that the server is told to serve: the user's own, with the recorder around it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import Any

from . import tape, wrap  # noqa: TID252  (the directory runs under another name)

APP_VARIABLE = "OUTLIVE_PROBE_APP"

#: Distributions whose versions belong into a report.
NAMED = ("uvicorn", "granian", "hypercorn", "gunicorn", "starlette", "fastapi", "sse-starlette", "langgraph")


def load(target: str) -> Any:
    """The object that `module:attribute` names; `module:factory()` is called."""
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in (attribute or "app").removesuffix("()").split("."):
        found = getattr(found, part)
    found = found() if attribute.endswith("()") else found
    if not callable(found):
        raise TypeError(f"{target} is no ASGI application, but of type {type(found).__name__}")
    return found


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in NAMED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


app = wrap.recorded(load(os.environ[APP_VARIABLE]))
tape.note("app.loaded", versions=_versions())
