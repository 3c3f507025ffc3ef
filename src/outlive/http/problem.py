"""Errors on the wire: ``application/problem+json`` (RFC 9457) with a stable code and a hint.

Decides what a client is told when something is refused or fails; nothing internal ever gets through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from outlive import errors

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = "1"
logger = logging.getLogger("outlive.http")


def describe(failure: errors.OutliveError) -> dict[str, Any]:
    """Return the public body of an error."""
    body = {
        "type": f"urn:outlive:{failure.code}",
        "code": failure.code,
        "title": failure.message,
        "status": failure.status,
        "hint": failure.hint,
    }
    if failure.run_id is not None:
        body["run_id"] = failure.run_id
    if failure.field is not None:
        body["field"] = failure.field
    return body


def respond(failure: errors.OutliveError) -> Response:
    """Return the response of an error; a fault of ours shows neither its text nor its cause."""
    if failure.status == 500:
        logger.error("request failed", exc_info=failure)
        failure = errors.OutliveError("The server failed.", run_id=failure.run_id)
    headers = {"Retry-After": RETRY_AFTER} if failure.status == 503 else None
    return JSONResponse(describe(failure), failure.status, headers, MEDIA_TYPE)


def invalid(failure: RequestValidationError) -> errors.InvalidInput:
    """Turn a validation error of the framework into ours, naming the first field that is wrong."""
    first = failure.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path", "header"))
    return errors.InvalidInput(f"{field or 'The body'}: {first['msg']}.", field=field or None)


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
