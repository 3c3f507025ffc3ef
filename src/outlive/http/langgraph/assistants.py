"""Assistants: graphs with a configuration of their own, in versions; what a graph looks like and takes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pydantic
from fastapi import APIRouter, Request, Response

from outlive import errors
from outlive.http import body
from outlive.http.langgraph import bodies, changes, pages, shapes, wire
from outlive.http.langgraph.plane import Plane
from outlive.store import assistants
from outlive.store.assistants import Assistant, Search

_EDGE = ("source", "target", "data", "conditional")


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes."""
    here = _Assistants(plane)
    routes.post("/assistants")(here.create)
    routes.post("/assistants/search")(here.search)
    routes.post("/assistants/count")(here.count)
    routes.get("/assistants/{assistant_id}")(here.read)
    routes.patch("/assistants/{assistant_id}")(here.change)
    routes.delete("/assistants/{assistant_id}", status_code=204)(here.drop)
    routes.post("/assistants/{assistant_id}/versions")(here.versions)
    routes.post("/assistants/{assistant_id}/latest")(here.set_version)
    routes.get("/assistants/{assistant_id}/graph")(here.graph)
    routes.get("/assistants/{assistant_id}/schemas")(here.schemas)
    routes.get("/assistants/{assistant_id}/subgraphs")(here.subgraphs)
    routes.get("/assistants/{assistant_id}/subgraphs/{namespace}")(here.subgraphs)


class _Assistants:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._store = plane.outlive.store

    async def create(self, request: Request) -> Response:
        """Make an assistant; 409 if there is one of that id, unless that is no matter."""
        new = await self._plane.read(request, bodies.NewAssistant)
        self._check_graph(new.graph_id)
        tenant = wire.tenant(request)
        given = wire.uuid_of(new.assistant_id, "assistant") if new.assistant_id else uuid.uuid4()
        wanted = Assistant(
            tenant=tenant,
            assistant_id=str(given),
            agent=new.graph_id,
            name=new.name or "Untitled",
            description=new.description,
            config=new.config or {},
            context=new.context if new.context is not None else {},
            metadata=new.metadata or {},
        )
        await self._plane.greet(tenant)
        made = await self._store.write(assistants.create(wanted))
        if made is None and new.if_exists == "raise":
            raise errors.Conflict(f"Assistant {given} already exists.", field="assistant_id")
        made = made or await self._plane.assistant(tenant, str(given))
        return body.Json(shapes.assistant(made))

    def _check_graph(self, graph_id: str) -> None:
        if graph_id not in self._plane.graphs:
            known = ", ".join(sorted(self._plane.graphs)) or "none"
            raise errors.NotFound(
                f"There is no graph {graph_id!r}.", hint=f"This service has: {known}.", field="graph_id"
            )

    async def search(self, request: Request) -> Response:
        """Return the assistants that match."""
        wanted = await self._plane.read(request, bodies.AssistantSearch, empty={})
        found, total = await self._search(request, wanted)
        shown = [shapes.selected(shapes.assistant(one), wanted.select) for one in found]
        return body.Json(shown, headers=pages.headers(wanted.offset, len(found), total))

    async def count(self, request: Request) -> Response:
        """Return how many match."""
        wanted = await self._plane.read(request, bodies.AssistantSearch, empty={})
        _, total = await self._search(request, wanted)
        return body.Json(total)

    async def _search(self, request: Request, wanted: bodies.AssistantSearch) -> tuple[list[Assistant], int]:
        tenant = wire.tenant(request)
        await self._plane.greet(tenant)
        search = Search(
            metadata=wanted.metadata or {},
            agent=wanted.graph_id,
            name=wanted.name,
            limit=wanted.limit,
            offset=wanted.offset,
            by=wanted.sort_by or "created_at",
            ascending=wanted.sort_order == "asc",
            allowed=self._plane.allowed(request).equal,
            holding=self._plane.allowed(request).holding,
        )
        found, total = await self._store.read(assistants.search(tenant, search))
        return [one for one in found if self._plane.allowed(request).passes(one.metadata)], total

    async def read(self, request: Request, assistant_id: str) -> Response:
        """Return an assistant."""
        return body.Json(shapes.assistant(await self._plane.assistant(wire.tenant(request), assistant_id)))

    async def change(self, request: Request, assistant_id: str) -> Response:
        """Make a new version of an assistant."""
        patch = await self._plane.read(request, bodies.AssistantPatch)
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        given = {name: value for name, value in patch.model_dump().items() if value is not None}
        if "graph_id" in given:
            self._check_graph(given["graph_id"])
            given["agent"] = given.pop("graph_id")
        changed = assistants.change(found.tenant, found.assistant_id, given)
        return body.Json(shapes.assistant(await self._store.write(changed)))

    async def drop(self, request: Request, assistant_id: str) -> Response:
        """Take an assistant away; a graph's own one comes back when it is next asked for."""
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        if wire.flag(request, "delete_threads"):
            await changes.delete_of(self._plane, found.tenant, {"assistant_id": found.assistant_id})
        await self._store.write(assistants.drop(found.tenant, found.assistant_id))
        return Response(status_code=204)

    async def versions(self, request: Request, assistant_id: str) -> Response:
        """Return an assistant's versions, newest first."""
        wanted = await self._plane.read(request, bodies.Versions, empty={})
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        kept = await self._store.read(
            assistants.versions(
                found.tenant,
                found.assistant_id,
                metadata=wanted.metadata or {},
                limit=wanted.limit,
                offset=wanted.offset,
            )
        )
        return body.Json([shapes.assistant(one) for one in kept])

    async def set_version(self, request: Request, assistant_id: str) -> Response:
        """Make a version the current one."""
        wanted = await self._plane.read(request, bodies.Version)
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        changed = assistants.set_version(found.tenant, found.assistant_id, wanted.version)
        return body.Json(shapes.assistant(await self._store.write(changed)))

    async def graph(self, request: Request, assistant_id: str) -> Response:
        """Return the graph's nodes and edges; ``xray`` opens the subgraphs, to a depth if it is a number."""
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        drawn = await self._plane.graph(found).graph.aget_graph(xray=_xray(request))
        shown = drawn.to_json()
        shown["edges"] = [{name: edge[name] for name in _EDGE if name in edge} for edge in shown["edges"]]
        return body.Json(shown)

    async def schemas(self, request: Request, assistant_id: str) -> Response:
        """Return what a graph takes and gives, as JSON schemas; null where it cannot say."""
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        graph = self._plane.graph(found).graph
        return body.Json({"graph_id": found.agent, **_schemas(graph)})

    async def subgraphs(self, request: Request, assistant_id: str, namespace: str | None = None) -> Response:
        """Return the schemas of a graph's subgraphs, by namespace."""
        found = await self._plane.assistant(wire.tenant(request), assistant_id)
        recurse = wire.flag(request, "recurse")
        graph = self._plane.graph(found).graph
        nested = [one async for one in graph.aget_subgraphs(namespace=namespace, recurse=recurse)]
        return body.Json({name: _schemas(subgraph) for name, subgraph in nested})


def _xray(request: Request) -> bool | int:
    given = request.query_params.get("xray", "")
    if given.isascii() and given.isdigit() and len(given) < 4 and given not in ("0", "1"):
        return int(given)
    return wire.flag(request, "xray")


def _schemas(graph: Any) -> dict[str, Any]:
    makers: dict[str, Callable[[], Any]] = {
        "input_schema": graph.get_input_jsonschema,
        "output_schema": graph.get_output_jsonschema,
        "state_schema": lambda: _state_schema(graph),
        "config_schema": lambda: _configurable(graph),
        "context_schema": graph.get_context_jsonschema,
    }
    return {name: _made(make) for name, make in makers.items()}


def _made(make: Callable[[], Any]) -> Any:
    """A type that pydantic has no schema for must not take the others with it."""
    try:
        return make()
    except Exception:
        return None


def _state_schema(graph: Any) -> Any:
    schema = getattr(getattr(graph, "builder", None), "state_schema", None)
    if schema is None:
        return graph.get_output_jsonschema()
    return pydantic.TypeAdapter(schema).json_schema()


def _configurable(graph: Any) -> Any:
    return graph.get_config_jsonschema().get("$defs", {}).get("Configurable", {})
