"""What the tests of the LangGraph agent share: claimed runs, graphs that tell what they did, their rows."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import operator
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.graph import END, START, StateGraph
from psycopg.rows import tuple_row

from outlive import agents, policy, runtime, seams, signals
from outlive.agents import fenced_saver, langgraph
from outlive.model import Claim, Offer, Submission, Suspect, Swept, Verdict
from outlive.states import Position, Reason, State
from outlive.store import moves, reads

WITHIN = 20.0
JOB = policy.job(on_busy="enqueue")


class Steps(TypedDict):
    """A state that only remembers which nodes wrote to it."""

    steps: Annotated[list[str], operator.add]


class Trace:
    """Which nodes began and ended, and gates at which the next visitor of a node waits for the test."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self._held: dict[str, asyncio.Event] = {}
        self._moved = asyncio.Event()

    def hold(self, node: str) -> asyncio.Event:
        """Make the next visitor of a node, and only that one, wait in its middle for the event."""
        self._held[node] = asyncio.Event()
        return self._held[node]

    async def visit(self, node: str) -> None:
        """What each node does."""
        held = self._held.pop(node, None)
        self.began.append(node)
        self._tell()
        await (asyncio.sleep(0) if held is None else held.wait())
        self.ended.append(node)  # nothing is awaited from here to the node's return: it cannot be cut
        self._tell()

    def _tell(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, *nodes: str) -> None:
        """Wait until these nodes have begun."""
        await self._until(lambda: set(nodes) <= set(self.began))

    async def until_ended(self, node: str) -> None:
        """Wait until a node has ended."""
        await self._until(lambda: node in self.ended)

    async def _until(self, so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN):
            while not so():
                await self._moved.wait()

    def node(self, name: str) -> Any:
        """A node that visits and writes its name."""

        async def node(state: Steps) -> dict[str, list[str]]:
            await self.visit(name)
            return {"steps": [name]}

        return node


def chain(trace: Trace, *names: str) -> StateGraph[Any, Any, Any, Any]:
    """A graph whose nodes follow each other."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Steps)
    for name in names:
        builder.add_node(name, trace.node(name))
    for before, after in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(before, after)
    return builder


def booking(trace: Trace, **compile_with: Any) -> Any:
    """plan, charge, notify, finish."""
    return chain(trace, "plan", "charge", "notify", "finish").compile(**compile_with)


class Slow:
    """Checkpoints of which one write, counted by its kind, waits for the test once it has begun."""

    def __init__(self, inner: fenced_saver.Checkpoints, call: str, count: int) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.write_done: list[str] = []
        self._inner = inner
        self._call = call
        self._left = count
        self.read = inner.read
        self.next_version = inner.next_version

    async def write(self, call: fenced_saver.Call, serde: Any, claim: Claim) -> Any:
        """Wait if this is the one, then write."""
        self._left -= call.name == self._call
        if call.name == self._call and self._left == 0:
            self.begun.set()
            await self.let_go.wait()
        answer = await self._inner.write(call, serde, claim)
        self.write_done.append(call.name)
        return answer


class Bench:
    """An open store, and short words for what a runtime would do with it."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.signals = signals.Signals()
        self.store: Any = runtime.open_store(database, None, self.signals)

    @property
    def on_sqlite(self) -> bool:
        """Which kind of store it is."""
        return self.database.startswith("sqlite")

    async def agent(self, graph: Any, **options: Any) -> langgraph.LangGraphAgent:
        """A bound agent of a graph."""
        made = langgraph.LangGraphAgent("graph", graph, **{"policy": JOB, **options})
        await made.bind(self.store, self.signals)
        return made

    async def claimed(
        self,
        given: Any = None,
        *,
        thread: str | None = None,
        key: str | None = None,
        metadata: dict[str, Any] | None = None,
        rules: policy.RunPolicy = JOB,
        positioned: bool = False,
    ) -> agents.Context:
        """Submit a run and claim it; ``positioned``: as the commands do it for an agent of a graph."""
        submission = Submission(
            run_id=seams.new_id(),
            tenant="",
            agent="graph",
            input=json.dumps({"steps": []} if given is None else given),
            fingerprint="same",
            policy=rules,
            thread=thread,
            key=key,
            metadata=json.dumps(metadata or {}),
            positioned=positioned,
        )
        submitted = await self.store.write(moves.submit(submission, offer()))
        assert submitted.claimed
        return agents.Context(run=submitted.run, claim=submitted.run.claim)

    async def lose(self, claim: Claim) -> None:
        """Take a run from its holder, as the sweeper does with a dead one's."""
        rows = await self.store.read(reads.suspects(-10_000, 100))
        suspect = next(row for row in rows if row.run_id == claim.run_id)
        assert isinstance(suspect, Suspect)
        assert await self.store.write(moves.sweep(suspect, early=True)) is Swept.REQUEUED

    def slowly(self, agent: langgraph.LangGraphAgent, call: str, count: int = 1) -> Slow:
        """Hold up the ``count``-th such write of an agent's runs."""
        assert agent._savers is not None
        slow = Slow(agent._savers.checkpoints, call, count)
        agent._savers = dataclasses.replace(agent._savers, checkpoints=slow)
        return slow

    async def again(self, context: agents.Context) -> agents.Context:
        """Lose a run and claim it anew."""
        await self.lose(context.claim)
        (run,) = await self.store.write(moves.claim([offer()]))
        assert run.run_id == context.run.run_id
        return agents.Context(run=run, claim=run.claim)

    async def settle(
        self,
        context: agents.Context,
        state: State,
        reason: Reason | None = None,
        position: Position | None = None,
    ) -> None:
        """Record a verdict."""
        run = await self.store.read(reads.run(context.run.run_id, None))
        verdict = Verdict(state=state, reason=reason, output="null", position=position)
        await self.store.write(moves.settle(context.claim, verdict, run.last_seq))

    def rows(self) -> list[Any]:
        """Every row of the saver's tables, read behind everybody's back."""
        if self.on_sqlite:
            with contextlib.closing(sqlite3.connect(self.database.removeprefix("sqlite:///"))) as file:
                return [row for table in ("checkpoints", "writes") for row in file.execute(_all(table))]
        with psycopg.connect(self.database, row_factory=tuple_row) as connection:
            tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
            return [row for table in tables for row in connection.execute(_all(table).encode())]


def _all(table: str) -> str:
    return f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4"


def offer() -> Offer:
    """A slot for whatever is next."""
    return Offer(worker="bench", claim_token=seams.new_id(), lease=60.0, agents=("graph",))


@contextlib.asynccontextmanager
async def opened(database: str) -> AsyncIterator[Bench]:
    """A bench over a migrated database."""
    bench = Bench(database)
    await bench.store.open()
    try:
        yield bench
    finally:
        await bench.store.close()


async def all_of(agent: langgraph.LangGraphAgent, context: agents.Context) -> list[agents.Yielded]:
    """Everything that an attempt yields."""
    async with asyncio.timeout(WITHIN), aclosing(agent.stream(context)) as items:
        return [item async for item in items]


async def last_of(agent: langgraph.LangGraphAgent, context: agents.Context) -> agents.Yielded:
    """How an attempt ends."""
    return (await all_of(agent, context))[-1]


def driven(agent: langgraph.LangGraphAgent, context: agents.Context) -> asyncio.Task[list[agents.Yielded]]:
    """An attempt in a task of its own, as execution drives it."""
    return asyncio.get_running_loop().create_task(all_of(agent, context))


async def cut(task: asyncio.Task[Any]) -> None:
    """Stop an attempt as execution does: cancelled once, awaited to its end."""
    assert not task.done()
    task.cancel()
    await asyncio.wait({task}, timeout=WITHIN)
    assert task.cancelled()


def chunks(items: list[agents.Yielded], mode: str) -> list[Any]:
    """The data of one mode's chunks."""
    return [item.data for item in items if isinstance(item, agents.Chunk) and item.mode == mode]


def notes(items: list[agents.Yielded]) -> list[str]:
    """The texts of the warnings."""
    return [item.message for item in items if isinstance(item, agents.Note)]
