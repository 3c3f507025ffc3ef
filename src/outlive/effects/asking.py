"""What an agent asks for: an effect's key, its call, and how to find out what became of it.

Decides which keys and settings can be used, before anything runs, and what a call may raise to say that it
had definitely no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from outlive import encoding, errors, names
from outlive.ledger import Effect, Kind, Wish

Key: TypeAlias = str | int | Sequence[str | int]
"""The business inputs that make an effect this one: an order's number, or several such words together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of an effect, as the called code sees it.

    ``provider_key`` is what the provider's idempotency header must say: the same for every attempt.
    """

    name: str
    key: str
    generation: int
    provider_key: str

    @classmethod
    def of(cls, effect: Effect) -> Call:
        """The call of an effect."""
        return cls(
            name=effect.name,
            key=effect.key,
            generation=effect.generation,
            provider_key=effect.provider_key,
        )


CALL: ContextVar[Call | None] = ContextVar("outlive_effect", default=None)
"""The effect whose call this is, for the code within."""
WITHIN: ContextVar[frozenset[tuple[str, str]]] = ContextVar("outlive_effects", default=frozenset())
"""The names and keys of every effect that this code is a part of: one of them would wait for itself."""


@contextlib.contextmanager
def calling(call: Call) -> Iterator[None]:
    """Be within the call of an effect."""
    of, within = CALL.set(call), WITHIN.set(WITHIN.get() | {(call.name, call.key)})
    try:
        yield
    finally:
        # Closed from elsewhere, by whoever ends the agent: what was set is not seen there, and an error here
        # would be taken for the call's own.
        with contextlib.suppress(ValueError):
            WITHIN.reset(within)
            CALL.reset(of)


class Declined(Exception):
    """Raised by a call whose provider answered no: there is definitely no effect."""


class KeyInUse(Exception):
    """Raised by a call whose provider still works on the same key: the identical call is repeated."""


class NotExecuted(Exception):
    """Raised by a look-up to say that the provider knows of no such effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """An effect that has to be undone: what it was called with, and what came of it."""

    name: str
    key: str
    generation: int
    provider_key: str
    inputs: Any
    result: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Undo:
    """How the effects of one name are undone.  ``run`` gets the `Executed`."""

    run: Callable[..., Any]
    key_ttl: float | None


UNDO: dict[str, Undo] = {}
"""By the effect's name, for whoever has to undo it in this process."""

Run = Callable[[Call], Awaitable[Any]]
Carry = Callable[[Callable[..., Any]], Run]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A wish, and the code that goes with it."""

    wish: Wish
    run: Run
    look_up: Run | None = None
    authorize: Run | None = None
    budget: float = 30.0
    definite: Callable[[BaseException], bool] | None = None


def ask(
    carry: Carry,
    name: str,
    *,
    key: Key,
    tenant: str,
    call: Callable[..., Any],
    lookup: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    authorize: Callable[..., Any] | None = None,
    budget: float = 30.0,
    kind: Kind | str = Kind.IRREVERSIBLE,
    **options: Any,
) -> Asked:
    """Put a wish and its code together; ``carry`` makes each function one that can be awaited."""
    _check_seconds("budget", budget)
    if compensate is not None and kind == Kind.IRREVERSIBLE:
        kind = Kind.REVERSIBLE
    wish = make_wish(name, key=key, tenant=tenant, kind=kind, looks_up=lookup is not None, **options)
    if compensate is not None:
        UNDO[name] = Undo(run=compensate, key_ttl=wish.key_ttl)
    return Asked(
        wish=wish,
        run=carry(call),
        look_up=None if lookup is None else carry(lookup),
        authorize=None if authorize is None else carry(authorize),
        budget=budget,
    )


def takes_call(function: Callable[..., Any]) -> bool:
    """Say whether a function wants to be given the `Call`."""
    try:
        wanted = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in positional and each.default is each.empty for each in wanted)


def in_coroutine(function: Callable[..., Any]) -> Run:
    """Make a function one that is awaited where it is called."""
    wants = takes_call(function)

    async def run(call: Call) -> Any:
        value = function(call) if wants else function()
        return await value if inspect.isawaitable(value) else value

    return run


async def in_thread_or_coroutine(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function from the event loop: a blocking one in a thread."""
    code = function.func if isinstance(function, functools.partial) else function
    if inspect.iscoroutinefunction(code):
        return await function(*args)
    return await asyncio.to_thread(function, *args)


def make_wish(
    name: str,
    *,
    key: Key,
    tenant: str,
    origin: str = "",
    inputs: Any = None,
    kind: Kind | str = Kind.IRREVERSIBLE,
    resource: str | None = None,
    key_ttl: float | None = None,
    looks_up: bool = False,
    lands_within: float = 60.0,
    again_after_failure: bool = False,
    approval: bool = False,
    compensates: str | None = None,
) -> Wish:
    """Check what was asked for and write it down; raises ``InvalidInput`` naming the field that is wrong."""
    for field, text in (("name", name), ("resource", resource)):
        names.check_name(field, text)
    if not name or not isinstance(name, str):
        raise errors.InvalidInput("An effect needs a name.", field="name")
    for field, seconds in (("key_ttl", key_ttl), ("lands_within", lands_within)):
        _check_seconds(field, seconds)
    encoded = encoding.encode(inputs)
    if encoded.placeholders:
        first = encoded.placeholders[0]
        raise errors.InvalidInput(
            f"inputs cannot be kept exactly: {first.type}: {first.why}.", field="inputs"
        )
    return Wish(
        tenant=tenant,
        origin=origin,
        name=name,
        key=key_text(key),
        fingerprint=encoding.fingerprint([name, inputs]),
        inputs=encoded.text,
        kind=_kind(kind),
        resource=resource,
        key_ttl=key_ttl,
        looks_up=looks_up,
        lands_within=lands_within,
        again_after_failure=again_after_failure,
        approval=approval,
        compensates=compensates,
    )


def key_text(key: object) -> str:
    """Return a key as the ledger keeps it; raises ``InvalidInput`` for what cannot be a business key."""
    parts = list(key) if isinstance(key, tuple | list) else [key]
    if not parts:
        raise errors.InvalidInput("key is empty.", field="key")
    words = [_word(part) for part in parts]
    text = words[0] if len(words) == 1 else json.dumps(words)
    names.check_name("key", text)
    return text


def _word(part: object) -> str:
    if isinstance(part, bool) or not isinstance(part, str | int):
        raise errors.InvalidInput(
            f"key must be text, a whole number, or a list of these, not {type(part).__name__}.", field="key"
        )
    # What it holds, whatever a subclass says: an enumeration's member is its value once it was stored.
    text = str.__str__(part) if isinstance(part, str) else _digits(part)
    if not text:
        raise errors.InvalidInput("key is empty.", field="key")  # what forgot its number would be one effect
    names.check_name("key", text)
    return text


def _digits(number: int) -> str:
    try:
        return int.__repr__(number)
    except ValueError:  # Python writes no number of thousands of digits
        raise errors.InvalidInput("key is too long a number.", field="key") from None


def _kind(kind: Kind | str) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        known = ", ".join(Kind)
        raise errors.InvalidInput(f"kind must be one of {known}, not {kind!r}.", field="kind") from None


def _check_seconds(field: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise errors.InvalidInput(f"{field} must be a number of seconds, not {value!r}.", field=field)


def definitely_without_effect(failure: BaseException) -> bool:
    """Say whether an exception proves that nothing was executed: then the key may be used again.

    ``Declined`` does, and of ``httpx``'s what says that no connection was made, or that the provider
    refused the request as it stands (4xx, but none that speaks of time or of other requests).
    """
    if isinstance(failure, Declined):
        return True
    httpx = sys.modules.get("httpx")
    if httpx is None:
        return False
    if isinstance(failure, httpx.HTTPStatusError):
        status: int = failure.response.status_code
        return 400 <= status < 500 and status not in (408, 409, 425, 429)
    return isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
