"""Waits for happenings instead of sleeping.

Decides how a test learns that something happened inside a runtime: it listens to the same closed list as logs
and metrics do.  Every wait has a bound and says, when it fails, what was heard instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar, cast

from outlive import runtime, signals
from outlive.model import EventKind

H = TypeVar("H", bound=signals.Happening)
WITHIN = 15.0
"""Seconds that a wait lasts unless told otherwise: a bound for a broken program, not a claim about speed."""


class Hearing:
    """Hears every happening of some runtimes from now on.  Make it on the loop that will wait."""

    def __init__(self, *sources: signals.Signals) -> None:
        self._heard: list[signals.Happening] = []
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        for source in sources:
            source.listen(self.hear)

    def hear(self, happening: signals.Happening) -> None:
        """Take note of a happening; safe from any thread."""
        self._heard.append(happening)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    def all(self, kind: type[H], **fields: object) -> list[H]:
        """Return what was heard so far of one kind, with these fields, in order."""
        found = [happening for happening in self._heard if isinstance(happening, kind)]
        return [cast("H", one) for one in found if _matches(one, fields)]

    async def of(self, kind: type[H], *, count: int = 1, within: float = WITHIN, **fields: object) -> H:
        """Return the ``count``-th happening of one kind with these fields, waiting for it.

        Raises ``TimeoutError`` after ``within`` seconds.
        """
        try:
            async with asyncio.timeout(within):
                while len(found := self.all(kind, **fields)) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            heard = "\n".join(map(repr, self._heard)) or "nothing"
            wanted = f"{count} x {kind.__name__} {fields}"
            raise TimeoutError(f"Waited {within} s for {wanted}; heard:\n{heard}") from None
        return found[count - 1]


def _matches(happening: signals.Happening, fields: dict[str, object]) -> bool:
    return all(getattr(happening, name) == value for name, value in fields.items())


async def ended(api: runtime.Outlive, run_id: str, within: float = WITHIN) -> None:
    """Wait until a run's end event can be read; raises ``TimeoutError`` after ``within`` seconds."""
    async with asyncio.timeout(within), contextlib.aclosing(api.follow(run_id)) as events:
        async for event in events:
            if event.kind is EventKind.END:
                return
