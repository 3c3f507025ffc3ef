"""Appends that share a statement: none waits for another's lock, pays for its claim, or is written twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive import errors
from outlive.model import Appended, Run
from outlive.store import moves, postgres
from outlive.store.appending import FEW
from outlive.store.postgres import PostgresStore
from outlive.testing.store_checks.bench import LEASE, Bench, chunks, kinds
from store import support

WITHIN = 20.0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that were sent, in order."""
    names: list[str] = []
    execute = postgres.execute

    async def told(connection: Any, blocks: Any, step: Any, *seconds: Any) -> Any:
        names.append(step.name)
        return await execute(connection, blocks, step, *seconds)

    monkeypatch.setattr(postgres, "execute", told)
    return names


async def append_to_all(store: PostgresStore, runs: list[Run], *texts: str) -> list[Appended | BaseException]:
    appends = [moves.append(run.claim, chunks(*texts), run.last_seq, LEASE) for run in runs]
    async with asyncio.timeout(WITHIN):
        return await asyncio.gather(*map(store.write, appends), return_exceptions=True)


async def test_appends_that_come_together_share_a_statement_and_are_each_stored_whole(
    empty_dsn: str, sent: list[str]
) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        bench = Bench(one=store, two=store)
        runs = [await bench.running() for _ in range(8)]
        sent.clear()
        answers = await append_to_all(store, runs, "1", "2")
        assert sent == ["append", "append_many"]
        for run, answer in zip(runs, answers, strict=True):
            assert isinstance(answer, Appended)
            assert answer.last_seq == run.last_seq + 2
            assert answer.stored is not None
            events = await bench.events(run.run_id)
            assert kinds(events) == ["attempt", "chunk", "chunk"]
            assert [event.thread_seq for event in events] == [1, 2, 3]
            assert {event.epoch for event in events} == {1}
            last = events[-1]
            assert (answer.stored.thread_seq, answer.stored.at) == (last.thread_seq, last.created_at)


async def test_an_append_of_many_events_goes_alone(empty_dsn: str, sent: list[str]) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        bench = Bench(one=store, two=store)
        runs = [await bench.running() for _ in range(3)]
        sent.clear()
        await append_to_all(store, runs, *map(str, range(FEW + 1)))
        assert sent == ["append"] * 3


@pytest.mark.parametrize("table", ["threads", "runs"])
async def test_a_run_whose_row_is_locked_delays_no_other(table: str, empty_dsn: str) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        bench = Bench(one=store, two=store)
        runs = [await bench.running() for _ in range(6)]
        locked = runs[3]
        column, value = ("thread_id", locked.thread_id) if table == "threads" else ("run_id", locked.run_id)
        async with await postgres.connect(empty_dsn) as holder:
            await holder.execute("BEGIN")
            await holder.execute(f"SELECT 1 FROM {table} WHERE {column} = %s FOR UPDATE".encode(), [value])
            waiting = asyncio.create_task(append_to_all(store, [locked], "1"))
            for text in ("1", "2"):
                others = [await bench.run(run.run_id) for run in runs if run is not locked]
                answers = await append_to_all(store, others, text)
                assert all(isinstance(answer, Appended) for answer in answers)
            assert not waiting.done()
            await holder.execute("ROLLBACK")
            [late] = await waiting
        assert isinstance(late, Appended)
        assert late.last_seq == 2


async def test_a_fence_that_fails_fails_for_its_own_run_alone(empty_dsn: str) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        bench = Bench(one=store, two=store)
        runs = [await bench.running() for _ in range(6)]
        lost = f"UPDATE runs SET epoch = epoch + 1 WHERE run_id = '{runs[2].run_id}'"
        support.postgres_rows(empty_dsn, lost)
        answers = await append_to_all(store, runs, "1")
        assert [type(answer) for answer in answers] == [
            errors.Fenced if number == 2 else Appended for number in range(6)
        ]
        assert kinds(await bench.events(runs[2].run_id)) == ["attempt"]


async def test_a_value_that_cannot_be_stored_is_its_own_runs_trouble_alone(empty_dsn: str) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        bench = Bench(one=store, two=store)
        runs = [await bench.running() for _ in range(4)]
        appends = [
            moves.append(run.claim, chunks("\0" if number == 2 else "1"), run.last_seq, LEASE)
            for number, run in enumerate(runs)
        ]
        async with asyncio.timeout(WITHIN):
            answers = await asyncio.gather(*map(store.write, appends), return_exceptions=True)
        assert [type(answer) for answer in answers] == [
            errors.InvalidInput if number == 2 else Appended for number in range(4)
        ]


async def test_the_same_append_twice_at_once_is_stored_once(empty_dsn: str) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        bench = Bench(one=store, two=store)
        first, run = await bench.running(), await bench.running()
        answers = await append_to_all(store, [first, run, run, run], "1")
        assert [answer.last_seq for answer in answers if isinstance(answer, Appended)] == [2] * 4
        assert kinds(await bench.events(run.run_id)) == ["attempt", "chunk"]
