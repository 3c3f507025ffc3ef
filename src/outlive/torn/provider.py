"""Asks the providers what was executed: each effect that is declared with a ``lookup``, for one thread.

Decides which key and inputs a thread's effect had: its parameters are looked for by name in the state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from outlive import errors, ledger
from outlive.effects import asking, defining
from outlive.torn import Provider, Record, Seen


async def asked(
    values: Any, records: Mapping[str, Record], nodes: Mapping[str, str], tenant: str
) -> list[Seen]:
    """Ask about every effect whose parameters the state has; those without ``lookup`` nobody can ask about.

    ``records`` says what the checkpoints know of each node, ``nodes`` which node has an effect if that is not
    called like it.
    """
    found = []
    for declared in defining.DECLARED.values():
        inputs = _inputs(declared, values)
        if declared.options["lookup"] is None or inputs is None:
            continue
        record = records.get(nodes.get(declared.name, declared.name), Record.ABSENT)
        found.append(await _ask(declared, inputs, record, tenant))
    return found


async def _ask(declared: defining.Declared, inputs: dict[str, Any], record: Record, tenant: str) -> Seen:
    key = asking.key_text([inputs[word] for word in declared.words])
    effect_id = ledger.effect_id(tenant, declared.name, key, 1)
    call = asking.Call(name=declared.name, key=key, generation=1, provider_key=f"outlive-{effect_id}")
    lookup = declared.options["lookup"]
    given = (call,) if asking.takes_call(lookup) else ()
    seen = functools.partial(
        Seen,
        name=declared.name,
        key=key,
        record=record,
        inputs=inputs,
        provider_key=call.provider_key,
    )
    try:
        with asking.calling(call):
            result = await asking.in_thread_or_coroutine(lookup, *given)
    except asking.NotExecuted:
        return seen(provider=Provider.NOT_EXECUTED)
    except Exception as failure:  # whatever a client raises: then nobody knows, and that is what is said
        return seen(provider=Provider.UNTOLD, why=type(failure).__name__)
    return seen(provider=Provider.EXECUTED, result=result)


def _inputs(declared: defining.Declared, values: Any) -> dict[str, Any] | None:
    """Return the effect's arguments from the state's values; None if one that it needs is not there."""
    if not isinstance(values, Mapping):
        return None
    inputs: dict[str, Any] = {}
    for name, parameter in inspect.signature(declared.function).parameters.items():
        if values.get(name) is not None:
            inputs[name] = values[name]
        elif parameter.default is not parameter.empty:
            inputs[name] = parameter.default
        else:
            return None
    try:
        asking.key_text([inputs[word] for word in declared.words])
    except errors.InvalidInput:
        return None
    return inputs
