"""Effects on the world outside: executed once per business key, whoever dies, doubles or comes back late.

In an agent, from a graph's node, a tool or an async generator, in a coroutine or in a thread::

    charged = await effects.once("charge", key=booking, call=pay, key_ttl=86400)
    charged = effects.once_in_thread("charge", key=booking, call=pay_and_block, key_ttl=86400)

or declared at a module's top, which also lets another process undo or release it::

    @effects.effect("charge", key="booking", kind="reversible", compensate=refund, key_ttl=86400)
    async def charge(booking: str, amount: int) -> dict[str, Any]: ...

and for an ``httpx`` client that exists already, one line sets the provider's idempotency header within such a
call: ``httpx.AsyncClient(transport=effects.Transport())``.

What is here decides when a call may begin and what its end means; the rules are ``ledger``'s, and the guards
are in the statements of ``store.effect_moves``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Call": "asking",
    "Declined": "asking",
    "KeyInUse": "asking",
    "NotExecuted": "asking",
    "SyncTransport": "transport",
    "Transport": "transport",
    "effect": "defining",
    "once": "calling",
    "once_in_thread": "calling",
}
__all__ = [
    "Call",
    "Declined",
    "KeyInUse",
    "NotExecuted",
    "SyncTransport",
    "Transport",
    "effect",
    "once",
    "once_in_thread",
]

if TYPE_CHECKING:
    from outlive.effects.asking import Call, Declined, KeyInUse, NotExecuted
    from outlive.effects.calling import once, once_in_thread
    from outlive.effects.defining import effect
    from outlive.effects.transport import SyncTransport, Transport


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a run without effects needs neither tenacity nor httpx."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"outlive.effects.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'outlive.effects' has no attribute {name!r}")
