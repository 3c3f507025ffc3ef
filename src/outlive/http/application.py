"""The application that ``outlive serve`` serves: the router, the browsers' module, problems for the rest."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

import outlive as package
from outlive.http import native, problem
from outlive.runtime import Outlive

CLIENT = pathlib.Path(package.__file__).with_name("client") / "outlive.js"


NATIVE = "/native"
"""Where Outlive's own routes are when the LangGraph protocol has the root."""


def application(
    outlive: Outlive, *, langgraph: bool = False, custom: Any = None, auth: Any = None, **options: Any
) -> FastAPI:
    """Return an application over an ``Outlive`` that somebody else opens and closes.

    ``options`` are those of ``native.router``.  Without a ``principal`` nobody is authenticated: whoever
    reaches it may do everything.

    ``langgraph`` serves the graphs under the LangGraph protocol at the root, and Outlive's own routes under
    ``NATIVE``.  ``auth`` are the ``Handlers`` of an ``Auth`` object, which say in place of ``principal``
    who asks and what they may do.  ``custom`` is a Starlette or FastAPI application whose routes come before
    them.
    """
    app = FastAPI(title="Outlive", version=package.__version__, lifespan=_lifespan(custom))
    if custom is not None:
        app.router.routes.extend(custom.router.routes)
    if langgraph:
        _langgraph(app, outlive, options, auth)
    app.include_router(native.router(outlive, **options), prefix=NATIVE if langgraph else "")
    app.api_route("/client.js", methods=["GET", "HEAD"], include_in_schema=False)(_client)
    problem.everywhere(app)
    return app


def _langgraph(app: FastAPI, outlive: Outlive, options: dict[str, Any], auth: Any) -> None:
    routes = importlib.import_module("outlive.http.langgraph.routes")
    own: dict[str, Any] = {name: options[name] for name in ("principal", "body_limit") if name in options}
    if auth is not None:
        own["handlers"] = auth
        options["principal"] = auth.native
    app.include_router(routes.router(outlive, **own))
    routes.shared(app)


def _lifespan(custom: Any) -> Any:
    return None if custom is None else custom.router.lifespan_context


async def _client() -> Response:
    """A browser asks each time whether its copy is current: it must be of the server's own version."""
    return FileResponse(CLIENT, media_type="text/javascript", headers={"Cache-Control": "no-cache"})
