"""Reading a JSON body without trusting it: bounded in bytes, strict in syntax, named in its errors."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

import pydantic
from fastapi import Request

from outlive import errors

M = TypeVar("M", bound=pydantic.BaseModel)


async def read(request: Request, model: type[M], limit: int) -> M:
    """Read and validate a body of at most ``limit`` bytes; raises ``TooLarge`` or ``InvalidInput``.

    The declared length is believed only when it is too large: it can be missing or lie.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        _too_large(limit)
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > limit:
            _too_large(limit)
    try:
        return model.model_validate(_parse(bytes(received)))
    except pydantic.ValidationError as failure:
        first = failure.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise errors.InvalidInput(f"{field or 'The body'}: {first['msg']}.", field=field or None) from None


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_not_json)
    except (ValueError, RecursionError):
        raise errors.InvalidInput("The body is not valid JSON.", field="body") from None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _too_large(limit: int) -> NoReturn:
    raise errors.TooLarge(f"The body is larger than {limit} bytes.")
