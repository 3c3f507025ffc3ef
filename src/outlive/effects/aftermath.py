"""The agent of the runs that follow an end: they execute what it released and undo what it must.

Decides the order, and that nothing is undone while an outcome is open.  Such a run is made in the transaction
that ends the other (see ``store.effect_steps``), so it cannot be forgotten; it is claimed, resumed and fenced
like any run, and what it does goes through the ledger like any effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from outlive import agents, errors, policy
from outlive.agents import Chunk, Context, Note, Outcome
from outlive.effects import asking, attempt, calling, defining
from outlive.effects.asking import Executed
from outlive.ledger import Effect, EffectState
from outlive.states import State
from outlive.store import Store, effect_reads, effect_steps

UNDONE = ".undone"
"""What is put after an effect's name to name the effect that undoes it."""


class Aftermath:
    """Serves every agent's effects; it is part of every worker, and nobody can submit to it."""

    name = effect_steps.AFTERMATH
    policy = policy.job()
    drains = False

    async def stream(self, context: Context) -> AsyncGenerator[agents.Yielded, None]:
        """Release first, then undo from the last to the first; waits if an outcome is open."""
        store = attempt.current().store
        for effect in await _due(store, context, "release"):
            await _release(effect)
            yield Chunk(data={"released": effect.effect_id, "name": effect.name})
        for effect in await _due(store, context, "compensate"):
            if effect.known is EffectState.UNKNOWN:
                await _find_out(effect)
        undo = await _due(store, context, "compensate")
        still_open = [effect.effect_id for effect in undo if effect.known is EffectState.UNKNOWN]
        if still_open:
            yield Note(
                code="effects_open",
                message=f"Nothing is undone before these are settled: {', '.join(still_open)}.",
            )
            yield Outcome(output={"open": still_open}, state=State.WAITING)
            return
        for effect in sorted(undo, key=lambda each: each.first_started_at or 0.0, reverse=True):
            if effect.state in (EffectState.DONE, EffectState.RECONCILED):
                await _undo(effect)
                yield Chunk(data={"undone": effect.effect_id, "name": effect.name})


async def _due(store: Store, context: Context, what: str) -> list[Effect]:
    found = await store.read(effect_reads.due(str(context.input["origin"])))
    return [effect for effect in found if effect.tenant == context.run.tenant and effect.due == what]


async def _find_out(effect: Effect) -> None:
    """Learn what became of a cut call without calling: to undo it, nothing must be executed first."""
    current = attempt.current()
    if effect.evidence is not None:
        await calling.take_evidence(current, effect)
        return
    declared = defining.DECLARED.get(effect.name)
    if declared is None or declared.options["lookup"] is None:
        return
    asked = _asked(effect, declared)
    with current.store.hub.watch(attempt.topic(effect.tenant, effect.name, effect.key)) as waiter:
        while await calling.looked_up(current, asked, effect) is False:  # it may be on its way still
            await waiter.wait()
            effect = await current.store.read(effect_reads.effect(effect.effect_id, effect.tenant))


async def _release(effect: Effect) -> None:
    declared = defining.DECLARED.get(effect.name)
    if declared is None:
        raise errors.Misconfigured(
            f"No effect {effect.name!r} is declared here.",
            hint="Declare it with effects.effect at a module's top.",
        )
    await calling.execute(attempt.current(), _asked(effect, declared))


def _asked(effect: Effect, declared: defining.Declared) -> asking.Asked:
    inputs = agents.restored(effect.inputs)
    options = {name: value for name, value in declared.options.items() if name != "compensate"}
    asked = asking.ask(
        asking.in_coroutine,
        effect.name,
        key="as it is",
        tenant=effect.tenant,
        call=lambda: declared.run(inputs),
        inputs=inputs,
        resource=effect.resource,
        **options,
    )
    wish = replace(asked.wish, key=effect.key, fingerprint=effect.fingerprint, kind=effect.kind)
    return replace(asked, wish=wish)


async def _undo(effect: Effect) -> None:
    how = asking.UNDO.get(effect.name)
    if how is None:
        raise errors.Misconfigured(
            f"Nothing here undoes the effect {effect.name!r}.",
            hint="Declare it with effects.effect(..., compensate=...) at a module's top.",
        )
    executed = Executed(
        name=effect.name,
        key=effect.key,
        generation=effect.generation,
        provider_key=effect.provider_key,
        inputs=agents.restored(effect.inputs),
        result=agents.restored(effect.result or "null"),
    )
    asked = asking.ask(
        asking.in_coroutine,
        effect.name + UNDONE,
        key=effect.effect_id,
        tenant=effect.tenant,
        call=lambda: asking.in_thread_or_coroutine(how.run, executed),
        key_ttl=how.key_ttl,
        compensates=effect.effect_id,
        again_after_failure=True,  # whoever had this run made wants another try
    )
    await calling.execute(attempt.current(), asked)


AGENT: Any = Aftermath()
