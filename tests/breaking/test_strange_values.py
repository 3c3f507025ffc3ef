"""Whatever an agent yields, its run does not fail of the yielding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn

import pytest

import outlive
from core import support
from outlive import states


class Proxy:
    """Like a lazy proxy outside of its context: every question raises, even the one for its class."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("working outside of context")

    __repr__ = __str__

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(f"working outside of context: {name}")


class Text(str):
    """Says something else than it holds."""

    __slots__ = ()

    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


STRANGE: dict[str, Callable[[], Any]] = {
    "value": Proxy,
    "mode": lambda: outlive.Chunk(data=1, mode=Proxy()),  # type: ignore[arg-type]
    "text": lambda: outlive.Chunk(data=1, mode=Text("mode")),
    "note": lambda: outlive.Note(code=Proxy(), message=Proxy()),  # type: ignore[arg-type]
    "output": lambda: outlive.Outcome(output=Proxy()),
}


@pytest.mark.parametrize("where", STRANGE)
async def test_something_that_raises_when_it_is_asked_what_it_is_does_not_fail_the_run(
    sqlite_url: str, where: str
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield STRANGE[where]()

    async with support.serving(sqlite_url, agent) as served, asyncio.timeout(support.WITHIN):
        run = await served.result((await served.submit("agent")).run.run_id)
    assert run.state is states.State.SUCCEEDED
    assert run.last_seq > 2  # beside the attempt and the end: what was yielded, or a note of what was lost
