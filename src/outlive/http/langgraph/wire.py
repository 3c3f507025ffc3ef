"""Rules of the LangGraph wire that hold on every route: ids, query strings, bodies, errors, headers.

Bodies are JSON whatever their Content-Type says: proxies of these clients drop it.  Lists in a query come as
repeated keys, as one JSON list, or with commas; flags as words or digits.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pydantic
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from outlive import errors
from outlive.http import body, problem
from outlive.principal import Principal

T = TypeVar("T")
_TRUE, _FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no", ""})


class Body(pydantic.BaseModel):
    """What a client sends.  Fields that we do not know are left out: clients run ahead of servers."""

    model_config = pydantic.ConfigDict(extra="ignore")


def who(request: Request) -> Principal:
    """Return the principal that the router's dependency found."""
    found: Principal = request.state.outlive_principal
    return found


def tenant(request: Request) -> str:
    """Return whose threads and runs this request may see."""
    return who(request).tenant


# ------------------------------------------------------------ ids


def shown_id(run_id: str) -> str:
    """Return one of our ids as these clients write them."""
    return str(uuid.UUID(run_id))


def run_id(text: str) -> str:
    """Return the id of a run as we write it; raises ``InvalidInput``."""
    return uuid_of(text, "run").hex


def thread_name(text: str) -> str:
    """Return the name of the thread that a client calls ``text``; raises ``InvalidInput``.

    Without dashes it is one that a run without a thread was given, and is called so.
    """
    found = uuid_of(text, "thread")
    return text if text == found.hex else str(found)


def uuid_of(text: str, what: str) -> uuid.UUID:
    """Read an id; raises ``InvalidInput``, which names ``what`` it is of."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise errors.InvalidInput(f"Invalid {what} ID: must be a UUID.", field=f"{what}_id") from None


# ------------------------------------------------------------ queries and bodies


def many(request: Request, *names: str) -> list[str] | None:
    """Return a list out of the query, whichever of its names and forms it has; None: it is not there."""
    given = [text for name in names for text in request.query_params.getlist(name)]
    if not given:
        return None
    return [item for text in given for item in _items(text)]


def _items(text: str) -> list[str]:
    if text.startswith("["):
        try:
            parsed = json.loads(text)
        except ValueError:
            raise errors.InvalidInput(f"{body.shown(text)} is no JSON list.") from None
        return [str(item) for item in parsed]
    return [item.strip() for item in text.split(",") if item.strip()]


def flag(request: Request, name: str, *, default: bool = False) -> bool:
    """Return a flag out of the query; raises ``InvalidInput`` for what is none."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if given.lower() in _TRUE:
        return True
    if given.lower() in _FALSE:
        return False
    raise errors.InvalidInput(f"{name} is true or false, not {body.shown(given)}.", field=name)


def number(request: Request, name: str, default: int, *, least: int = 0, most: int = 1000) -> int:
    """Return a whole number out of the query; raises ``InvalidInput``."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10 and least <= int(given) <= most):
        raise errors.InvalidInput(f"{name} is a whole number from {least} to {most}.", field=name)
    return int(given)


async def read(request: Request, kind: type[T], limit: int, *, empty: Any = None) -> T:
    """Read a body of at most ``limit`` bytes; ``empty`` is what no body at all stands for.

    Raises ``InvalidInput``, ``TooLarge``.
    """
    received = await body.receive(request, limit)
    parsed = empty if empty is not None and not received.strip() else body.parse(received)
    return typed(kind, parsed)


def typed(kind: type[T], parsed: Any) -> T:
    """Return what a client sent as what it has to be; raises ``InvalidInput``, which names the field."""
    try:
        return pydantic.TypeAdapter(kind).validate_python(parsed)
    except pydantic.ValidationError as failure:
        raise body.invalid(failure.errors()[0]) from None


# ------------------------------------------------------------ errors


class DetailRoute(APIRoute):
    """A route whose errors have the one field that these clients read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler that the framework made."""
        handle = super().get_route_handler()

        async def handle_or_describe(request: Request) -> Response:
            try:
                return await handle(request)
            except errors.OutliveError as failure:
                return refused(failure)
            except RequestValidationError as failure:
                return refused(problem.invalid(failure))
            except HTTPException as failure:
                return body.Json({"detail": failure.detail}, failure.status_code, failure.headers)

        return handle_or_describe


def refused(failure: errors.OutliveError) -> Response:
    """Answer an error: its text under ``detail``, and all that a problem of ours has beside it."""
    answer = problem.respond(failure)
    described = json.loads(bytes(answer.body))
    title = described.pop("title")
    for field in ("type", "status"):
        described.pop(field)
    headers = {
        name: text for name, text in answer.headers.items() if name in ("retry-after", "www-authenticate")
    }
    return body.Json({"detail": title, **described}, answer.status_code, headers)
