"""What does a receiver hear of a run's end when the process that tells it dies?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
import time
from collections.abc import Iterator, Mapping

from outlive import databases, notifications, runtime
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.testing import telling
from outlive.testing.receiver import Receiver, Reply


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive() or not databases.installed("standardwebhooks"):
        raise Unavailable("this installation cannot serve agents and send webhooks")
    points = telling.POINTS[:5:2] if bench.options.quick else telling.POINTS
    stores = {"sqlite": f"sqlite:///{bench.place('webhooks.db')}"}
    if not bench.options.quick and (dsn := bench.postgres()) is not None:
        stores["postgresql"] = dsn
    bench.plan(len(stores) * (len(points) + 1))
    rows: list[Mapping[str, object]] = []
    held = True
    for store, database in stores.items():
        runtime.migrate(database)
        for point in points:
            outcome = asyncio.run(telling.crash(database, point))
            held &= outcome.same and len(outcome.told) == point.heard and outcome.state == "delivered"
            rows.append({"store": store, "killed": point.name, **_row(outcome)})
            bench.step()
        runs = 30 if bench.options.quick else 200
        rows += [{"store": store, **row} for row in asyncio.run(_throughput(database, runs))]
        bench.step()
    return Measured(ok=held, rows=rows)


def _row(outcome: telling.Outcome) -> Mapping[str, object]:
    return {
        "run": outcome.run.state.value,
        "heard": {1: "once", 2: "twice"}.get(len(outcome.told), f"{len(outcome.told)} times"),
        "ids": len({each.id for each in outcome.told}),
        "bodies": len({each.body for each in outcome.told}),
        "tries": outcome.attempts,
        "the outbox says": outcome.state,
    }


async def _throughput(database: str, runs: int) -> list[Mapping[str, object]]:
    """Runs a second with each kind of receiver, in turns: one that is dead must cost the runs nothing."""
    spent: dict[str, list[float]] = {name: [] for name in KINDS}
    with _quiet(), Receiver() as well, Receiver() as stuck:
        stuck.always(Reply(hang=True))
        urls = dict(zip(KINDS, (None, well.url, stuck.url, DEAD), strict=True))
        options = {**telling.OPTIONS, "timeout": 1.0, "delay": 60.0}
        async with runtime.Outlive(
            database, telling.agents, webhooks=notifications.Webhooks(**options)
        ) as served:
            for turn in range(6):
                for name in KINDS if turn % 2 else reversed(KINDS):
                    began = time.perf_counter()
                    await asyncio.gather(*(_one(served, urls[name]) for _ in range(runs)))
                    spent[name].append(runs / (time.perf_counter() - began))
            stuck.release()
    return [
        {
            "killed": f"nobody; told is {name}",
            "run": f"{statistics.median(each):.0f} runs a second",
            "heard": "-",
            "ids": "-",
            "bodies": "-",
            "tries": "-",
            "the outbox says": "-",
        }
        for name, each in spent.items()
    ]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """That a receiver hangs is what is wanted here, and no line of the log."""
    log = logging.getLogger("outlive")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


async def _one(served: runtime.Outlive, url: str | None) -> None:
    await served.result((await served.submit("brief", 1, webhook=url)).run.run_id)


KINDS = ("nobody", "one that answers", "one that hangs", "one that refuses connections")
DEAD = "http://127.0.0.1:9/hook"
"""A port that nobody listens on."""

EXPERIMENT = Experiment(
    name="webhooks",
    title="Notifications around a crash",
    asserts="Whenever a process dies, the receiver hears of the end, once or twice, by the same id and in the"
    " same words; twice only where nobody can know that it had heard.",
    play=_play,
)
