"""Items of the graphs' long-term memory, as clients read and write them.

What a client may name is its tenant's: see ``agents.items``.
"""

from __future__ import annotations

import json
import re
from datetime import UTC
from typing import Any

import pydantic
from fastapi import APIRouter, Request, Response
from langgraph.store.base import Item

from outlive import errors
from outlive.agents.items import Items
from outlive.http import body
from outlive.http.langgraph import bodies, wire
from outlive.http.langgraph.plane import Plane

Namespace = list[str]
_MINUTES = 60 * 24 * 366 * 100
_FIELD = re.compile(r"[A-Za-z0-9_-]+")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""As JSON writes it, and not the six characters themselves."""


class NewItem(wire.Body):
    """An item, in place of whatever has its key; ``ttl`` is in minutes."""

    namespace: Namespace
    key: str = pydantic.Field(min_length=1)
    value: bodies.Object
    index: list[str] | bool | None = None
    ttl: float | None = pydantic.Field(default=None, gt=0, le=_MINUTES, allow_inf_nan=False)


class Named(wire.Body):
    """Which item is meant."""

    namespace: Namespace = pydantic.Field(default_factory=list)
    key: str


class Search(wire.Body):
    """What items are looked for by."""

    namespace_prefix: Namespace = pydantic.Field(default_factory=list)
    filter: bodies.Object | None = None
    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    offset: int = pydantic.Field(default=0, ge=0, le=2**31)
    query: str | None = None
    refresh_ttl: bool | None = None


class Namespaces(wire.Body):
    """Which namespaces are asked for; ``*`` stands for any one label."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: int | None = pydantic.Field(default=None, ge=1, le=100)
    limit: int = pydantic.Field(default=100, ge=1, le=1000)
    offset: int = pydantic.Field(default=0, ge=0, le=2**31)


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes."""
    here = _Store(plane)
    routes.put("/store/items", status_code=204)(here.put)
    routes.get("/store/items")(here.read)
    routes.delete("/store/items", status_code=204)(here.drop)
    routes.post("/store/items/search")(here.search)
    routes.post("/store/namespaces")(here.namespaces)


class _Store:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def put(self, request: Request) -> Response:
        """Keep an item."""
        new = await self._plane.read(request, NewItem)
        if new.index:
            raise _no_index("index")
        _check_value(new.value)
        lives = {"ttl": new.ttl} if "ttl" in new.model_fields_set else {}
        items = self._items(request)
        await _taken(items.aput(tuple(new.namespace), new.key, new.value, index=False, **lives))
        return Response(status_code=204)

    async def read(self, request: Request) -> Response:
        """Return an item, or null."""
        key, namespace = request.query_params.get("key"), request.query_params.get("namespace", "")
        if not key:
            raise errors.InvalidInput("The query names no key.", field="key")
        labels = namespace.split(".") if namespace else []
        refresh = wire.flag(request, "refresh_ttl") if "refresh_ttl" in request.query_params else None
        items = self._items(request)
        found = await _taken(items.aget(tuple(labels), key, refresh_ttl=refresh))
        return body.Json(None if found is None else _shown(found))

    async def drop(self, request: Request) -> Response:
        """Take an item away, if it is there."""
        wanted = await self._plane.read(request, Named)
        await _taken(self._items(request).adelete(tuple(wanted.namespace), wanted.key))
        return Response(status_code=204)

    async def search(self, request: Request) -> Response:
        """Return the items that match, those that were changed last first."""
        wanted = await self._plane.read(request, Search, empty={})
        if wanted.query is not None:
            raise _no_index("query")
        if wanted.filter is not None:
            _check_value(wanted.filter)
            _check_fields(wanted.filter)
        found = await _taken(
            self._items(request).asearch(
                tuple(wanted.namespace_prefix),
                filter=wanted.filter,
                limit=wanted.limit,
                offset=wanted.offset,
                refresh_ttl=wanted.refresh_ttl,
            )
        )
        return body.Json({"items": [{**_shown(one), "score": None} for one in found]})

    async def namespaces(self, request: Request) -> Response:
        """Return the namespaces that match."""
        wanted = await self._plane.read(request, Namespaces, empty={})
        found = await _taken(
            self._items(request).alist_namespaces(
                prefix=tuple(wanted.prefix or ()) or None,
                suffix=tuple(wanted.suffix or ()) or None,
                max_depth=wanted.max_depth,
                limit=wanted.limit,
                offset=wanted.offset,
            )
        )
        return body.Json({"namespaces": [list(one) for one in found]})

    def _items(self, request: Request) -> Items:
        """The memory is the same whichever graph is asked for it."""
        return next(iter(self._plane.graphs.values())).items(wire.tenant(request))


async def _taken(asked: Any) -> Any:
    """What LangGraph refuses is a client's mistake here."""
    try:
        return await asked
    except (ValueError, TypeError) as wrong:
        raise errors.InvalidInput(
            f"The store does not take this: {str(wrong)[:200]}.", field="body"
        ) from None


def _check_fields(wanted: bodies.Object) -> None:
    """The databases read other names in ways of their own: as a path, or not at all."""
    for name in wanted:
        if not _FIELD.fullmatch(name):
            raise errors.InvalidInput(
                f"No item can be looked for by a field {body.shown(name)!r}.",
                hint="Letters, digits, _ and - of ASCII: a field at the top of the value.",
                field="filter",
            )


def _check_value(value: bodies.Object) -> None:
    """Both databases keep the same values: text without NUL, and no number beyond 64 bits."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise errors.InvalidInput("The value holds a lone surrogate.", field="value") from None
    if _NUL.search(text):
        raise errors.InvalidInput("The value holds a NUL.", field="value")


def _no_index(field: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{field} is for a search by meaning, which there is not here.",
        hint="Search by namespace and filter.",
        field=field,
    )


def _shown(item: Item) -> dict[str, Any]:
    """Return an item; its times are those of the database, which are UTC also where they do not say so."""
    times = {
        name: (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
        for name, moment in (("created_at", item.created_at), ("updated_at", item.updated_at))
    }
    return {"namespace": list(item.namespace), "key": item.key, "value": item.value, **times}
