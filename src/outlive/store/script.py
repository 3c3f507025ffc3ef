"""A transaction as a value: a generator of statements that any store can run, repeat or step through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from outlive.model import Row

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named block of ``queries.sql`` and its parameters."""

    name: str
    params: Mapping[str, Any]


Steps = Generator[Statement, list[Row], T]


@dataclass(frozen=True, slots=True)
class Script(Generic[T_co]):
    """A transaction that can be started any number of times.

    ``single``: its first statement is atomic by itself and what follows only reads back, so a store may
    run it without an explicit transaction.  ``reads``: it writes nothing.
    """

    name: str
    start: Callable[[], Steps[T_co]]
    single: bool = False
    reads: bool = False


def script(
    *, single: bool = False, reads: bool = False
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Script[T]]]:
    """Turn a generator function into a function that returns a ``Script``."""

    def decorate(steps: Callable[P, Steps[T]]) -> Callable[P, Script[T]]:
        @functools.wraps(steps)
        def prepare(*args: P.args, **kwargs: P.kwargs) -> Script[T]:
            def start() -> Steps[T]:
                return steps(*args, **kwargs)

            return Script(steps.__name__, start, single, reads)

        return prepare

    return decorate


def statement(name: str, /, **params: Any) -> Statement:
    """Name a block and its parameters."""
    return Statement(name, params)
