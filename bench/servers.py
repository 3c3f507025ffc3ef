"""What is measured through HTTP: the same graph behind the bare handler, that handler with as many commits as
Outlive makes, and Outlive.  Asked in turns, so that a machine that changes its pace changes it for all three.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from bench import client, graphs
from bench.processes import NOTHING, BrokenError, Child, Cpu, cpu_of_children
from bench.report import Report, Target

Tell = Callable[[str], None]
KINDS = ("bare", "bare+commits", "outlive")
ALLOWED = Target(bound=1.25)
CLIENTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """How much is measured."""

    first: int
    talks: int
    rounds: int
    runs: int
    resumes: int
    profiled: int


FULL = Amount(first=80, talks=9, rounds=6, runs=120, resumes=60, profiled=120)
QUICK = Amount(first=16, talks=2, rounds=2, runs=48, resumes=12, profiled=48)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Two databases of one kind; ``server`` is the process of their server, if they have one."""

    name: str
    bare: str
    ours: str
    server: int | None = None


@dataclass(kw_only=True, slots=True)
class Samples:
    """What was measured of each kind of server."""

    values: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu: dict[str, Cpu] = field(default_factory=lambda: dict.fromkeys(KINDS, NOTHING))
    database: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    count: int = 0

    def median(self, kind: str) -> float:
        """The middle of one kind's."""
        return statistics.median(self.values[kind])


class Bench:
    """The two servers over one place, and how each kind is asked."""

    def __init__(self, place: Place, bare: Child, ours: Child, ports: dict[str, int]) -> None:
        self.place = place
        self._children = {"bare": bare, "bare+commits": bare, "outlive": ours}
        self._ports = ports
        self._commits: dict[tuple[str, int], int] = {}

    def port(self, kind: str) -> int:
        """Where a kind of server listens."""
        return self._ports[kind]

    def cpu(self, kind: str) -> Cpu:
        """What the server of a kind has taken so far."""
        return self._children[kind].cpu()

    def database_cpu(self) -> float:
        """What the database's server has taken so far."""
        return cpu_of_children(self.place.server) if self.place.server else 0.0

    @contextlib.asynccontextmanager
    async def connections(self, kind: str, count: int = 1) -> AsyncIterator[list[client.Connection]]:
        """Connect some clients."""
        async with contextlib.AsyncExitStack() as stack:
            yield [await stack.enter_async_context(client.Connection(self.port(kind))) for _ in range(count)]

    async def post(self, connection: client.Connection, kind: str, agent: str, clients: int) -> client.Answer:
        """Run a graph and read it to its end; raises ``BrokenError`` unless it all came and succeeded."""
        asked: dict[str, Any] = {"agent": agent, "input": {"steps": []}}
        if kind == "bare+commits":
            commits = self._commits[agent, clients]
            asked |= {"durable": True, "commits": commits, "spread": graphs.CHUNKS // max(1, commits - 3)}
        answer = await connection.post("/runs", asked)
        least = graphs.CHUNKS if agent == "talk" else 3
        if answer.chunks < least or b'"state":"succeeded"' not in answer.body:
            raise BrokenError(f"{kind} did not stream a whole run: {answer.body[-400:]!r}")
        return answer

    async def together(self, kind: str, runs: int, agent: str = "once", clients: int = CLIENTS) -> float:
        """Have some clients run a graph until there were ``runs``; returns seconds."""
        left = iter(range(runs))

        async def one(connection: client.Connection) -> None:
            for _ in left:
                await self.post(connection, kind, agent, clients)

        async with self.connections(kind, clients) as connections:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for connection in connections:
                    group.create_task(one(connection))
            return time.perf_counter() - began

    async def count_commits(self, agent: str, clients: int, runs: int) -> tuple[float, float]:
        """Count what a run commits, ours and the bare handler's saver; the difference is bare+commits'."""
        found = []
        for kind in ("outlive", "bare"):
            before = await self._committed(kind)
            await self.together(kind, runs, agent, clients)
            await asyncio.sleep(0.1)  # a viewer's leaving is committed after its stream
            found.append((await self._committed(kind) - before) / runs)
        self._commits[agent, clients] = max(0, round(found[0] - found[1]))
        return found[0], found[1]

    async def _committed(self, kind: str) -> int:
        async with self.connections(kind) as (connection,):
            answer = await connection.get("/bench/commits", "application/json")
            return int(answer.body.partition(b":")[2].strip(b" }"))

    async def profile(self, kind: str, runs: int) -> dict[str, float]:
        """Run under a profiler; returns which part of the event loop's time went where."""
        async with self.connections(kind) as (connection,):
            await connection.post("/bench/profile", {})
            await self.together(kind, runs)
            answer = await connection.get("/bench/profile", "application/json")
        found: dict[str, float] = client.parsed(answer)
        whole = sum(found.values())
        return {part: seconds / whole for part, seconds in found.items()}


@contextlib.asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Bench]:
    """Start both servers over a place."""
    async with (
        Child("bench.server", "bare", place.bare) as bare,
        Child("bench.server", "ours", place.ours) as ours,
    ):
        theirs, mine = int(await bare.says("listening on ")), int(await ours.says("listening on "))
        yield Bench(place, bare, ours, {"bare": theirs, "bare+commits": theirs, "outlive": mine})


async def measure(place: Place, amount: Amount, report: Report, tell: Tell) -> None:
    """Measure one place."""
    async with opened(place) as bench:
        tell(f"{place.name}: warming up and counting commits")
        commits = await _prepare(bench)
        tell(f"{place.name}: POST to first chunk")
        first = await _first_chunk(bench, amount.first)
        tell(f"{place.name}: {graphs.CHUNKS} chunks to the end")
        talks = await _talks(bench, amount.talks)
        tell(f"{place.name}: runs per second at {CLIENTS} clients")
        rates = await _rates(bench, amount)
        tell(f"{place.name}: resuming the last 10 of {graphs.CHUNKS}")
        resumed = await _resume(bench, amount.resumes)
        tell(f"{place.name}: where the time goes")
        shares = {kind: await bench.profile(kind, amount.profiled) for kind in ("bare", "outlive")}
    _compare(
        report, place.name, {"POST to first chunk": (first, 1e3, "ms"), "2,000 chunks": (talks, 1e3, "ms")}
    )
    _compare_rates(report, place.name, rates, shares)
    report.add(f"{place.name}: resume of the last 10 of 2,000", resumed * 1e3, "ms", Target(bound=5))
    report.tables += [
        _table(
            place.name,
            {"POST to first chunk, ms": (first, 1e3), "2,000 chunks, ms": (talks, 1e3)},
            rates,
            commits,
        ),
        _anatomy(place.name, rates, shares),
    ]


async def _prepare(bench: Bench) -> dict[str, tuple[float, float]]:
    for kind in ("bare", "outlive"):
        await bench.together(kind, 40)
        await bench.together(kind, 1, "talk", 1)
    return {
        "one node": await bench.count_commits("once", 1, 20),
        "2,000 chunks": await bench.count_commits("talk", 1, 2),
        f"one node, {CLIENTS} clients": await bench.count_commits("once", CLIENTS, 80),
    }


async def _first_chunk(bench: Bench, count: int) -> Samples:
    samples = Samples(count=count)
    async with contextlib.AsyncExitStack() as stack:
        asked = {kind: (await stack.enter_async_context(bench.connections(kind)))[0] for kind in KINDS}
        for kind in _turns(count):
            before = bench.cpu(kind)
            samples.values[kind].append((await bench.post(asked[kind], kind, "once", 1)).first)
            samples.cpu[kind] += bench.cpu(kind) - before
    return samples


async def _talks(bench: Bench, count: int) -> Samples:
    samples = Samples(count=count)
    async with contextlib.AsyncExitStack() as stack:
        asked = {kind: (await stack.enter_async_context(bench.connections(kind)))[0] for kind in KINDS}
        for kind in _turns(count):
            before, database = bench.cpu(kind), bench.database_cpu()
            samples.values[kind].append((await bench.post(asked[kind], kind, "talk", 1)).whole)
            samples.cpu[kind] += bench.cpu(kind) - before
            samples.database[kind] += bench.database_cpu() - database
    return samples


async def _rates(bench: Bench, amount: Amount) -> Samples:
    samples = Samples(count=amount.rounds * amount.runs)
    for kind in _turns(amount.rounds):
        before, database = bench.cpu(kind), bench.database_cpu()
        samples.values[kind].append(amount.runs / await bench.together(kind, amount.runs))
        samples.cpu[kind] += bench.cpu(kind) - before
        samples.database[kind] += bench.database_cpu() - database
    return samples


def _turns(count: int) -> list[str]:
    """Each kind ``count`` times, so that no kind always follows the same other."""
    orders = itertools.cycle(itertools.permutations(KINDS))
    return [kind for _ in range(count) for kind in next(orders)]


async def _resume(bench: Bench, count: int) -> float:
    async with bench.connections("outlive") as (connection,):
        whole = await bench.post(connection, "outlive", "talk", 1)
        last = whole.body.rpartition(b"id: ")[2].split(b"\n")[0].decode()
        run, _, seq = last.partition(":")
        path = f"/runs/{run}/events?after={int(seq) - 10}"
        times = []
        for _ in range(count):
            answer = await connection.get(path)
            if answer.body.count(b"id: ") != 10:
                raise BrokenError(f"A resumed stream did not hold ten events: {answer.body!r}")
            times.append(answer.whole)
    return statistics.median(times)


# ---------------------------------------------------------------- figures


def _compare(report: Report, place: str, found: dict[str, tuple[Samples, float, str]]) -> None:
    for name, (samples, scale, unit) in found.items():
        for kind in KINDS:
            report.add(f"{place}: {name}, {kind}", samples.median(kind) * scale, unit)
        ratio = samples.median("outlive") / samples.median("bare+commits")
        more = (samples.median("outlive") - samples.median("bare+commits")) * scale
        why = f"Outlive takes {more:.1f} {unit} more. {_why(samples)}"
        report.add(f"{place}: {name}, against bare+commits", ratio, "x", ALLOWED, why=why)
        report.add(f"{place}: {name}, against bare", samples.median("outlive") / samples.median("bare"), "x")


def _why(samples: Samples, against: str = "bare+commits") -> str:
    ours, theirs = (samples.cpu[kind].per(samples.count) for kind in ("outlive", against))
    more = ours - theirs
    return (
        f"Its server takes {ours.total * 1e3:.1f} ms of processor time per run,"
        f" {more.total * 1e3:+.1f} against {against}: {more.loop * 1e3:+.1f} in the event loop,"
        f" {more.threads * 1e3:+.1f} in other threads."
    )


def _compare_rates(report: Report, place: str, rates: Samples, shares: dict[str, dict[str, float]]) -> None:
    name = f"{place}: runs at {CLIENTS} clients"
    for kind in KINDS:
        report.add(f"{name}, {kind}", rates.median(kind), "runs/s")
        report.add(f"{name}, {kind}, server CPU", rates.cpu[kind].per(rates.count).total * 1e3, "ms/run")
    ratio = rates.median("bare+commits") / rates.median("outlive")
    parts = {kind: _parts(rates.cpu[kind].per(rates.count), shares[kind]) for kind in ("bare", "outlive")}
    grown = {part: ms - parts["bare"].get(part, 0.0) for part, ms in parts["outlive"].items()}
    most = sorted(grown.items(), key=lambda item: -item[1])[:4]
    where = "Against bare, by part: " + ", ".join(f"{part} {ms:+.2f} ms" for part, ms in most) + "."
    report.add(f"{name}, time against bare+commits", ratio, "x", ALLOWED, why=f"{_why(rates)} {where}")
    at_least = Target(bound=1.0, at_least=True)
    against_bare = rates.median("outlive") / rates.median("bare")
    why = f"{_why(rates, 'bare')} {where}"
    report.add(f"{name}, rate against bare", against_bare, "x", at_least, why=why)


def _table(
    place: str,
    times: dict[str, tuple[Samples, float]],
    rates: Samples,
    commits: dict[str, tuple[float, float]],
) -> Table:
    table = Table(title=f"{place}: the same graph, medians", title_justify="left")
    table.add_column("figure")
    for column in (*KINDS, "/ bare+commits", "/ bare"):
        table.add_column(column, justify="right")
    for name, (samples, scale) in times.items():
        _row(table, name, {kind: samples.median(kind) * scale for kind in KINDS})
    _row(table, f"runs/s, {CLIENTS} clients", {kind: rates.median(kind) for kind in KINDS})
    cpu = {kind: rates.cpu[kind].per(rates.count) for kind in KINDS}
    _row(table, "server CPU per run, ms", {kind: cpu[kind].total * 1e3 for kind in KINDS})
    if any(rates.database.values()):
        _row(table, "database CPU per run, ms", {k: rates.database[k] / rates.count * 1e3 for k in KINDS})
    for name, (ours, bare) in commits.items():
        both = bare + max(0, round(ours - bare))
        _row(table, f"commits, {name}", {"bare": bare, "bare+commits": both, "outlive": ours})
    return table


def _row(table: Table, name: str, values: dict[str, float]) -> None:
    cells = [f"{values[kind]:.1f}" for kind in KINDS]
    ratios = [f"{values['outlive'] / values[kind]:.2f}" if values[kind] else "" for kind in KINDS[1::-1]]
    table.add_row(name, *cells, *ratios)


def _anatomy(place: str, rates: Samples, shares: dict[str, dict[str, float]]) -> Table:
    """Where a run's time goes: threads as measured, the loop's shared out as a profiler saw it."""
    table = Table(title=f"{place}: server CPU of a one-node run, ms", title_justify="left")
    table.add_column("part")
    for column in ("bare", "outlive", "difference"):
        table.add_column(column, justify="right")
    parts = {kind: _parts(rates.cpu[kind].per(rates.count), shares[kind]) for kind in ("bare", "outlive")}
    for part in sorted({*parts["bare"], *parts["outlive"]}, key=lambda name: -parts["outlive"].get(name, 0)):
        bare, ours = parts["bare"].get(part, 0.0), parts["outlive"].get(part, 0.0)
        table.add_row(part, f"{bare:.2f}", f"{ours:.2f}", f"{ours - bare:+.2f}")
    return table


def _parts(cpu: Cpu, shares: dict[str, float]) -> dict[str, float]:
    loop = {part: cpu.loop * share * 1e3 for part, share in shares.items()}
    return loop | {"other threads": cpu.threads * 1e3}
