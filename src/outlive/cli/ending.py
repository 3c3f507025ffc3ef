"""How a serving process ends: within its budget, whatever its agents do.

Decides when waiting is over.  An agent may block the event loop, swallow every cancellation, or sit in a
thread that nothing can end; its runs are handed back by then, or their leases run out, so nothing is lost by
going.  Does not decide what happens before that: that is ``runtime``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final

SPARE: Final = 2.0
"""Seconds beyond the drain budget after which the process ends even if it is not done."""
LOOSE_ENDS: Final = 1.0
"""Seconds that agents' tasks and threads get once everything is handed back and closed."""
_TOLD, _DONE, _FAILED = b"t", b"d", b"f"


class Ending:
    """Ends this process ``drain`` + ``SPARE`` seconds after ``begin``, unless it ends by itself."""

    def __init__(self, drain: float) -> None:
        self._budget = drain + SPARE
        self._heard, self._say = os.pipe()
        threading.Thread(target=self._watch, name="outlive-ending", daemon=True).start()

    def begin(self) -> None:
        """Count from now.  Safe in a signal handler: neither starts a thread nor takes a lock."""
        os.write(self._say, _TOLD)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end in an event loop of its own, then wait only for ``LOOSE_ENDS``.

        A task that an agent started and that calls ``sys.exit`` would otherwise end the loop, and with it
        every other run of this process.
        """
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            main = loop.create_task(self._said(work))
            while not main.done():
                with contextlib.suppress(SystemExit):
                    loop.run_until_complete(main)
                if not main.done():
                    logging.getLogger("outlive").error("a task that an agent had started called sys.exit")
            main.result()

    async def _said(self, work: Coroutine[Any, Any, None]) -> None:
        how = _FAILED
        try:
            await work
            how = _DONE
        finally:
            os.write(self._say, how)

    def _watch(self) -> None:
        at: float | None = None
        code = 1
        while self._hears_before(at):
            word = os.read(self._heard, 1)
            if word != _TOLD:
                at, code = time.monotonic() + LOOSE_ENDS, int(word != _DONE)
            elif at is None:
                at = time.monotonic() + self._budget
        os.write(2, b"outlive: what was under way did not end in time; the process ends without it.\n")
        os._exit(code)

    def _hears_before(self, at: float | None) -> bool:
        wait = None if at is None else max(0.0, at - time.monotonic())
        return bool(select.select([self._heard], [], [], wait)[0])
