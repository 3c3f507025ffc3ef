"""What does a provider execute when a process dies around a charge, with a ledger of effects and without?"""

from __future__ import annotations

import asyncio
import pathlib
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlive import encoding, policy, runtime, seams
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.model import Run, Submission
from outlive.store import effect_reads, moves
from outlive.testing import hearing
from outlive.testing.paying import Paying
from outlive.testing.processes import Process

AGENTS = "outlive.lab.services.effect_graphs:served"
SHORT = {"lease": 1.5, "renew_every": 0.3, "margin": 0.2}
"""Seconds: so that a dead process is replaced soon."""
WITHIN = 40.0
DURING = "during the call"
FROZEN = "frozen right before the call"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One accident: where, to which graph, and whether the provider honours keys.

    ``settles``: where nobody but the provider can tell what became of the charge, so that without keys a
    person is asked.
    """

    point: str
    agent: str
    armed: str
    keys: bool
    settles: bool = False

    @property
    def ledger(self) -> bool:
        """Whether the graph's charge goes through the ledger."""
        return self.agent != "bare"


def _with_ledger(keys: bool) -> list[Case]:
    return [
        Case(point="before intended", agent="ledger", armed="effects.wished=kill", keys=keys),
        Case(point="after intended", agent="asked", armed="effects.intended=kill", keys=keys),
        Case(point="before the call", agent="ledger", armed="effects.call=kill", keys=keys, settles=True),
        Case(point=DURING, agent="ledger", armed="", keys=keys, settles=True),
        Case(
            point="after the answer", agent="ledger", armed="effects.answered=kill", keys=keys, settles=True
        ),
        Case(point="after done", agent="ledger", armed="effects.recorded=kill", keys=keys),
    ]


CASES = (
    *_with_ledger(True),
    Case(point=FROZEN, agent="ledger", armed="effects.call=freeze", keys=True, settles=True),
    *_with_ledger(False),
    Case(point="before the call", agent="bare", armed="effects.call=kill", keys=True),
    Case(point=DURING, agent="bare", armed="", keys=True),
    Case(point="after the answer", agent="bare", armed="effects.answered=kill", keys=True),
    Case(point="after the checkpoint", agent="bare", armed="lab.finish=kill", keys=True),
)
QUICK = tuple(
    case
    for case in CASES
    if ((case.point, case.keys) in ((DURING, True), ("after the answer", False)) and case.ledger)
    or (case.point == "after the answer" and not case.ledger)
)
TWICE = frozenset({DURING, "after the answer"})
"""Where the graph without a ledger charges a second time."""


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive():
        raise Unavailable("this installation cannot serve agents")
    cases = QUICK if bench.options.quick else CASES
    stores = _stores(bench)
    bench.plan(len(stores) * (len(cases) + 1))
    rows: list[Mapping[str, object]] = []
    held = True
    for store, database in stores.items():
        runtime.migrate(database)
        for number, case in enumerate(cases):
            place = bench.place(f"{store}-{number}")
            place.mkdir()
            row = asyncio.run(_accident(case, database, place))
            held &= _as_asserted(case, row)
            rows.append({"store": store, **row})
            bench.step()
        rows.append({"store": store, **asyncio.run(_overhead(database, 50 if bench.options.quick else 300))})
        bench.step()
    return Measured(ok=held, rows=rows)


def _stores(bench: Bench) -> dict[str, str]:
    stores = {"sqlite": f"sqlite:///{bench.place('effects.db')}"}
    if not bench.options.quick and (dsn := bench.postgres()) is not None:
        stores["postgresql"] = dsn
    return stores


def _as_asserted(case: Case, row: Mapping[str, object]) -> bool:
    if not case.ledger:
        return row["executed"] == (2 if case.point in TWICE else 1)
    asked = "yes" if case.settles and not case.keys else "no"
    return (row["executed"], row["a person was asked"], row["run"]) == (1, asked, "succeeded")


async def _accident(case: Case, database: str, place: pathlib.Path) -> Mapping[str, object]:
    """Have one process die or freeze at a point, and another go on; the provider's log says what executed."""
    options = () if case.keys else ("--no-keys",)
    async with runtime.Outlive(database, [], slots=0) as api:
        with Paying(place, *options) as paying:
            run_id, asked = await _through(case, api, database, paying)
            run = await api.run(run_id)
            executed = len(paying.lines("effect", "charge"))
            requests = len(paying.lines("request", "charge"))
            said = await _ledger_says(api, run)
    return {
        "graph": "with the ledger" if case.ledger else "without it",
        "provider": "honours keys" if case.keys else "ignores keys",
        "killed": case.point,
        "requests": requests,
        "executed": executed,
        "the ledger says": said,
        "a person was asked": "yes" if asked else "no",
        "run": run.state.value,
    }


async def _through(case: Case, api: runtime.Outlive, database: str, paying: Paying) -> tuple[str, bool]:
    order = {"url": paying.url, "booking": seams.new_id(), "keys": case.keys}
    if case.point == DURING:
        await asyncio.to_thread(paying.script, "charge", {"hang": True})
    async with _process(database, case.armed) as first:
        submitted = await api.store.write(_submission(case.agent, order))
        run_id: str = submitted.run.run_id
        if case.point == DURING:
            await _executed(paying)
            first.kill()
        if case.point == FROZEN:
            await first.frozen(within=WITHIN)
        else:
            await first.ended(within=WITHIN)
            await asyncio.to_thread(paying.release)
        async with _process(database) as second:
            asked = await _followed(api, second, run_id, paying)
        if case.point == FROZEN:
            first.thaw()
            await first.heard("LeaseLost", within=WITHIN, run_id=run_id)
    return run_id, asked


def _submission(agent: str, order: Mapping[str, Any]) -> Any:
    """A submit by hand: this process knows none of the agents."""
    new = Submission(
        run_id=seams.new_id(),
        tenant="",
        agent=agent,
        input=encoding.encode(dict(order)).text,
        fingerprint="",
        policy=policy.job(on_busy="enqueue"),
    )
    return moves.submit(new, None)


def _process(database: str, armed: str = "") -> Process:
    return Process(database, AGENTS, timing=SHORT, points=armed)


async def _executed(paying: Paying) -> None:
    async with asyncio.timeout(WITHIN):
        while not await asyncio.to_thread(paying.lines, "effect", "charge"):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.02)


async def _followed(api: runtime.Outlive, second: Process, run_id: str, paying: Paying) -> bool:
    """Wait for the run's end; a person who is asked looks into the provider's own records, and says so."""
    ending = asyncio.create_task(hearing.ended(api, run_id, WITHIN))
    asking = asyncio.create_task(second.heard("EffectWaits", within=WITHIN, run_id=run_id))
    await asyncio.wait({ending, asking}, return_when=asyncio.FIRST_COMPLETED)
    asked = asking.done()
    if asked:
        effect_id = (await asking)["effect_id"]
        executed = bool(await asyncio.to_thread(paying.lines, "effect", "charge"))
        await api.effects.settle(effect_id, executed=executed, result="told by a person", by="lab")
    asking.cancel()
    await ending
    return asked


async def _ledger_says(api: runtime.Outlive, run: Run) -> str:
    found = await api.store.read(effect_reads.of_run(run.origin, 10))
    return ", ".join(f"{effect.known.value} after {effect.calls} starts" for effect in found) or "-"


async def _overhead(database: str, count: int) -> Mapping[str, object]:
    """What an effect costs that nobody else wants: its two statements, in milliseconds."""
    from outlive.lab.services import effect_graphs  # noqa: PLC0415 - LangGraph is slow to import

    spent = []
    async with runtime.Outlive(database, [effect_graphs.many]) as served:
        for size in (0, count, 0, count):
            began = time.perf_counter()
            await served.result((await served.submit("many", {"count": size})).run.run_id)
            spent.append((size, time.perf_counter() - began))
    empty = statistics.mean(seconds for size, seconds in spent if not size)
    full = min(seconds for size, seconds in spent if size)
    return {
        "graph": "with the ledger",
        "provider": "-",
        "killed": f"nobody: {count} effects one after another",
        "requests": 0,
        "executed": 0,
        "the ledger says": f"{(full - empty) / count * 1000:.2f} ms an effect",
        "a person was asked": "no",
        "run": "succeeded",
    }


EXPERIMENT = Experiment(
    name="effects",
    title="Charges around a crash",
    asserts="With the ledger no crash charges twice, and a person is asked only where nobody else can tell;"
    " without it a crash during the call, or before its checkpoint, charges twice.",
    play=_play,
)
