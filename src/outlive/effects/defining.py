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
    """An effect's function and what was declared with it; ``words`` name the parameters that are its key."""

    name: str
    function: Callable[..., Any]
    words: tuple[str, ...]
    resource: Callable[..., str] | None
    options: dict[str, Any]

    async def run(self, inputs: dict[str, Any]) -> Any:
        """Call the function on the event loop's behalf: a blocking one in a thread."""
        return await asking.in_thread_or_coroutine(functools.partial(self.function, **inputs))

    def check(self) -> None:
        """Raise ``Misconfigured`` if the name is another's, or a parameter of the key is missing."""
        known = DECLARED.get(self.name)
        if known is not None and known._where != self._where:
            raise errors.Misconfigured(f"Two effects are named {self.name!r}.", hint="Rename one of them.")
        parameters = inspect.signature(self.function).parameters
        missing = [word for word in self.words if word not in parameters]
        if missing or not self.words:
            raise errors.Misconfigured(
                f"The effect {self.name!r} has no parameter {missing[0] if missing else 'for its key'!r}.",
                hint="key names parameters of the function.",
            )

    @property
    def _where(self) -> tuple[str, str]:
        return self.function.__module__, self.function.__qualname__

    def wrapped(self) -> Callable[..., Any]:
        """Return the function that callers get in its place."""
        signature = inspect.signature(self.function)

        def asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            inputs = dict(bound.arguments)
            return {
                "key": [inputs[word] for word in self.words],
                "inputs": inputs,
                "call": functools.partial(self.function, **inputs),
                "resource": self.resource(**inputs) if self.resource else None,
                **self.options,
            }

        if inspect.iscoroutinefunction(self.function):

            @functools.wraps(self.function)
            async def once(*args: Any, **kwargs: Any) -> Any:
                return await calling.once(self.name, **asked(args, kwargs))

            return once

        @functools.wraps(self.function)
        def once_in_thread(*args: Any, **kwargs: Any) -> Any:
            return calling.once_in_thread(self.name, **asked(args, kwargs))

        return once_in_thread


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
        declared = Declared(name=name, function=function, words=words, resource=resource, options=options)
        declared.check()
        DECLARED[name] = declared
        if compensate is not None:
            asking.UNDO[name] = asking.Undo(run=compensate, key_ttl=key_ttl)
        return cast("F", declared.wrapped())

    return declare
