"""Errors on the wire: ``application/problem+json`` (RFC 9457) with a stable code and a hint.

Decides what a client is told when something is refused or fails; nothing internal ever gets through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from outlive import errors
from outlive.http import body

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = "1"
"""Seconds, with every 503."""
logger = logging.getLogger("outlive.http")


def problems(app: FastAPI) -> None:
    """Let your own handlers raise Outlive's errors: each is answered with its status, code and hint.

    The router's own routes do so anyway; without this, an error that a handler of yours lets through is a
    plain 500.
    """
    app.add_exception_handler(errors.OutliveError, _handle)


def everywhere(app: FastAPI) -> None:
    """Answer unknown routes, wrong methods and faults like that too, in an application that is all ours."""
    problems(app)
    app.add_exception_handler(HTTPException, _handle_http)
    app.add_exception_handler(Exception, _handle_fault)


def describe(failure: errors.OutliveError) -> dict[str, Any]:
    """Return the public body of an error."""
    described = {
        "type": f"urn:outlive:{failure.code}",
        "code": failure.code,
        "title": failure.message,
        "status": failure.status,
        "hint": failure.hint,
    }
    if failure.run_id is not None:
        described["run_id"] = failure.run_id
    if isinstance(failure, errors.ThreadLeft):
        described["position"] = failure.position
    if failure.field is not None:
        described["field"] = failure.field
    if isinstance(failure, errors.Pruned):
        described |= {"oldest": failure.oldest, "latest": failure.latest, "snapshot": failure.snapshot}
    return described


def respond(failure: errors.OutliveError) -> Response:
    """Return the response of an error; a fault of ours shows neither its text nor its cause."""
    if failure.status == 500:
        logger.error("request failed", exc_info=failure)
        failure = errors.OutliveError("The server failed.", run_id=failure.run_id)
    return body.Json(describe(failure), failure.status, _headers(failure), MEDIA_TYPE)


def _headers(failure: errors.OutliveError) -> dict[str, str] | None:
    if isinstance(failure, errors.LimitReached):
        return {"Retry-After": str(failure.retry_after)}
    if isinstance(failure, errors.Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": RETRY_AFTER} if failure.status == 503 else None


def invalid(failure: RequestValidationError) -> errors.InvalidInput:
    """Turn a validation error of the framework into ours, naming the first field that is wrong."""
    first = dict(failure.errors()[0])
    first["loc"] = first["loc"][1:]  # what precedes the name says whether it is in the query or the path
    return body.invalid(first)


class ProblemRoute(APIRoute):
    """A route whose errors are problems, in whatever application it is mounted."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler that the framework made."""
        handle = super().get_route_handler()

        async def handle_or_describe(request: Request) -> Response:
            try:
                return await handle(request)
            except errors.OutliveError as failure:
                return respond(failure)
            except RequestValidationError as failure:
                return respond(invalid(failure))

        return handle_or_describe


def readable(routes: APIRouter, path: str, handler: Callable[..., Any], *, public: bool = True) -> None:
    """GET, and HEAD by the same handler: the framework adds no HEAD by itself."""
    routes.get(path, include_in_schema=public)(handler)
    routes.head(path, include_in_schema=False)(handler)


async def _handle(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, errors.OutliveError)
    return respond(failure)


async def _handle_http(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    if failure.status_code == 404:
        known = errors.NotFound("There is no such route.", hint="See /docs for the routes.")
        return respond(known)
    wrong_method = failure.status_code == 405
    code = "method_not_allowed" if wrong_method else "refused"
    described = {
        "type": f"urn:outlive:{code}",
        "code": code,
        "title": f"{request.method} is not possible here." if wrong_method else failure.detail,
        "status": failure.status_code,
        "hint": "See /docs for the routes and their methods.",
    }
    return body.Json(described, failure.status_code, failure.headers, MEDIA_TYPE)


async def _handle_fault(_: Request, failure: Exception) -> Response:
    del failure  # the server logs it: this handler's caller raises it again
    return body.Json(describe(errors.OutliveError("The server failed.")), 500, None, MEDIA_TYPE)
