"""How long an attempt may take, and for how long its agent may say nothing.

Decides when either is over, from inside the process that drives the attempt.  Does not decide what follows:
``execution`` stops the agent as it would for anybody.  An attempt whose process is gone or frozen is the
lease's to end, not ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine

from outlive.policy import RunPolicy

STOOD_STILL = 0.5
"""Seconds by which waking up late means that the event loop stood still, and no agent could say anything."""


class Patience:
    """Counts for one attempt.  ``taking`` and ``taken`` surround what we do with something that was said."""

    def __init__(self, policy: RunPolicy) -> None:
        self._now = asyncio.get_running_loop().time
        self._longest, self._quietest = policy.run_timeout, policy.silence_timeout
        self._began = self._heard = self._now()
        self._ours = False

    @property
    def bounded(self) -> bool:
        """True if anything can be over at all."""
        return self._longest is not None or self._quietest is not None

    def taking(self) -> None:
        """Something was said; while we store it, a full buffer or a slow database keeps the agent waiting."""
        self._ours = True

    def taken(self) -> None:
        """The agent can go on: its silence begins now."""
        self._ours = False
        self._heard = self._now()

    async def over(self) -> tuple[str, str]:
        """Wait until one is over; return which, as a code and a sentence."""
        while True:
            at, code, sentence = min(self._ends())
            left = at - self._now()
            if left <= 0:
                return code, sentence
            await asyncio.sleep(left)
            if self._now() - at > STOOD_STILL:
                self._heard = self._now()

    def _ends(self) -> list[tuple[float, str, str]]:
        ends = []
        if self._longest is not None:
            told = f"The attempt took longer than {self._longest:g} s."
            ends.append((self._began + self._longest, "run_timeout", told))
        if self._quietest is not None:
            since = self._now() if self._ours else self._heard
            told = f"The agent said nothing for {self._quietest:g} s."
            ends.append((since + self._quietest, "silence_timeout", told))
        return ends


async def sheltered(work: Coroutine[object, object, None]) -> None:
    """Await ``work`` to its end although this task is being cancelled; its own time-outs bound it."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()
