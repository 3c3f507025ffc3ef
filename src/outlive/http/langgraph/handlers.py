"""An application's ``Auth`` object, as written for LangGraph's platform: who asks, and what they may do.

Decides how its handlers are called and what their answers mean.  A handler that returns nothing denies: an
answer that was forgotten must not let anybody in.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request
from langgraph_sdk import Auth
from langgraph_sdk.auth.types import AuthContext
from starlette.exceptions import HTTPException

from outlive import errors
from outlive.agents.users import User
from outlive.http import body
from outlive.http.langgraph import filters
from outlive.http.langgraph.filters import Filter
from outlive.principal import Principal

SHARED = "langgraph"
"""The tenant of all users of an application whose handlers say who sees what."""
RESOURCES = ("threads", "assistants", "crons", "store")
_LIMIT = 4 * 1024 * 1024


class Handlers:
    """One ``Auth`` object.  Raises ``Misconfigured`` for what is none, or authenticates nobody."""

    def __init__(self, auth: Any) -> None:
        if not isinstance(auth, Auth):
            raise errors.Misconfigured(
                f"{type(auth).__name__} is no Auth object.", hint="Make one with langgraph_sdk.Auth()."
            )
        if auth._authenticate_handler is None:
            raise errors.Misconfigured(
                "The Auth object does not say who asks.", hint="Give it a handler with @auth.authenticate."
            )
        self._authenticate: Callable[..., Any] = auth._authenticate_handler
        self._wants = _parameters(self._authenticate)
        self._handlers = auth._handlers
        self._global = auth._global_handlers

    @property
    def decide(self) -> bool:
        """Whether any handler says who sees what; without one each user sees their own."""
        return bool(self._global or self._handlers)

    @property
    def undecided(self) -> list[str]:
        """The resources of which no handler says anything, so that every user may do everything."""
        if self._global or not self.decide:
            return []
        return [name for name in RESOURCES if not any(of in (name, "*") for of, _ in self._handlers)]

    # ------------------------------------------------------------ who asks

    async def principal(self, request: Request) -> Principal:
        """Find who asks, as a dependency; raises what the handler raises."""
        user = await self.user(request)
        request.state.outlive_user = user
        request.scope["user"] = user
        tenant = SHARED if self.decide else user.identity
        return Principal(tenant=tenant, id=user.identity)

    async def native(self, request: Request) -> Principal:
        """Find who asks for Outlive's own routes, which are closed where handlers decide: they know none."""
        if self.decide:
            raise errors.Forbidden(
                "The handlers of this service decide about the LangGraph protocol only, "
                "so Outlive's own routes are closed."
            )
        return await self.principal(request)

    async def user(self, request: Request) -> User:
        """Ask the application who this is; raises ``Unauthenticated``, or what its handler raised."""
        given = {name: await _argument(name, request) for name in self._wants}
        try:
            user = _read(await _called(self._authenticate, given))
        except Auth.exceptions.HTTPException as refusal:
            raise HTTPException(refusal.status_code, refusal.detail, _plain(refusal.headers)) from None
        except AssertionError as refusal:
            raise errors.Unauthenticated(str(refusal) or None) from None
        if not user.is_authenticated:
            raise errors.Unauthenticated("This user is not authenticated.")
        return user

    # ------------------------------------------------------------ what they may do

    async def ask(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """Ask the handler of an action, which may change ``value``; raises ``Forbidden``."""
        handler = self._of(resource, action)
        if handler is None:
            return filters.NOTHING
        about: Any = {"resource": resource, "action": action}
        context = AuthContext(user=user, permissions=user.permissions, **about)
        try:
            answer = await handler(ctx=context, value=value)
        except Auth.exceptions.HTTPException as refusal:
            raise HTTPException(refusal.status_code, refusal.detail, _plain(refusal.headers)) from None
        except AssertionError as refusal:
            raise errors.Forbidden(str(refusal) or "This is not allowed.") from None
        return _answered(answer, handler, resource, action)

    def _of(self, resource: str, action: str) -> Callable[..., Any] | None:
        """The most particular handler: of the action, the resource, the action anywhere, then any."""
        for known in ((resource, action), (resource, "*"), ("*", action)):
            if found := self._handlers.get(known):
                return found[-1]
        return self._global[-1] if self._global else None


def _answered(answer: Any, handler: Any, resource: str, action: str) -> Filter:
    if answer is None:
        name = getattr(handler, "__name__", "the handler")
        raise errors.Forbidden(
            f"{name} returned nothing for {action} of {resource}, which denies.",
            hint="A handler allows with True, or with a filter.",
        )
    if answer is False:
        raise errors.Forbidden(f"You may not {action} {resource}.")
    if answer is True:
        return filters.NOTHING
    if not isinstance(answer, Mapping):
        raise errors.Misconfigured(
            f"A handler returned {type(answer).__name__}.", hint="Return True, False, or a filter."
        )
    return filters.read(answer)


def _parameters(handler: Callable[..., Any]) -> list[str]:
    wanted = inspect.signature(handler).parameters.values()
    known = [one for one in wanted if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    for one in known:
        if one.name not in _ARGUMENTS and one.default is one.empty:
            raise errors.Misconfigured(
                f"The handler of authenticate wants {one.name!r}.",
                hint=f"It is given any of: {', '.join(_ARGUMENTS)}.",
            )
    return [one.name for one in known if one.name in _ARGUMENTS]


async def _called(handler: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A function that is not a coroutine may block, so a thread has it."""
    if inspect.iscoroutinefunction(handler):
        return await handler(**given)
    answer = await asyncio.to_thread(handler, **given)
    return await answer if inspect.isawaitable(answer) else answer


class _Headers(dict[bytes, bytes]):
    """Headers as the platform gives them, by names in bytes; found by text as well."""

    def __missing__(self, name: Any) -> bytes:
        if isinstance(name, str) and (found := super().get(name.lower().encode("latin-1"))) is not None:
            return found
        raise KeyError(name)

    def get(self, name: Any, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


async def _body(request: Request) -> Any:
    if not hasattr(request, "_body"):  # what was read once is read again by the route
        request._body = await body.receive(request, _LIMIT)
    return body.parse(request._body) if request._body.strip() else {}


_ARGUMENTS: dict[str, Callable[[Request], Any]] = {
    "request": lambda request: request,
    "scope": lambda request: request.scope,
    "body": _body,
    "path": lambda request: request.url.path,
    "method": lambda request: request.method,
    "path_params": lambda request: dict(request.path_params),
    "query_params": lambda request: dict(request.query_params),
    "headers": lambda request: _Headers(request.scope["headers"]),
    "authorization": lambda request: request.headers.get("authorization"),
}


async def _argument(name: str, request: Request) -> Any:
    found = _ARGUMENTS[name](request)
    return await found if inspect.isawaitable(found) else found


def _read(found: Any) -> User:
    """Return a user of whatever a handler returned; raises ``Unauthenticated`` if it has no identity."""
    said = {"identity": found} if isinstance(found, str) else _said(found)
    identity = said.get("identity")
    if not isinstance(identity, str) or not identity:
        raise errors.Unauthenticated("The handler of authenticate named nobody.")
    return User(said)


def _said(found: Any) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return dict(found)
    if hasattr(found, "model_dump"):
        return dict(found.model_dump(mode="json"))
    names = ("identity", "display_name", "is_authenticated", "permissions")
    known = {name: getattr(found, name) for name in names if hasattr(found, name)}
    more = {name: value for name, value in getattr(found, "__dict__", {}).items() if not name.startswith("_")}
    return {**more, **known}


def _plain(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if headers is None else dict(headers)
