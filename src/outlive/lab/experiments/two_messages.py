"""What do two messages at once make of a thread that a run was left on?"""

from __future__ import annotations

import concurrent.futures
from collections import Counter
from collections.abc import Mapping

from outlive.lab import figures, stage
from outlive.lab.experiment import Bench, Experiment, Figure, Measured, interval
from outlive.probe import page, plan
from outlive.probe.client import Client
from outlive.probe.evidence import checkpoints
from outlive.probe.evidence.found import Record
from outlive.probe.scenario import filled

PATH = "inline"
NAMES = ("plan", "charge", "notify", "finish")


def _play(bench: Bench) -> Measured:
    trials = bench.trials(full=10, quick=2)
    bench.plan(trials)
    database = bench.postgres()
    workers = 4 if database and not bench.options.quick else 1
    where = f"PostgreSQL, {workers} worker{'s' * (workers > 1)}" if database else "SQLite"
    rows: list[Mapping[str, object]] = []
    drawn: list[Figure] = []
    place = database or str(bench.place("two.db"))
    with stage.service(bench.place("service"), place, workers=workers) as service:
        for trial in range(trials):
            executed, processes, record = _trial(service, f"two-{trial}")
            served = {"store": where, "processes": processes}
            rows.append({"trial": trial + 1, **served, **_row(executed, record)})
            if trial == 0:
                drawn.append(_picture(executed, record))
            if record.forks and len(drawn) < 2:
                drawn.append(_tree(trial, record))
            bench.step()
    forked = sum(1 for row in rows if row["forks"])
    hidden = sum(1 for row in rows if row["charges executed"] != row["most in any state"])
    more = sum(1 for row in rows if int(str(row["charge"])) > int(str(row["plan"])))
    charges = Counter(int(str(row["charges executed"])) for row in rows)
    held = min(charges) >= 2
    rows.append(
        {
            "trial": "all",
            "store": where,
            "charge": f"above plan: {interval(more, trials)}",
            "charges executed": "; ".join(f"{n}: {interval(charges[n], trials)}" for n in sorted(charges)),
            "forks": interval(forked, trials),
            "hidden": interval(hidden, trials),
        }
    )
    return Measured(ok=held, rows=rows, figures=drawn)


def _trial(service: stage.Service, thread: str) -> tuple[Counter[str], int, Record]:
    mark = service.running.recorder.mark()
    first = _client(service, thread, "first")
    first.read(chunks=2, seconds=20)
    first.leave(plan.Leaving.FIN)
    service.rest(mark)
    clients = [_client(service, thread, str(number)) for number in (1, 2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda client: client.read(seconds=30), clients))
    service.rest(mark)
    for client in clients:
        client.close()
    happenings = service.running.recorder.since(mark)
    done = Counter(h["label"] for h in happenings if h.kind == "node.end" and h["error"] is None)
    source = service.plan(PATH).evidence[0].settings
    place = checkpoints.Postgres(**source) if "dsn" in source else checkpoints.Sqlite(**source)
    record = place.read(thread).record
    assert record is not None
    processes = len({h.pid for h in happenings if h.kind == "node.end"})
    return done, processes, record


def _client(service: stage.Service, thread: str, name: str) -> Client:
    made = Client(filled(service.plan(PATH), service.running.url, thread, 0, {}), name)
    made.send()
    return made


def _row(executed: Counter[str], record: Record) -> Mapping[str, object]:
    counts = {name: executed[name] for name in NAMES}
    most = max((_along(record, c.id).count("charge") for c in record.checkpoints), default=0)
    return {
        **counts,
        "charges executed": executed["charge"],
        "charges in the state": record.head.count("charge"),
        "most in any state": most,
        "checkpoints": len(record.checkpoints),
        "forks": record.forks,
    }


def _along(record: Record, at: str | None) -> list[str]:
    by_id = {checkpoint.id: checkpoint for checkpoint in record.checkpoints}
    path: list[str] = []
    while at in by_id:
        path[:0] = by_id[at].nodes
        at = by_id[at].parent
    return path


def _tree(trial: int, record: Record) -> Figure:
    return Figure(title=f"Trial {trial + 1}: the thread forks", svg=page.tree(record.checkpoints))


def _picture(executed: Counter[str], record: Record) -> Figure:
    shown = Counter(record.head)
    values = [(name, {"executed": executed[name], "recorded": shown[name]}) for name in NAMES]
    return figures.bars("First trial: executed against the thread's state", values)


EXPERIMENT = Experiment(
    name="two-messages",
    title="A thread that a run was left on, then two messages at once",
    asserts="In every trial the charge executes at least twice.",
    play=_play,
)
