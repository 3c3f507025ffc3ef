"""What is on record when the cut falls into the write of a checkpoint?"""

from __future__ import annotations

import asyncio
import pathlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outlive.lab import figures
from outlive.lab.experiment import Bench, Experiment, Measured, interval
from outlive.lab.experiments import bench_graph
from outlive.lab.experiments.bench_graph import Chain, ShieldedSaver, SlowSaver

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


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One trial."""

    charge_recorded: bool
    next_empty_but_pending: bool
    charges_after_next_message: int
    charges_in_state: int


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=80, quick=4)
    bench.plan(trials * len(CASES))
    rows: list[Mapping[str, object]] = []
    lost: list[tuple[str, Mapping[str, int]]] = []
    for case in CASES:
        seen: list[Seen] = []
        for trial in range(trials):
            after = bench.random.uniform(0.0, SlowSaver.delay * 0.9)
            seen.append(asyncio.run(_trial(case, bench.place(f"{CASES.index(case)}-{trial}.db"), after)))
            bench.step()
        rows.append(_row(case, seen))
        lost.append((case.name, {"executed": trials, "recorded": sum(s.charge_recorded for s in seen)}))
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
        charges_after_next_message=chain.executed.count("charge"),
        charges_in_state=Counter(final.values["steps"])["charge"],
    )


def _row(case: Case, seen: list[Seen]) -> Mapping[str, object]:
    trials = len(seen)
    hidden = [s for s in seen if s.charges_after_next_message > s.charges_in_state]
    return {
        "case": case.name,
        "charge in no checkpoint": interval(sum(not s.charge_recorded for s in seen), trials),
        "next empty, task pending": interval(sum(s.next_empty_but_pending for s in seen), trials),
        "next message charges again": interval(sum(s.charges_after_next_message > 1 for s in seen), trials),
        "and the state shows fewer": interval(len(hidden), trials),
    }


EXPERIMENT = Experiment(
    name="cut-writes",
    title="A checkpoint write cut in flight (by the clock, with a store that takes 40 ms)",
    asserts="`sync` loses checkpoints of what executed; writes in tasks of their own lose none.",
    play=_play,
)
