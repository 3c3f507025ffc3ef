"""One process of several on one SQLite file: drives runs, reads all the while, reports on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass

from outlive import policy, seams, signals
from outlive.model import EventKind, NewEvent, Offer, Submission, Verdict
from outlive.states import State
from outlive.store import moves, reads
from outlive.store.sqlite import SqliteStore

LEASE = 60.0
PATIENCE = 40.0
"""Seconds: on a machine with too few cores the threads of two processes wait long for each other."""


@dataclass
class Report:
    """What this process saw."""

    appended: int = 0
    ended: int = 0
    reads: int = 0
    retried: int = 0


async def drive(store: SqliteStore, agent: str, appends: int, report: Report) -> None:
    """Submit one run to a thread of its own, claim it, write to it and settle it."""
    new = Submission(
        run_id=seams.new_id(),
        tenant="t",
        agent=agent,
        input="{}",
        fingerprint="f",
        policy=policy.job(),
        key=agent,
    )
    offer = Offer(worker=seams.new_id(), claim_token=seams.new_id(), lease=LEASE, agents=(agent,))
    await store.write(moves.submit(new, None), budget=PATIENCE)
    [run] = await store.write(moves.claim([offer]), budget=PATIENCE)
    seq = run.last_seq
    for number in range(appends):
        batch = [NewEvent(kind=EventKind.CHUNK, payload=json.dumps({"n": number, "text": "x" * 500}))]
        seq = (await store.write(moves.append(run.claim, batch, seq, LEASE), budget=PATIENCE)).last_seq
        report.appended += 1
    await store.write(moves.settle(run.claim, Verdict(state=State.SUCCEEDED), seq), budget=PATIENCE)
    report.ended += 1


async def read_all_the_while(store: SqliteStore, report: Report) -> None:
    while True:
        for run in await store.read(reads.runs("t", limit=20)):
            await store.read(reads.events(run.run_id, 0, 1000))
            report.reads += 1


async def main(path: str, name: str, runs: int, appends: int) -> None:
    happenings = signals.Signals()
    store = SqliteStore(path, happenings=happenings)
    report = Report()
    with happenings.recording() as seen:
        await store.open()
        readers = [asyncio.create_task(read_all_the_while(store, report)) for _ in range(1)]
        async with asyncio.TaskGroup() as group:
            for number in range(runs):
                group.create_task(drive(store, f"{name}-{number}", appends, report))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await store.close()
    report.retried = sum(isinstance(one, signals.StoreRetried) for one in seen)
    sys.stdout.write(json.dumps(asdict(report)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
