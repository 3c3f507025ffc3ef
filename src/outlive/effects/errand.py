"""An effect asked for by a thread: the ledger is on the event loop, the call stays in the thread.

Decides how the two take turns.  The thread's own variables, sessions and clients are what its call needs, so
nothing of it moves to the loop; and the loop's part cannot be cut when the agent is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlive import spans
from outlive.effects import asking
from outlive.effects.asking import Call, Run


@dataclass(frozen=True, slots=True)
class _End:
    """What the loop's part came to."""

    value: Any = None
    failure: BaseException | None = None


class Errand:
    """One effect of one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: queue.SimpleQueue[Callable[[], None] | _End] = queue.SimpleQueue()

    def run(self, begin: Callable[[], asyncio.Task[Any]]) -> Any:
        """Have ``begin`` called on the loop, and do the thread's part until that task ends.  Blocks."""
        self._loop.call_soon_threadsafe(self._begun, begin)
        while not isinstance(turn := self._turns.get(), _End):
            turn()
        if turn.failure is not None:
            raise turn.failure
        return turn.value

    def _begun(self, begin: Callable[[], asyncio.Task[Any]]) -> None:
        begin().add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._turns.put(_End(failure=asyncio.CancelledError()))
        elif (failure := task.exception()) is not None:
            self._turns.put(_End(failure=failure))
        else:
            self._turns.put(_End(value=task.result()))

    def carried(self, function: Callable[..., Any]) -> Run:
        """Make a function of the thread's one that the loop can await."""
        wants = asking.takes_call(function)

        async def run(call: Call) -> Any:
            outcome: asyncio.Future[Any] = self._loop.create_future()
            span = spans.CURRENT.get()
            self._turns.put(lambda: self._call(function, call if wants else None, call, outcome, span))
            return await outcome

        return run

    def _call(
        self,
        function: Callable[..., Any],
        given: Call | None,
        call: Call,
        outcome: asyncio.Future[Any],
        span: spans.Open,
    ) -> None:
        try:
            with asking.calling(call), span.here():
                end = _End(value=function() if given is None else function(given))
        except BaseException as failure:  # whatever it is, the loop's part has to hear of it
            end = _End(failure=failure)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(_tell, outcome, end)


def _tell(outcome: asyncio.Future[Any], end: _End) -> None:
    if outcome.done():
        return
    if end.failure is None:
        outcome.set_result(end.value)
    elif isinstance(end.failure, StopIteration | SystemExit | KeyboardInterrupt):
        # A future takes the first of them not, and the others would end the loop, with every other run on it.
        failure = RuntimeError(f"the call raised {type(end.failure).__name__}")
        failure.__cause__ = end.failure
        outcome.set_exception(failure)
    else:
        outcome.set_exception(end.failure)
