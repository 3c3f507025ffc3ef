"""What does a receiver hear of a run's end when the process that tells it dies?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from outlive import databases, runtime
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.testing import telling


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive() or not databases.installed("standardwebhooks"):
        raise Unavailable("this installation cannot serve agents and send webhooks")
    points = telling.POINTS[:5:2] if bench.options.quick else telling.POINTS
    stores = {"sqlite": f"sqlite:///{bench.place('webhooks.db')}"}
    if not bench.options.quick and (dsn := bench.postgres()) is not None:
        stores["postgresql"] = dsn
    bench.plan(len(stores) * len(points))
    rows: list[Mapping[str, object]] = []
    held = True
    for store, database in stores.items():
        runtime.migrate(database)
        for point in points:
            outcome = asyncio.run(telling.crash(database, point))
            held &= outcome.same and len(outcome.told) == point.heard and outcome.state == "delivered"
            rows.append({"store": store, "killed": point.name, **_row(outcome)})
            bench.step()
    return Measured(ok=held, rows=rows)


def _row(outcome: telling.Outcome) -> Mapping[str, object]:
    return {
        "run": outcome.run.state.value,
        "heard": f"{len(outcome.told)} times",
        "ids": len({each.id for each in outcome.told}),
        "bodies": len({each.body for each in outcome.told}),
        "tries": outcome.attempts,
        "the outbox says": outcome.state,
    }


EXPERIMENT = Experiment(
    name="webhooks",
    title="Notifications around a crash",
    asserts="Whenever a process dies, the receiver hears of the end, once or twice, by the same id and in the"
    " same words; twice only where nobody can know that it had heard.",
    play=_play,
)
