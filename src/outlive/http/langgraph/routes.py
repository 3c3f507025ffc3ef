"""The router of the LangGraph protocol, which any application can include at its root."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware

from outlive import errors
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import auth
from outlive.http.langgraph import (
    assistants,
    changes,
    channels,
    commands,
    crons,
    following,
    items,
    runs,
    sockets,
    stopping,
    system,
    threads,
    wire,
)
from outlive.http.langgraph.authorising import Authorising
from outlive.http.langgraph.handlers import Handlers
from outlive.http.langgraph.plane import Plane
from outlive.runtime import Outlive

EXPOSED = ("Content-Location", "Location", "X-Pagination-Total", "X-Pagination-Next", "Outlive-Admitted")
"""What pages of another origin may read: without them none could take a stream up again."""
BODY_LIMIT = 4 * 1024 * 1024
HEARTBEAT_SECONDS = 5.0
"""Clients take three silent heartbeats for a dead connection, so they go on as long as a stream is open."""
KEPT_SECONDS = 300.0
"""A client whose stream was cut, or that asks for the status after it, must find the run for a while."""
_LOOKS = ("/search", "/count", "/history", "/state/checkpoint", "/versions", "/namespaces")


def router(
    outlive: Outlive,
    *,
    principal: auth.Dependency | None = None,
    body_limit: int = BODY_LIMIT,
    heartbeat: float = HEARTBEAT_SECONDS,
    kept: float = KEPT_SECONDS,
    handlers: Handlers | None = None,
) -> APIRouter:
    """Return a router over the graphs of ``outlive``; its other agents are not of this protocol.

    ``principal`` is as for ``outlive.router``; ``handlers`` are those of an ``Auth`` object, which says in
    its place who asks, and what each may see and do.  A run without a thread is deleted ``kept`` seconds
    after its end, unless its ``on_completion`` is ``keep``.  Paths are absolute for these clients: include it
    without a prefix.  Raises ``Misconfigured`` if there is no graph.
    """
    agents = (outlive.registry[name] for name in outlive.registry.names)
    graphs = {agent.name: agent for agent in agents if isinstance(agent, LangGraphAgent)}
    if not graphs:
        raise errors.Misconfigured(
            "There is no graph among the agents.", hint="The LangGraph protocol serves compiled graphs."
        )

    asked = principal or auth.nobody if handlers is None else handlers.principal

    async def authenticate(request: Request, found: Any = Depends(asked)) -> None:
        who = auth.read(found)
        looks = request.method == "GET" or request.url.path.endswith(_LOOKS)
        auth.check_scope(who, "GET" if looks else request.method)
        request.state.outlive_principal = who
        if handlers is not None:
            await Authorising(plane, handlers).check(request)

    plane = Plane(outlive=outlive, graphs=graphs, body_limit=body_limit, heartbeat=heartbeat, kept=kept)
    routes = APIRouter(route_class=wire.DetailRoute)
    system.add(routes)
    sockets.add(routes, plane)
    scoped = APIRouter(route_class=wire.DetailRoute, dependencies=[Depends(authenticate)])
    for part in (assistants, threads, changes, crons, stopping, runs, commands, channels, following, items):
        part.add(scoped, plane)
    routes.include_router(scoped)
    return routes


def shared(app: FastAPI) -> None:
    """Let pages of any origin in, as these clients expect; who may do what, credentials say, not origins."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=600,
    )
