"""Effects declared at a module's top: any process that has the module can execute and undo them.

Decides how a call's arguments become an effect's inputs and key.  What is only passed to `once` lives and
dies with its process; what is declared here can be released or undone by whoever is there later.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from outlive import errors
from outlive.effects import asking, calling
from outlive.ledger import Kind

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """An effect's function and what was declared with it."""

    name: str
    function: Callable[..., Any]
    options: dict[str, Any]

    async def run(self, inputs: dict[str, Any]) -> Any:
        """Call the function on the event loop's behalf: a blocking one in a thread."""
        return await asking.in_thread_or_coroutine(functools.partial(self.function, **inputs))


DECLARED: dict[str, Declared] = {}
"""By name."""


def effect(
    name: str,
    *,
    key: str | Sequence[str],
    kind: Kind | str = Kind.IRREVERSIBLE,
    key_ttl: float | None = None,
    lookup: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    authorize: Callable[..., Any] | None = None,
    approval: bool = False,
    resource: Callable[..., str] | None = None,
    lands_within: float = 60.0,
    again_after_failure: bool = False,
    budget: float = 30.0,
) -> Callable[[F], F]:
    """Make a function an effect: whoever calls it in an agent has it executed once, see `calling.once`.

    ``key`` names the parameters that make the call this one; the other arguments are its inputs, which must
    be the same each time.  ``resource`` gets the arguments.  A coroutine function is awaited; a plain one is
    called from a thread.  Raises ``Misconfigured`` for a name that is taken or a parameter that is missing.
    """
    words = (key,) if isinstance(key, str) else tuple(key)
    options = {
        "kind": kind,
        "key_ttl": key_ttl,
        "lookup": lookup,
        "compensate": compensate,
        "authorize": authorize,
        "approval": approval,
        "lands_within": lands_within,
        "again_after_failure": again_after_failure,
        "budget": budget,
    }

    def declare(function: F) -> F:
        signature = inspect.signature(function)
        _check(name, function, words, signature)
        DECLARED[name] = Declared(name=name, function=function, options=options)
        if compensate is not None:
            asking.UNDO[name] = asking.Undo(run=compensate, key_ttl=key_ttl)

        def asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            inputs = dict(bound.arguments)
            return {
                "key": [inputs[word] for word in words],
                "inputs": inputs,
                "call": functools.partial(function, **inputs),
                "resource": resource(**inputs) if resource else None,
                **options,
            }

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def once(*args: Any, **kwargs: Any) -> Any:
                return await calling.once(name, **asked(args, kwargs))

            return cast("F", once)

        @functools.wraps(function)
        def once_in_thread(*args: Any, **kwargs: Any) -> Any:
            return calling.once_in_thread(name, **asked(args, kwargs))

        return cast("F", once_in_thread)

    return declare


def _check(
    name: str, function: Callable[..., Any], words: tuple[str, ...], signature: inspect.Signature
) -> None:
    known = DECLARED.get(name)
    if known is not None and (known.function.__module__, known.function.__qualname__) != (
        function.__module__,
        function.__qualname__,
    ):
        raise errors.Misconfigured(f"Two effects are named {name!r}.", hint="Rename one of them.")
    missing = [word for word in words if word not in signature.parameters]
    if missing or not words:
        raise errors.Misconfigured(
            f"The effect {name!r} has no parameter {missing[0] if missing else 'for its key'!r}.",
            hint="key names parameters of the function.",
        )
