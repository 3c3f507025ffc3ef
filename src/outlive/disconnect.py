"""The one reader of ``on_disconnect``: stops runs that nobody has watched for their whole grace.

Decided on the record, by looking again under the run's lock; never because a request's task was cancelled.
"""

from __future__ import annotations

from typing import Any

from outlive import signals
from outlive.model import StopOutcome
from outlive.states import Reason
from outlive.store import Store, moves, wakeup, watching

LIMIT = 100
LOOK_EVERY = 0.5


class Disconnect:
    """Looks for unwatched runs whenever a viewer leaves, and every ``LOOK_EVERY`` seconds."""

    def __init__(self, store: Store, *, happenings: signals.Signals) -> None:
        self._store = store
        self._signals = happenings

    async def run(self) -> None:
        """Look for ever."""
        with self._store.hub.watch(wakeup.VIEWERS) as waiter:
            while True:
                waiter.clear()
                stopped = 0
                try:
                    stopped = await self.look_once()
                except Exception as failure:  # nobody else reads the policy: this look-out must go on
                    self._signals.emit(signals.BackgroundFailed(duty="disconnect", error=repr(failure)))
                if stopped < LIMIT:
                    await waiter.wait(LOOK_EVERY)

    async def look_once(self) -> int:
        """Stop every run that is out of grace; returns how many were asked to stop or stopped."""
        stopped = 0
        for run_id in await self._store.read(watching.unwatched(LIMIT)):
            step = moves.stop(run_id, None, Reason.DISCONNECT, only_unwatched=True)
            answer = await self._store.write(step)
            if answer.outcome is StopOutcome.ALREADY:
                continue
            stopped += 1
            run = answer.run
            told: dict[str, Any] = {"run_id": run_id, "thread_id": run.thread_id, "epoch": run.epoch}
            self._signals.emit(signals.StopRequested(**told, reason=Reason.DISCONNECT))
            if run.state.terminal:  # it had not begun: nobody else tells of its end
                self._signals.emit(signals.RunEnded(**told, state=run.state, reason=run.reason))
            self._store.announce(
                wakeup.STOP, wakeup.run_topic(run_id), wakeup.thread_topic(answer.run.thread_id), wakeup.QUEUE
            )
        return stopped
