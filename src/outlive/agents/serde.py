"""Reads checkpoints as LangGraph does, and says so where it would quietly hand out something else.

Decides what happens to a checkpoint that holds an object of a class which is not there any more: LangGraph
gives the graph a plain dict, or None, in its place, and the run goes on with that, and writes it down.  Here
reading it fails.  Nothing is written, so nothing is lost: the class under its old name, of which an alias is
enough, makes the thread readable again.
"""

from __future__ import annotations

import importlib
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import (
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from outlive import errors

_FOUND: set[tuple[str, str]] = set()
"""Modules and names that are there: most checkpoints hold the same few."""


class Faithful(JsonPlusSerializer):
    """LangGraph's serialiser, which raises ``StateUnreadable`` rather than give a dict for an object."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return a value; raises ``StateUnreadable``."""
        kind, packed = data
        if kind == "msgpack":
            _check(packed)
        return super().loads_typed(data)


def _check(packed: bytes) -> None:
    missing: list[str] = []

    def look(code: int, inner: bytes) -> None:
        """Look into an object, and whatever objects it is made of."""
        if code == EXT_NUMPY_ARRAY:
            return
        found = ormsgpack.unpackb(inner, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
        if code <= EXT_PYDANTIC_V2 and isinstance(found, list | tuple) and not _is_there(*found[:2]):
            missing.append(f"{found[0]}.{found[1]}")

    ormsgpack.unpackb(packed, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
    if missing:
        raise errors.StateUnreadable from LookupError(f"not there: {', '.join(sorted(set(missing)))}")


def _is_there(module: str, name: str) -> bool:
    if (module, name) in _FOUND:
        return True
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return False
    _FOUND.add((module, name))
    return True
