"""The long-term memory of graphs, over all threads: LangGraph's own stores, beside the runs.

Decides that each tenant has a store of its own: every namespace is kept below a label of the tenant's, which
neither a graph nor a client ever sees or can leave.  How items are kept is LangGraph's; there is no index for
a search by meaning.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, assert_never, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from outlive import errors, names

LONGEST = 1024
"""Bytes that a namespace or a key may have: PostgreSQL's indexes hold no more than 2700 of both."""


class Keeping(Protocol):
    """Where the items of all tenants are."""

    async def batch(self, ops: Sequence[Op]) -> list[Result]:
        """Carry operations out in one go; raises ``InvalidInput``, ``StoreUnavailable``."""
        ...


class Items(BaseStore):
    """One tenant's items.  ``ttl`` is as in a langgraph.json, in minutes; without it no item lives longer
    because it is read, unless the reader says so.

    A graph's code may call it from the event loop (``aget``, ``aput``, ...) or from a thread (``get``,
    ``put``, ...), as nodes that are not coroutines are.
    """

    supports_ttl = True

    def __init__(self, keeping: Keeping, tenant: str, ttl: TTLConfig | None = None) -> None:
        self._keeping = keeping
        self._root = label(tenant)
        self._loop = asyncio.get_running_loop()
        self.ttl_config = ttl or {"refresh_on_read": False}

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out."""
        results = await self._keeping.batch([self._inside(op) for op in ops])
        return [_outside(result) for result in results]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out, from a thread that is not the event loop's."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise errors.Misconfigured(
                "A store was called where it would block the event loop.",
                hint="Await aget, aput, asearch, adelete or alist_namespaces.",
            )
        return asyncio.run_coroutine_threadsafe(self.abatch(ops), self._loop).result()

    def _inside(self, op: Op) -> Op:
        match op:
            case GetOp() | PutOp():
                check(op.namespace, op.key)
                return op._replace(namespace=(self._root, *op.namespace))
            case SearchOp():
                check(op.namespace_prefix)
                return op._replace(namespace_prefix=(self._root, *op.namespace_prefix))
            case ListNamespacesOp():
                return self._listing(op)
            case _ as unknown:
                assert_never(unknown)

    def _listing(self, op: ListNamespacesOp) -> ListNamespacesOp:
        """A suffix must end below the label, or a wildcard in it would stand for the label itself."""
        conditions = [MatchCondition("prefix", (self._root,))]
        for condition in op.match_conditions or ():
            check(condition.path)
            if condition.match_type == "suffix":
                below = (self._root, *("*" for _ in condition.path))
                conditions += [MatchCondition("prefix", cast("Any", below)), condition]
            else:
                path = cast("Any", (self._root, *condition.path))
                conditions.append(condition._replace(path=path))
        depth = None if op.max_depth is None else op.max_depth + 1
        return op._replace(match_conditions=tuple(conditions), max_depth=depth)


def label(tenant: str) -> str:
    """Return the label below which a tenant's namespaces are: none is the beginning of another."""
    named = tenant.encode()
    if len(named) <= LONGEST // 8:
        return f"{named.hex()}-"
    return f"{hashlib.sha256(named).hexdigest()}~"


def check(namespace: Sequence[str], key: str | None = None) -> None:
    """Raise ``InvalidInput`` unless both databases can keep these names in an index."""
    for field, text in (("namespace", ".".join(map(str, namespace))), ("key", key)):
        names.check_name(field, text)
        if text is not None and len(text.encode()) > LONGEST:
            raise errors.InvalidInput(f"{field} is longer than {LONGEST} bytes.", field=field)


def _outside(result: Any) -> Result:
    if isinstance(result, Item | SearchItem):
        result.namespace = result.namespace[1:]
        return result
    if isinstance(result, list):
        return cast("Result", [one[1:] if isinstance(one, tuple) else _outside(one) for one in result])
    return cast("Result", result)
