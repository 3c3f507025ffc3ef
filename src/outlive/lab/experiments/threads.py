"""What becomes of a message on a thread that is busy, or was left part-way, under every declared policy?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outlive import errors, policy, runtime
from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.model import Run
from outlive.policy import OnBusy, OnTorn
from outlive.states import State
from outlive.testing import hearing
from outlive.testing.processes import Process

AGENTS = "outlive.lab.services.thread_graphs:served"
NODES = ("plan", "charge", "notify", "finish")
WITHIN = 40.0
FIRST, MESSAGE = "the first", "the message"


class Meets(StrEnum):
    """How the message finds the thread: the first run has executed its charge and is in ``notify``."""

    TORN = "was stopped in notify"
    BUSY = "runs on"
    CUT = "runs, and is stopped then"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One message."""

    meets: Meets
    on_busy: OnBusy
    on_torn: OnTorn

    @property
    def name(self) -> str:
        """The name of its thread."""
        return f"{self.meets.name}-{self.on_busy}-{self.on_torn}".lower()


CASES = tuple(
    Case(meets=meets, on_busy=on_busy, on_torn=on_torn)
    for meets in Meets
    for on_busy in OnBusy
    for on_torn in OnTorn
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Came:
    """What came of one case: the message's run, or the code with which it was refused."""

    first: Run
    message: Run | None
    refused: str | None
    done: Mapping[str, Counter[str]]
    charged: Counter[str]
    refunded: Counter[str]


def _play(bench: Bench) -> Measured:
    if not stage.has_outlive():
        raise Unavailable("this installation cannot serve agents")
    stores = {"sqlite": f"sqlite:///{bench.place('threads.db')}"}
    if not bench.options.quick and (dsn := bench.postgres()) is not None:
        stores["postgresql"] = dsn
    bench.plan(len(stores) * len(CASES))
    rows: list[Mapping[str, object]] = []
    for store, database in stores.items():
        runtime.migrate(database)
        rows += [{"store": store, **row} for row in asyncio.run(_all(bench, database))]
    return Measured(ok=all(row["holds"] for row in rows), rows=rows)


async def _all(bench: Bench, database: str) -> list[Mapping[str, object]]:
    from outlive.lab.services import thread_graphs  # noqa: PLC0415 - LangGraph is slow to import

    rows = []
    logs = [bench.place(f"{number}.log") for number in (1, 2)]
    async with (
        runtime.Outlive(database, thread_graphs.served, slots=0) as api,
        Process(database, AGENTS, slots=1, log=logs[0]) as one,
        Process(database, AGENTS, slots=1, log=logs[1]) as other,
    ):
        for case in CASES:
            rows.append(_row(case, await _Messages(api=api, case=case, processes=(one, other)).came()))
            bench.step()
    return rows


# ---------------------------------------------------------------- one case


@dataclass(kw_only=True)
class _Messages:
    """The two messages of a case, and the two processes that drive whatever is to be driven."""

    api: runtime.Outlive
    case: Case
    processes: Sequence[Process]

    async def came(self) -> Came:
        """Play the case to its end."""
        first = (await self._submit(FIRST, policy.job(on_busy="enqueue"))).run
        await self._line(at="notify", turn=self._turn(FIRST))
        if self.case.meets is Meets.TORN:
            await self._stopped(first.run_id)
        message, refused = await self._message()
        if self.case.meets is Meets.CUT and message is not None:
            await self._stopped(first.run_id)
        elif (await self.api.run(first.run_id)).stop_requested_at is not None:
            await self._ended(first.run_id)  # by the message: not before it has let go does the gate open
        self._open()
        ended = [await self._ended(run.run_id) for run in (first, message) if run is not None]
        if refused is None and self._taken_back(ended[-1]):
            await self._line(refunded=self._turn(FIRST))
        return self._told(ended[0], ended[1] if message else None, refused)

    async def _submit(self, turn: str, rules: policy.RunPolicy) -> Any:
        given = {"turn": self._turn(turn), "gate": self.case.name, "steps": []}
        return await self.api.submit("booking", given, thread=self.case.name, policy=rules)

    async def _message(self) -> tuple[Run | None, str | None]:
        rules = policy.job(on_busy=self.case.on_busy, on_torn=self.case.on_torn)
        try:
            return (await self._submit(MESSAGE, rules)).run, None
        except errors.OutliveError as refusal:
            return None, refusal.code

    def _turn(self, turn: str) -> str:
        return f"{self.case.name}: {turn}"

    def _open(self) -> None:
        for process in self.processes:
            process.open(self.case.name)

    async def _stopped(self, run_id: str) -> None:
        await self.api.stop(run_id)
        await self._ended(run_id)

    async def _ended(self, run_id: str) -> Run:
        await hearing.ended(self.api, run_id, WITHIN)
        return await self.api.run(run_id)

    async def _line(self, **fields: Any) -> None:
        """Wait until either process says so."""
        waiting = {asyncio.create_task(each.line(within=WITHIN, **fields)) for each in self.processes}
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()

    def _taken_back(self, message: Run) -> bool:
        return message.state is State.SUCCEEDED and _takes_back(self.case)

    def _told(self, first: Run, message: Run | None, refused: str | None) -> Came:
        lines = [line for process in self.processes for line in process.said()]
        done: dict[str, Counter[str]] = {}
        for turn in (FIRST, MESSAGE):
            named = [line["done"] for line in lines if "done" in line and line["turn"] == self._turn(turn)]
            done[turn] = Counter(named)
        charged, refunded = (
            Counter(turn for line in lines for turn in (FIRST, MESSAGE) if line.get(word) == self._turn(turn))
            for word in ("charged", "refunded")
        )
        return Came(
            first=first, message=message, refused=refused, done=done, charged=charged, refunded=refunded
        )


# ---------------------------------------------------------------- what is asserted


def _meets_a_torn_thread(case: Case) -> bool:
    """Whether the message comes to run on a thread that the first run has left part-way."""
    return case.meets is not Meets.BUSY or case.on_busy.displaces


def _refuses(case: Case) -> bool:
    return case.meets is not Meets.TORN and case.on_busy is OnBusy.REJECT


def _takes_back(case: Case) -> bool:
    if _refuses(case):
        return False
    displaced = case.meets is not Meets.TORN and case.on_busy is OnBusy.ROLLBACK
    return _meets_a_torn_thread(case) and (displaced or case.on_torn is OnTorn.ROLLBACK)


def _lets_in(case: Case) -> bool:
    if _refuses(case):
        return False
    return not _meets_a_torn_thread(case) or _takes_back(case) or case.on_torn is not OnTorn.REJECT


def _finishes_the_first(case: Case) -> bool:
    if not _lets_in(case):
        return _refuses(case)
    return not _meets_a_torn_thread(case) or (case.on_torn is OnTorn.RESUME and not _takes_back(case))


def _holds(case: Case, came: Came) -> bool:
    first = Counter(NODES if _finishes_the_first(case) else NODES[:2])
    let_in = came.message is not None and came.message.state is State.SUCCEEDED
    return (
        let_in == _lets_in(case)
        and came.done == {FIRST: first, MESSAGE: Counter(NODES if let_in else ())}
        and came.charged == Counter((FIRST, MESSAGE) if let_in else (FIRST,))
        and came.refunded == Counter((FIRST,) if _takes_back(case) else ())
        and _in_turn(came)
    )


def _in_turn(came: Came) -> bool:
    """Whether the message's run began when the first one had ended."""
    message = came.message
    if message is None or message.started_at is None or came.first.ended_at is None:
        return True
    return message.started_at >= came.first.ended_at


def _row(case: Case, came: Came) -> Mapping[str, object]:
    return {
        "the first run": case.meets.value,
        "on_busy": case.on_busy.value,
        "on_torn": case.on_torn.value,
        "the message": _answer(came),
        "and the first": came.first.state.value,
        "executed of the first": _counted(came.done[FIRST]),
        "executed of the message": _counted(came.done[MESSAGE]),
        "charges": came.charged.total(),
        "refunds": came.refunded.total(),
        "holds": _holds(case, came),
    }


def _answer(came: Came) -> str:
    if came.message is None:
        return f"refused: {came.refused}"
    failed = came.message.public()["error"]
    return f"failed: {failed['code']}" if failed else came.message.state.value


def _counted(done: Counter[str]) -> str:
    return " ".join(f"{name}x{done[name]}" if done[name] > 1 else name for name in NODES if done[name]) or "-"


EXPERIMENT = Experiment(
    name="threads",
    title="A message on a busy thread, and on one that was left part-way",
    asserts="What is declared happens: nothing runs beside another run, no finished node runs again unless"
    " `restart` or `rollback` says so, no charge is repeated, and what is taken back is refunded.",
    play=_play,
)
