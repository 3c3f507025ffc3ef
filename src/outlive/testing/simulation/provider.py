"""The model provider: where effects are counted.

Decides what a provider can do to an agent: execute a key once, replay it, and hang up after it executed.  It
knows nothing of runs' states.  Whatever stands between an agent and ``call`` (an effect ledger, say) is
checked by what arrives here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from outlive.model import Run
from outlive.testing.simulation.history import Effect, History

ANSWERS_AFTER = 0.003
"""Virtual seconds between the execution of a call and its answer."""


def key_of(run: Run, step: int, epoch: int) -> str:
    """Return the idempotency key of a step: the same for every attempt, and for every run of one intent."""
    del epoch
    return f"{run.origin}/{step}"


@dataclass(slots=True)
class Provider:
    """Executes an effect once per key, and remembers every call.

    ``hangs_up`` is how likely a caller never hears what became of its call; ``forgets`` breaks it: the same
    key is executed again.
    """

    history: History
    now: Callable[[], float]
    roll: Callable[[], float]
    forgets: bool = False
    hangs_up: float = 0.0
    _done: set[str] = field(default_factory=set)

    async def call(self, run: Run, step: int, epoch: int, process: str) -> bool:
        """Execute, or replay if this key was executed before; False if the line goes dead meanwhile."""
        run_id, origin, key = run.run_id, run.origin, key_of(run, step, epoch)
        repeated = key in self._done and not self.forgets
        self._done.add(key)
        self.history.effects.append(Effect(self.now(), origin, step, epoch, process, repeated, run_id))
        await asyncio.sleep(ANSWERS_AFTER)
        return self.hangs_up <= 0 or self.roll() >= self.hangs_up
