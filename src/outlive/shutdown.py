"""The beginning of the end, told to every open stream at once.

Servers wait for open responses before they run an application's shutdown, so whoever keeps a response open
must hear of it earlier: from the signal itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Shutdown:
    """Ends every stream that was given it, at once, with a retry hint and without a terminal event.

    Application code sets it by `on_signals`, within its lifespan.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: set[asyncio.Future[None]] = set()

    def is_set(self) -> bool:
        """Say whether the end has begun."""
        return self._is_set

    def set(self) -> None:
        """Safe from any thread and from a signal handler. There is no way back."""
        self._is_set = True
        for waiting in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # its loop is closed, and its stream with it
                waiting.get_loop().call_soon_threadsafe(_resolve, waiting)

    @contextlib.contextmanager
    def future(self) -> Iterator[asyncio.Future[None]]:
        """A future of the running loop that is done once this is set."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        if self._is_set:  # looked at after joining, so that a `set` in between is not missed
            _resolve(waiting)
        try:
            yield waiting
        finally:
            self._waiting.discard(waiting)

    @contextlib.contextmanager
    def on_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Be set by these signals (SIGTERM and SIGINT unless given), then let the server's handler run.

        Meant for the application's lifespan, where the server's handlers are in place. Main thread only.
        """
        before = {number: signal.getsignal(number) for number in numbers or (signal.SIGTERM, signal.SIGINT)}

        def handle(number: int, at: FrameType | None) -> None:
            self.set()
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, at)
            elif handler == signal.SIG_DFL:
                signal.signal(number, handler)
                signal.raise_signal(number)

        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
