"""What the tests of effects share: an agent that charges, ways to read the ledger, and short words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx

import outlive
from core import record
from core import support as core
from outlive import effects
from outlive.agents import generator
from outlive.ledger import Effect
from outlive.store import effect_reads
from outlive.testing.paying import Paying

DAY = 86400.0
Step = Callable[[outlive.Context], Awaitable[Any]]


def client(paying: Paying, **options: Any) -> httpx.AsyncClient:
    """A client of the provider that tells it which effect a request is."""
    return httpx.AsyncClient(base_url=paying.url, transport=effects.Transport(), timeout=20.0, **options)


def agent(step: Step, name: str = "agent", **policy: Any) -> generator.GeneratorAgent:
    """An agent that does one thing and yields what came of it."""

    @core.job(name, **policy)
    async def run(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield await step(context)

    return run


async def pay(http: httpx.AsyncClient, reference: str, operation: str = "charge", **body: Any) -> Any:
    """Ask the provider for an effect, and return what it says."""
    answer = await http.post(f"/{operation}", json={"reference": reference, **body})
    answer.raise_for_status()
    return {"reference": answer.json()["reference"]}


async def look_up(http: httpx.AsyncClient, reference: str, operation: str = "charge") -> Any:
    """Ask the provider whether there was an effect."""
    answer = await http.get(f"/{operation}", params={"reference": reference})
    answer.raise_for_status()
    if not (found := answer.json()["effects"]):
        raise effects.NotExecuted
    return {"reference": found[0]["reference"]}


def charging(http: httpx.AsyncClient, **options: Any) -> Step:
    """A step that charges the booking that the run's input names, once."""

    async def charge(context: outlive.Context) -> Any:
        booking = context.input
        wanted = {"key_ttl": DAY, "inputs": {"booking": booking}, **options}
        return await effects.once("charge", key=booking, call=lambda: pay(http, booking), **wanted)

    return charge


async def ended(served: outlive.Outlive, run_id: str) -> outlive.Run:
    """The record of a run, once it has ended."""
    await core.story(served, run_id)
    return await served.run(run_id, tenant=None)


async def ran(served: outlive.Outlive, given: Any, name: str = "agent", **how: Any) -> outlive.Run:
    """Submit a run and wait for its end."""
    return await ended(served, (await served.submit(name, given, **how)).run.run_id)


async def newest(served: outlive.Outlive, key: str, name: str = "charge") -> Effect:
    """The newest row of a key."""
    found = await served.store.read(effect_reads.newest("", name, key))
    assert found is not None, f"{name} {key} is not in the ledger"
    return found


def rows(database: str, columns: str = "name, key, generation, state") -> list[tuple[Any, ...]]:
    """The ledger, behind everybody's back."""
    found = record.rows(database, f"SELECT {columns} FROM effects ORDER BY created_at, name, key, generation")
    return [tuple(row.values()) for row in found]


async def requests(paying: Paying, count: int, step: str = "charge", what: str = "request") -> None:
    """Wait until the provider has seen so many requests."""
    async with asyncio.timeout(core.WITHIN):
        while len(paying.lines(what, step)) < count:  # noqa: ASYNC110 - a turn of the loop, not a nap
            await asyncio.sleep(0)
