"""The application that ``outlive serve`` serves: the router, the browsers' module, problems for the rest."""

from __future__ import annotations

import pathlib
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

import outlive as package
from outlive.http import native, problem
from outlive.runtime import Outlive

CLIENT = pathlib.Path(package.__file__).with_name("client") / "outlive.js"


def application(outlive: Outlive, **options: Any) -> FastAPI:
    """Return an application over an ``Outlive`` that somebody else opens and closes.

    ``options`` are those of ``native.router``.  Without a ``principal`` nobody is authenticated: whoever
    reaches it may do everything.
    """
    app = FastAPI(title="Outlive", version=package.__version__)
    app.include_router(native.router(outlive, **options))
    app.api_route("/client.js", methods=["GET", "HEAD"], include_in_schema=False)(_client)
    problem.everywhere(app)
    return app


async def _client() -> Response:
    """A browser asks each time whether its copy is current: it must be of the server's own version."""
    return FileResponse(CLIENT, media_type="text/javascript", headers={"Cache-Control": "no-cache"})
