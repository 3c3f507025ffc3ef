"""Is all that executed on record when a run is cut by the clock, whatever cuts it, however slow the store?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import pathlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from langgraph.errors import EmptyInputError

from outlive import policy, runtime
from outlive.lab import figures, stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable, interval
from outlive.lab.experiments import bench_graph
from outlive.lab.services import leaving_graphs
from outlive.lab.services.leaving_graphs import NODES, SlowAgent, SlowSaver, Tape
from outlive.model import Run
from outlive.policy import Durability
from outlive.testing import hearing
from outlive.testing.asgi import listening

SIDE_BY_SIDE = 40
"""Runs that are driven at once: nearly all of a trial is waiting."""
DURABILITIES = (Durability.SYNC, Durability.ASYNC)
DRAIN = 20.0
"""Seconds that a closing process gives its runs, a quarter of them to come to a step's end by themselves."""
WITHIN = 60.0
BARE = "bare handler"


class Cause(StrEnum):
    """What cuts a run."""

    DISCONNECT = "disconnect"
    STOP = "stop"
    TIMEOUT = "time-out"
    SHUTDOWN = "shutdown"


@dataclass(kw_only=True)
class Seen:
    """What became of the trials of one durability mode and one cause."""

    trials: int = 0
    partway: int = 0
    disagreed: int = 0
    repeated: int = 0
    executed: int = 0
    recorded: int = 0

    def cut(self, executed: Iterable[str], recorded: set[str]) -> None:
        """Count what a trial left behind."""
        done = set(executed)
        self.trials += 1
        self.partway += 0 < len(done) < len(NODES)
        self.disagreed += done != recorded
        self.executed += len(done)
        self.recorded += len(done & recorded)

    def ended(self, executed: Counter[str], recorded: set[str]) -> None:
        """Count what came of it once what was begun is finished."""
        self.repeated += any(times > 1 for times in executed.values())
        self.disagreed += set(executed) != recorded


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive():
        raise Unavailable("this installation cannot serve agents")
    trials = bench.trials(full=80, quick=4)
    stores = _stores(bench)
    bench.plan(len(DURABILITIES) * (1 + len(stores) * len(Cause)))
    rows: list[Mapping[str, object]] = []
    bars: list[tuple[str, Mapping[str, int]]] = []
    held = True
    for store, cause, durability, seen in _all(bench, stores, trials):
        bench.step()
        held &= _as_asserted(cause, seen, trials)
        rows.append({"store": store, "cut by": cause, **_row(durability, seen)})
        label = f"{store} · {cause} · {durability}"
        bars.append((label, {"executed": seen.executed, "recorded": seen.recorded}))
    return Measured(ok=held, rows=rows, figures=[figures.bars("Nodes executed and recorded", bars)])


def _all(bench: Bench, stores: Iterable[str], trials: int) -> Iterable[tuple[str, str, Durability, Seen]]:
    for durability in DURABILITIES:
        path = bench.place(f"bare-{durability}.db")
        yield "sqlite", BARE, durability, asyncio.run(bare(path, durability, bench.random, trials))
    for store in stores:
        for cause in Cause:
            for durability in DURABILITIES:
                database = _database(bench, store, f"{cause}-{durability}")
                yield (
                    store,
                    cause,
                    durability,
                    asyncio.run(measured(database, cause, durability, bench.random, trials)),
                )


def _stores(bench: Bench) -> list[str]:
    more = not bench.options.quick and bench.postgres() is not None
    return ["sqlite", *(["postgresql"] if more else [])]


def _database(bench: Bench, store: str, name: str) -> str:
    if store == "sqlite":
        return f"sqlite:///{bench.place(f'{name}.db')}"
    dsn = bench.postgres()
    assert dsn is not None
    return dsn


def _as_asserted(cause: str, seen: Seen, trials: int) -> bool:
    if cause == BARE:  # of few trials each may fall between two writes
        return trials < SIDE_BY_SIDE or seen.disagreed > 0
    return seen.trials == trials and not (seen.disagreed or seen.repeated)


def _row(durability: Durability, seen: Seen) -> Mapping[str, object]:
    return {
        "durability": durability.value,
        "cut part-way": f"{seen.partway} of {seen.trials}",
        "nodes executed": seen.executed,
        "of them recorded": seen.recorded,
        "trials that disagree": interval(seen.disagreed, seen.trials),
        "a node ran again": interval(seen.repeated, seen.trials),
    }


# ---------------------------------------------------------------- with Outlive


async def measured(
    database: str, cause: Cause, durability: Durability, dice: random.Random, trials: int
) -> Seen:
    """Cut so many runs, each at a moment of its own; look at what is on record, and have them finished."""
    await asyncio.to_thread(runtime.migrate, database)
    seen, made = Seen(), 0
    while made < trials:
        batch = _Batch(database=database, cause=cause, durability=durability, dice=dice)
        count = min(trials - made, SIDE_BY_SIDE)
        await batch.play([f"{cause}-{durability}-{made + number}" for number in range(count)], seen)
        made += count
    return seen


@dataclass(kw_only=True)
class _Batch:
    """Trials that run side by side in one process."""

    database: str
    cause: Cause
    durability: Durability
    dice: random.Random
    tape: Tape = field(default_factory=Tape)

    @property
    def _name(self) -> str:
        return f"{self.cause}-{self.durability}"

    def _agents(self) -> list[SlowAgent]:
        leaves = "cancel" if self.cause is Cause.DISCONNECT else "continue"
        rules = policy.chat(grace=0, on_disconnect=leaves, durability=self.durability)
        return [SlowAgent(self._name, self.tape, policy=rules)]

    async def play(self, threads: list[str], seen: Seen) -> None:
        """Make one trial on each thread."""
        readers = self._agents()
        async with runtime.Outlive(self.database, readers, slots=0) as api:
            async with self._served() as first, _site(first) as port:
                length = await self._length(first, api, f"{threads[0]}-whole")
                cuts = [self._cut(first, port, thread, length) for thread in threads]
                runs = await asyncio.gather(*cuts)
                if self.cause is not Cause.SHUTDOWN:
                    await asyncio.gather(*(hearing.ended(api, run.run_id, WITHIN) for run in runs))
            for run in runs:
                seen.cut(self.tape.of(run.thread_id), await _recorded(readers[0], run))
            async with self._served() as second:
                await asyncio.gather(*(self._finished(second, api, run) for run in runs))
            for run in runs:
                seen.ended(self.tape.of(run.thread_id), await _recorded(readers[0], run))

    def _served(self) -> runtime.Outlive:
        return runtime.Outlive(self.database, self._agents(), slots=SIDE_BY_SIDE, drain=DRAIN)

    async def _length(self, served: runtime.Outlive, api: runtime.Outlive, thread: str) -> float:
        """How many seconds a run takes that nobody cuts."""
        clock = asyncio.get_running_loop().time
        since = clock()
        run = await self._submitted(served, thread, "1")
        await hearing.ended(api, run.run_id, WITHIN)
        return clock() - since

    async def _submitted(self, served: runtime.Outlive, thread: str, turn: str, **rules: Any) -> Run:
        declared = self._agents()[0].policy.but(on_disconnect="continue", **rules)
        submitted = await served.submit(
            self._name, {"turn": turn, "steps": []}, thread=thread, policy=declared
        )
        return submitted.run

    async def _cut(self, served: runtime.Outlive, port: int, thread: str, length: float) -> Run:
        """Begin a run, and cut it after a part of its length."""
        after = self.dice.uniform(0.01, length)
        match self.cause:
            case Cause.TIMEOUT:
                return await self._submitted(served, thread, "1", run_timeout=after)
            case Cause.STOP:
                run = await self._submitted(served, thread, "1")
                await asyncio.sleep(after)
                await served.stop(run.run_id)
                return run
            case Cause.SHUTDOWN:  # all are cut at once: each begins so long before
                await asyncio.sleep(length - after)
                run = await self._submitted(served, thread, "1")
                await asyncio.sleep(after)
                return run
            case Cause.DISCONNECT:
                return await served.run(await _visit(port, self._name, thread, after))

    async def _finished(self, served: runtime.Outlive, api: runtime.Outlive, run: Run) -> None:
        """Have what was begun finished: by whoever takes a handed back run, or before the next message."""
        if self.cause is Cause.SHUTDOWN:
            await hearing.ended(api, run.run_id, WITHIN)
            return
        assert run.thread is not None
        again = await self._submitted(served, run.thread, "2")
        await hearing.ended(api, again.run_id, WITHIN)


async def _recorded(reader: SlowAgent, run: Run) -> set[str]:
    config: Any = {"configurable": {"thread_id": run.thread_id}}
    return leaving_graphs.recorded(await reader.reading.aget_state(config, subgraphs=True))


async def _visit(port: int, agent: str, thread: str, after: float) -> str:
    """Send a message over a real socket, and leave; returns the run's id."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    given = {"agent": agent, "thread": thread, "input": {"turn": "1", "steps": []}}
    body = json.dumps(given).encode()
    head = (
        "POST /runs HTTP/1.1\r\nHost: lab\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN)
    await asyncio.sleep(after)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    fields = dict(line.lower().split(": ", 1) for line in answer.decode().splitlines() if ": " in line)
    return fields["content-location"].rpartition("/")[2]


@contextlib.asynccontextmanager
async def _site(served: runtime.Outlive) -> AsyncIterator[int]:
    fastapi: Any = importlib.import_module("fastapi")
    native: Any = importlib.import_module("outlive.http.native")
    app = fastapi.FastAPI()
    app.include_router(native.router(served))
    async with listening(app) as port:
        yield port


# ---------------------------------------------------------------- without


async def bare(path: pathlib.Path, durability: Durability, dice: random.Random, trials: int) -> Seen:
    """The same graph and cuts in a handler that drives it, with LangGraph's own saver as slow."""
    seen, tape = Seen(), Tape()
    async with bench_graph.saver(SlowSaver, path) as saver:
        graph = leaving_graphs.graph(tape, saver)
        clock = asyncio.get_running_loop().time
        since = clock()
        await _drive(graph, "whole", durability, {"turn": "1", "steps": []})
        length = clock() - since
        threads = [f"bare-{number}" for number in range(trials)]
        for start in range(0, trials, SIDE_BY_SIDE):
            together = threads[start : start + SIDE_BY_SIDE]
            await asyncio.gather(
                *(_bare(graph, thread, durability, dice.uniform(0.01, length)) for thread in together)
            )
            for thread in together:
                seen.cut(tape.of(thread), await _state(graph, thread))
            await asyncio.gather(*(_drive(graph, thread, durability, None) for thread in together))
            for thread in together:
                seen.ended(tape.of(thread), await _state(graph, thread))
    return seen


async def _bare(graph: Any, thread: str, durability: Durability, after: float) -> None:
    async def when() -> None:
        await asyncio.sleep(after)

    given = {"turn": "1", "steps": []}
    await bench_graph.cut_as_starlette_does(_drive(graph, thread, durability, given), when)


async def _drive(graph: Any, thread: str, durability: Durability, given: Any) -> None:
    config = {"configurable": {"thread_id": thread}}
    modes = ["updates", "values", "messages", "custom"]
    with contextlib.suppress(EmptyInputError):  # nothing was begun there, so that nothing goes on
        async for _ in graph.astream(
            given, config, stream_mode=modes, durability=durability.value, subgraphs=True
        ):
            pass


async def _state(graph: Any, thread: str) -> set[str]:
    config = {"configurable": {"thread_id": thread}}
    return leaving_graphs.recorded(await graph.aget_state(config, subgraphs=True))


EXPERIMENT = Experiment(
    name="leaves",
    title="Runs cut by the clock, over checkpoints that take 200 ms",
    asserts="Whatever cuts a run, what executed is on record and does not run again; a bare handler loses"
    " some of it.",
    play=_play,
)
