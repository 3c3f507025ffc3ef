"""What is on record when the cut falls into the write of a checkpoint?"""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlive.lab import figures, stage
from outlive.lab.experiment import Bench, Experiment, Measured, interval
from outlive.lab.experiments import bench_graph
from outlive.lab.experiments.bench_graph import Chain, ShieldedSaver, SlowSaver
from outlive.probe import plan
from outlive.probe.client import Client
from outlive.probe.evidence import checkpoints
from outlive.probe.scenario import filled
from outlive.probe.tape import Happening, of_kind

Cut = Callable[[Any, Callable[[], Any]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A durability mode, a saver, and a way to cut."""

    name: str
    durability: str
    cut: Cut
    saver: type[SlowSaver] = SlowSaver


CASES = (
    Case(name="sync, cut by the response", durability="sync", cut=bench_graph.cut_as_starlette_does),
    Case(name="async, cut by the response", durability="async", cut=bench_graph.cut_as_starlette_does),
    Case(name="sync, cancelled once", durability="sync", cut=bench_graph.cut_once),
    Case(name="async, cancelled once", durability="async", cut=bench_graph.cut_once),
    Case(
        name="sync, writes in shielded tasks",
        durability="sync",
        cut=bench_graph.cut_as_starlette_does,
        saver=ShieldedSaver,
    ),
)


#: Durability modes that are also cut by a client of a real server, with a store that takes so many seconds.
SERVED, SERVED_DELAY = ("sync", "async"), 0.15


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One trial."""

    charge_recorded: bool
    next_empty_but_pending: bool
    position: str
    charges_after_next_message: int
    charges_in_state: int


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=80, quick=4)
    served = bench.trials(full=15, quick=1)
    modes = SERVED[:1] if bench.options.quick else SERVED
    bench.plan(trials * len(CASES) + served * len(modes))
    rows: list[Mapping[str, object]] = []
    lost: list[tuple[str, Mapping[str, int]]] = []
    for case in CASES:
        seen: list[Seen] = []
        for trial in range(trials):
            after = bench.random.uniform(0.0, SlowSaver.delay * 0.9)
            seen.append(asyncio.run(_trial(case, bench.place(f"{CASES.index(case)}-{trial}.db"), after)))
            bench.step()
        rows.append(_row(case.name, seen))
        lost.append((case.name, {"executed": trials, "recorded": sum(s.charge_recorded for s in seen)}))
    rows += [_row(name, seen) for name, seen in _served(bench, served, modes)]
    some_lost = lost[0][1]["recorded"] < trials
    none_lost = lost[-1][1]["recorded"] == trials
    return Measured(
        ok=some_lost and none_lost, rows=rows, figures=[figures.bars("Charges executed and recorded", lost)]
    )


async def _trial(case: Case, path: pathlib.Path, after: float) -> Seen:
    """Leave by the clock, so long after the charge, and then send one more message."""
    config = {"configurable": {"thread_id": "t"}}
    async with bench_graph.saver(case.saver, path) as saver:
        chain = Chain(saver, notify=0.1)

        async def when() -> None:
            await chain.charged.wait()
            await asyncio.sleep(after)

        await case.cut(chain.run("t", case.durability), when)
        if isinstance(saver, ShieldedSaver):
            await asyncio.gather(*saver.writing)
        snapshot = await chain.graph.aget_state(config)
        history = [state async for state in chain.graph.aget_state_history(config)]
        recorded = any("charge" in state.values.get("steps", ()) for state in history)
        await chain.run("t", case.durability)
        final = await chain.graph.aget_state(config)
    return Seen(
        charge_recorded=recorded,
        next_empty_but_pending=not snapshot.next and bool(snapshot.tasks),
        position=_position(snapshot.next, [task.name for task in snapshot.tasks]),
        charges_after_next_message=chain.executed.count("charge"),
        charges_in_state=Counter(final.values["steps"])["charge"],
    )


def _position(nexts: Sequence[str], tasks: Sequence[str]) -> str:
    return f"{', '.join(nexts) or 'empty'} / {', '.join(tasks) or 'none'}"


def _row(name: str, seen: list[Seen]) -> Mapping[str, object]:
    trials = len(seen)
    hidden = [s for s in seen if s.charges_after_next_message > s.charges_in_state]
    return {
        "case": name,
        "charge in no checkpoint": interval(sum(not s.charge_recorded for s in seen), trials),
        "next / tasks then": _counted(s.position for s in seen),
        "next empty, task pending": interval(sum(s.next_empty_but_pending for s in seen), trials),
        "next message charges again": interval(sum(s.charges_after_next_message > 1 for s in seen), trials),
        "and the state shows fewer": interval(len(hidden), trials),
    }


def _counted(words: Iterable[str]) -> str:
    counts = Counter(words)
    return "; ".join(f"{word}: {counts[word]}" for word in counts)


def _served(bench: Bench, trials: int, modes: Sequence[str]) -> Iterator[tuple[str, list[Seen]]]:
    """The same with a client of a real server that leaves by the clock, so long after `charge` was done."""
    database = str(bench.place("served.db"))
    with stage.service(bench.place("served"), database, slow=SERVED_DELAY) as service:
        for durability in modes:
            seen = [_visit(bench, service, durability, f"{durability}-{trial}") for trial in range(trials)]
            yield f"{durability}, a client leaves uvicorn", seen


def _visit(bench: Bench, service: stage.Service, durability: str, thread: str) -> Seen:
    aim, recorder = service.plan(f"inline?durability={durability}"), service.running.recorder
    read = checkpoints.Sqlite(**aim.evidence[0].settings).read
    mark = recorder.mark()
    client = Client(filled(aim, service.running.url, thread, 0, {}), thread)
    client.send()
    recorder.wait(_charged, 20, mark)
    time.sleep(bench.random.uniform(0.0, SERVED_DELAY * 0.6))
    client.leave(plan.Leaving.FIN)
    service.rest(mark)
    left = read(thread).record
    again = Client(filled(aim, service.running.url, thread, 0, {}), thread)
    again.send()
    again.read(seconds=30)
    again.close()
    service.rest(mark)
    final = read(thread).record
    assert left is not None
    assert final is not None
    done = [h["label"] for h in of_kind(recorder.since(mark), "node.end") if h["error"] is None]
    bench.step()
    return Seen(
        charge_recorded="charge" in left.anywhere,
        next_empty_but_pending=not left.next and bool(left.tasks),
        position=_position(left.next, left.tasks),
        charges_after_next_message=done.count("charge"),
        charges_in_state=final.head.count("charge"),
    )


def _charged(happenings: Sequence[Happening]) -> bool:
    return any(h["label"] == "charge" for h in of_kind(happenings, "node.end"))


EXPERIMENT = Experiment(
    name="cut-writes",
    title="A checkpoint write cut in flight (by the clock, with a store that takes 40 ms)",
    asserts="`sync` loses checkpoints of what executed; writes in tasks of their own lose none.",
    play=_play,
)
