"""A graph that stands still right before one of its executor's writes, so that its process is frozen there.

Which write it is, a run's metadata says: ``{"at": "put", "nth": 3, "gate": name}``.  ``unfenced`` takes
the proof of the claim out of this process's checkpoint writes, to show what it is for: a program of the lab
calls it, and nothing that a service could be configured to do.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import itertools
import operator
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from outlive import agents, lease, policy, runtime
from outlive.agents import fenced_saver, langgraph, saver_sqlite
from outlive.store.script import Steps, script
from outlive.testing.processes import gate, say

_POSTGRES: Any = (
    importlib.import_module("outlive.agents.saver_postgres") if importlib.util.find_spec("psycopg") else None
)
NODES = ("plan", "charge", "notify", "finish")
EVENT, VERDICT, PUT, PUT_WRITES = "event", "verdict", "put", "put_writes"


class State(TypedDict):
    """Which nodes wrote to it."""

    steps: Annotated[list[str], operator.add]


@dataclass(kw_only=True)
class Stand:
    """Before which write of a run its executor stands, and until which gate opens."""

    at: str
    nth: int
    gate: str

    async def reached(self, run_id: str, write: str) -> None:
        """Stand still if this is the one."""
        self.nth -= write == self.at
        if write == self.at and self.nth == 0:
            say(stands=run_id)
            await gate(self.gate).wait()


_STANDS: dict[str, Stand] = {}


async def _reached(run_id: str, write: str) -> None:
    if (stand := _STANDS.get(run_id)) is not None:
        await stand.reached(run_id, write)


class StandingAgent(langgraph.LangGraphAgent):
    """A graph whose first executor stands where the run's metadata says, and no other."""

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Like the graph's own."""
        asked = context.metadata
        if context.attempt == 1:
            _STANDS[context.run.run_id] = Stand(at=asked["at"], nth=asked["nth"], gate=asked["gate"])
        async with aclosing(super().stream(context)) as items:
            async for item in items:
                yield item


def _standing(checkpoints: Any) -> None:
    write = checkpoints.write

    async def standing(self: Any, call: fenced_saver.Call, serde: Any, claim: Any) -> Any:
        await _reached(claim.run_id, call.name)
        return await write(self, call, serde, claim)

    checkpoints.write = standing


async def _write(self: lease.Keeper, held: lease.Held, script: Any) -> Any:
    """A holder's write that no clock of this process forbids: the database alone refuses it."""
    await _reached(held.claim.run_id, VERDICT if held.ending else EVENT)
    return await self._store.write(script)


@script()
def _believed(claim: Any) -> Steps[None]:
    """Prove nothing."""
    yield from ()


def unfenced() -> None:
    """Take the proof out of this process's checkpoint writes."""
    vars(fenced_saver)["hold"] = _believed

    async def send(self: Any, kept: Any, claim: Any) -> None:
        await self._store.write_with(functools.partial(_POSTGRES._in_order, kept), _believed(claim))

    if _POSTGRES is not None:
        _POSTGRES.PostgresCheckpoints._send = send


async def watched(served: runtime.Outlive) -> None:
    """Say, as often as a gate asks, when this process drives nothing any more."""
    for number in itertools.count():
        await gate(f"idle-{number}").wait()
        while served._worker.driving:  # noqa: ASYNC110 - what the worker drives sets no event
            await asyncio.sleep(0.005)
        say(idle=number)


async def watched_without_a_fence(served: runtime.Outlive) -> None:
    """The same, in a process whose late checkpoints nothing refuses."""
    unfenced()
    await watched(served)


def _node(name: str) -> Any:
    async def node(state: State) -> dict[str, list[str]]:
        await asyncio.sleep(0)
        return {"steps": [name]}

    return node


def _graph() -> Any:
    steps: Any = StateGraph(State)
    for name in NODES:
        steps.add_node(name, _node(name))
    for before, after in zip((START, *NODES), (*NODES, END), strict=True):
        steps.add_edge(before, after)
    return steps.compile()


_standing(saver_sqlite.SqliteCheckpoints)
if _POSTGRES is not None:
    _standing(_POSTGRES.PostgresCheckpoints)
lease.Keeper.write = _write  # type: ignore[method-assign]

served = [StandingAgent("booking", _graph(), policy=policy.job(on_busy="enqueue"), modes=["updates"])]
