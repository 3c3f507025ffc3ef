"""Agents for processes of their own.  They wait at gates and say what they do: a death hides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import outlive
from outlive.testing.processes import gate, say


@outlive.agent("steps", policy=outlive.job(on_busy="enqueue"))
async def steps(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Two chunks with a gate between them and one after them; each attempt says that it began."""
    say(began=context.run.run_id, attempt=context.attempt)
    yield {"step": 1, "attempt": context.attempt}
    await gate("first").wait()
    yield {"step": 2, "attempt": context.attempt}
    await gate("second").wait()
    say(finished=context.run.run_id, attempt=context.attempt)


@outlive.agent("once", policy=outlive.job(on_busy="enqueue", recovery="stop"))
async def once(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Like `steps`, and never to be tried again."""
    async with aclosing(steps.stream(context)) as items:
        async for item in items:
            yield item


@outlive.agent("brief", policy=outlive.job(on_busy="enqueue"))
async def brief(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Ends at once."""
    yield context.input


@outlive.agent("watched", policy=outlive.chat(grace=0))
async def watched(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Needs a viewer, and waits for ever."""
    yield "hello"
    await asyncio.Event().wait()


agents = [steps, once, brief, watched]


async def double_click(served: outlive.Outlive) -> None:
    """Submit twenty intents, each with its key, as soon as the gate opens."""
    await gate("go").wait()
    for number in range(20):
        submitted = await served.submit("brief", number, thread=f"t{number}", key=f"click {number}")
        say(key=number, run=submitted.run.run_id, admitted=submitted.admitted.value)
    say(clicked=True)


async def watch(served: outlive.Outlive) -> None:
    """Submit a run as its viewer and watch it."""
    run_id = (await served.submit("watched", viewer="me")).run.run_id
    async with aclosing(served.watch(run_id, viewer="me")) as events:
        async for event in events:
            await served.presence.keep_once()
            say(saw=event.seq, run=run_id)
