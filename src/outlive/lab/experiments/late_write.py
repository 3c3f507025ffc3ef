"""Does a lock around the run keep two runs' checkpoints apart?"""

from __future__ import annotations

import asyncio
import pathlib

from outlive.lab.experiment import Bench, Experiment, Figure, Measured, interval
from outlive.lab.experiments import bench_graph
from outlive.lab.experiments.bench_graph import Chain, ThreadedSaver
from outlive.probe import page
from outlive.probe.evidence import checkpoints
from outlive.probe.evidence.found import Record


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=20, quick=4)
    bench.plan(trials)
    found: list[tuple[list[str], Record]] = []
    for trial in range(trials):
        after = bench.random.uniform(0.0, ThreadedSaver.delay / 2)
        found.append(asyncio.run(_trial(bench.place(f"{trial}.db"), after)))
        bench.step()
    forked = [record for _, record in found if record.forks]
    hidden = [e for e, record in found if e.count("charge") > record.head.count("charge")]
    row = {
        "trials": trials,
        "thread forked although the lock was held": interval(len(forked), trials),
        "state shows fewer charges than executed": interval(len(hidden), trials),
    }
    drawn = (
        [Figure(title="A late write beside the next run's", svg=page.tree(forked[0].checkpoints))]
        if forked
        else []
    )
    return Measured(ok=len(forked) * 2 > trials, rows=[row], figures=drawn)


async def _trial(path: pathlib.Path, after: float) -> tuple[list[str], Record]:
    """A run holds the lock and is cut; the next message takes the lock at once."""
    lock = asyncio.Lock()
    with bench_graph.threaded(path) as saver:
        chain = Chain(saver, notify=0.05)

        async def locked() -> None:
            async with lock:
                await chain.run("t", "sync")

        async def when() -> None:
            await chain.charged.wait()
            await asyncio.sleep(after)

        await bench_graph.cut_as_starlette_does(locked(), when)
        await locked()
        await asyncio.get_running_loop().shutdown_default_executor()
    record = checkpoints.Sqlite(path=str(path)).read("t").record
    assert record is not None
    return chain.executed, record


EXPERIMENT = Experiment(
    name="late-write",
    title="A lock around the run, and the cut run's own late write",
    asserts="The lock does not fence the write that was on its way: the thread forks in most trials.",
    play=_play,
)
