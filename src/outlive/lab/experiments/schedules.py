"""What becomes of a schedule's slots when the processes that fire them die?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from outlive import cron, runtime
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.testing import ticking

PROCESSES = 4


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive() or not cron.installed():
        raise Unavailable("this installation cannot serve agents and read cron expressions")
    seconds, each = (15, 1) if bench.options.quick else (60, 2)
    stores = {"sqlite": f"sqlite:///{bench.place('schedules.db')}"}
    if not bench.options.quick and (dsn := bench.postgres()) is not None:
        stores["postgresql"] = dsn
    bench.plan(len(stores))
    rows: list[Mapping[str, object]] = []
    held = True
    for store, database in stores.items():
        runtime.migrate(database)
        outcome = asyncio.run(ticking.ticked(database, seconds, each=each, processes=PROCESSES))
        held &= outcome.sound and outcome.kills > 0
        rows.append({"store": store, "processes": PROCESSES, "seconds": seconds, **_row(outcome)})
        bench.step()
    return Measured(ok=held, rows=rows)


def _row(outcome: ticking.Outcome) -> Mapping[str, object]:
    return {
        "killed": outcome.kills,
        "slots": outcome.slots,
        "fired": outcome.fired,
        "skipped": outcome.skipped,
        "twice": outcome.twice,
        "lost": outcome.lost,
        "latest, s": f"{outcome.latest:.1f}",
    }


EXPERIMENT = Experiment(
    name="schedules",
    title="A schedule around crashes",
    asserts="Whichever process dies between which two steps, each slot becomes one run or has a reason,"
    " and none is lost.",
    play=_play,
)
