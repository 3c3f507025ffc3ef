"""Reading a JSON body without trusting it, and writing one that every client reads alike.

Decides: what is JSON here (strict UTF-8, no name twice, no number that is none), how large a body may be, and
how an error names its field. Does not decide: which fields there are.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, TypeVar

import pydantic
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from outlive import errors

M = TypeVar("M", bound=pydantic.BaseModel)
LONGEST_SHOWN = 200
"""Characters of what a client sent that an error repeats."""


class Json(JSONResponse):
    """ASCII only: text with a lone surrogate has no UTF-8, and some clients split lines at U+2028."""

    def render(self, content: Any) -> bytes:
        """Return the content as bytes; raises ``ValueError`` for NaN."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


async def read(request: Request, model: type[M], limit: int) -> tuple[M, int]:
    """Read and validate a body of at most ``limit`` bytes, and say how large it was.

    Raises ``TooLarge`` or ``InvalidInput``.
    """
    received = await receive(request, limit)
    parsed = parse(received)
    if not isinstance(parsed, dict):
        raise errors.InvalidInput("The body is not a JSON object.", field="body")
    try:
        return model.model_validate(parsed), len(received)
    except pydantic.ValidationError as failure:
        raise invalid(failure.errors()[0], model) from None


def check_size(size: int, limit: int) -> None:
    """Raise ``TooLarge`` if a body that was read is larger than it may be."""
    if size > limit:
        _too_large(limit)


async def receive(request: Request, limit: int) -> bytes:
    """Read a body of at most ``limit`` bytes; raises ``TooLarge``, ``InvalidInput`` for one that is cut off.

    The declared length is believed only when it is too large: it can be missing or lie.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
        _too_large(limit)
    received = bytearray()
    try:
        async for part in request.stream():
            received += part
            if len(received) > limit:
                _too_large(limit)
    except ClientDisconnect:  # nobody reads the answer; without one it would be logged as a fault of ours
        raise errors.InvalidInput("The client left before its body was complete.", field="body") from None
    return bytes(received)


def invalid(failure: Any, model: type[pydantic.BaseModel] | None = None) -> errors.InvalidInput:
    """Turn one of pydantic's errors into ours; its field is the path to the value that is wrong."""
    field = shown(".".join(str(part) for part in failure["loc"])) or "body"
    if failure["type"] == "extra_forbidden" and model is not None:
        known = ", ".join(model.model_fields)
        return errors.InvalidInput(
            f"{field} is no field of this request.", hint=f"Its fields are: {known}.", field=field
        )
    return errors.InvalidInput(f"{field}: {failure['msg']}.", field=field)


def shown(text: str) -> str:
    """Return at most ``LONGEST_SHOWN`` characters of what a client sent."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def parse(raw: bytes) -> Any:
    """Read strict JSON; raises ``InvalidInput``."""
    if not raw.strip():
        raise errors.InvalidInput("The body is empty.", hint="Send a JSON object.", field="body")
    try:
        return json.loads(
            raw.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_once
        )
    except UnicodeDecodeError:
        problem = "not UTF-8"
    except json.JSONDecodeError as failure:
        problem = f"not valid JSON: {failure.msg} at line {failure.lineno}, column {failure.colno}"
    except _NotJsonError as failure:
        problem = f"not strict JSON: {failure}"
    except RecursionError:
        problem = "nested too deeply"
    except ValueError:  # Python refuses to read integers of thousands of digits
        problem = "not usable: it holds a number that is too long"
    raise errors.InvalidInput(f"The body is {problem}.", field="body")


class _NotJsonError(ValueError):
    """Something that Python's parser lets through."""


def _no_number(constant: str) -> NoReturn:
    raise _NotJsonError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _NotJsonError(f"the number {shown(digits)} is too large")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: parsers differ in which one they take, and one would be lost."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _NotJsonError(f"the name {shown(repr(name))} stands twice in one object")
        seen.add(name)
    return found


def _too_large(limit: int) -> NoReturn:
    raise errors.TooLarge(f"The body is larger than {limit} bytes.", field="body")
