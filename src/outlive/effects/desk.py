"""The ledger as people and programs outside of a run see it: look, say what happened, approve.

Decides what is checked before the record is asked, and who hears of it; whether an effect may be settled is
for the transaction to say.
"""

from __future__ import annotations

from typing import Any

from outlive import encoding, errors, names, seams
from outlive.effects import asking, attempt
from outlive.ledger import Effect
from outlive.model import Run
from outlive.store import Store, effect_moves, effect_reads, effect_steps, wakeup

MOST = 1000
"""Effects that one look returns."""
LONGEST_APPROVAL = 30 * 86400.0
"""Seconds for which an approval may hold."""


class Desk:
    """Where the ledger is looked at and settled, over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def newest(self, *, tenant: str = "", limit: int = 50, unsettled: bool = False) -> list[Effect]:
        """Return up to ``limit`` effects (1 to 1000), newest first.

        ``unsettled``: only the open ones, whose call is on its way or was cut; oldest first.
        """
        _check_limit(limit)
        return await self._store.read(effect_reads.effects(tenant, limit=limit, unsettled=unsettled))

    async def of_run(self, run: Run, *, limit: int = MOST) -> list[Effect]:
        """Return the effects of a run and of those that it continues, in order."""
        _check_limit(limit)
        return await self._store.read(effect_reads.of_run(run.origin, limit))

    async def of_thread(self, thread_id: str, *, limit: int = 50) -> list[Effect]:
        """Return the newest effects of a thread's runs, by its internal id, newest first."""
        _check_limit(limit)
        return await self._store.read(effect_reads.of_thread(thread_id, limit))

    async def summary(self, run: Run) -> effect_steps.Summary | None:
        """Return how many effects of a run stand how; None without effects, or before it ever ran."""
        if not run.epoch:
            return None
        return await self._store.read(effect_reads.summary(run.origin))

    async def show(self, effect_id: str, *, tenant: str | None = "") -> Effect:
        """Return one effect; raises ``NotFound``."""
        names.check_name("effect_id", effect_id)
        return await self._store.read(effect_reads.effect(effect_id, tenant))

    async def settle(
        self, effect_id: str, *, executed: bool, by: str, result: Any = None, tenant: str | None = ""
    ) -> Effect:
        """Say whether an effect that was cut in flight was executed, and with which ``result``.

        What was executed is never called again, and whoever asks for it gets the result; what was not may
        be called.  ``by`` is kept.  Raises ``NotFound``, ``AlreadySettled``, ``InvalidInput``.
        """
        names.check_name("effect_id", effect_id)
        names.check_name("by", by)
        if not by:
            raise errors.InvalidInput("Somebody must have said so.", field="by")
        encoded = encoding.encode(result)
        if encoded.placeholders:
            raise errors.InvalidInput("The result cannot be kept exactly.", field="result")
        text = encoded.text if executed else None
        effect = await self._store.write(effect_moves.settle(effect_id, tenant, executed, text, by))
        self._store.announce(attempt.topic(effect.tenant, effect.name, effect.key), wakeup.QUEUE)
        return effect

    async def retry(self, effect_id: str, *, tenant: str | None = "") -> str:
        """Have what a run's end released or has to undo tried again, once what was wrong is mended.

        Returns the run that does.  Raises ``NotFound``, ``AlreadySettled`` if nothing is due.
        """
        names.check_name("effect_id", effect_id)
        run_id = await self._store.write(effect_moves.retry(effect_id, tenant, seams.new_id()))
        self._store.announce(wakeup.QUEUE)
        return run_id

    async def approve(
        self,
        name: str,
        key: asking.Key,
        *,
        by: str,
        lasts: float = 3600.0,
        tenant: str = "",
        inputs: Any = None,
        approval_id: str | None = None,
    ) -> str:
        """Allow one effect of this name and key to start within ``lasts`` seconds; returns the approval's id.

        With ``inputs`` only with just these.  It is used up by the start.  Raises ``InvalidInput``.
        """
        wish = asking.make_wish(name, key=key, tenant=tenant, inputs=inputs)
        names.check_name("by", by)
        if isinstance(lasts, bool) or not 0 < lasts <= LONGEST_APPROVAL:
            raise errors.InvalidInput(
                f"lasts must be a number of seconds up to {LONGEST_APPROVAL:g}.", field="lasts"
            )
        return await self._store.write(
            effect_moves.approve(
                approval_id or seams.new_id(),
                tenant=tenant,
                name=name,
                key=wish.key,
                fingerprint=None if inputs is None else wish.fingerprint,
                by=by,
                lasts=lasts,
            )
        )


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise errors.InvalidInput(f"limit must be between 1 and {MOST}.", field="limit")
