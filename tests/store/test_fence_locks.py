"""What waits for a checkpoint that is being written in PostgreSQL, and who wins when they race."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from outlive.agents import fenced_saver
from outlive.model import Claim, Run, Swept, Verdict
from outlive.states import State
from outlive.store import moves, postgres, sql
from outlive.store.script import Script
from outlive.testing.store_checks.bench import LEASE, Bench
from store import support
from store.stepping import Stepping, blocked, stepping

DONE = Verdict(state=State.SUCCEEDED)


@pytest.fixture
async def bench(empty_dsn: str) -> Any:
    factory = support.postgres_factory(empty_dsn)
    async with factory() as one, factory() as two:
        yield Bench(one=one, two=two, backdoor=support.postgres_backdoor(empty_dsn))


@contextlib.asynccontextmanager
async def checkpoint_under_way(dsn: str, run: Run) -> AsyncIterator[Stepping[None]]:
    """A checkpoint that is written and proven, and not yet committed."""
    async with stepping(dsn, fenced_saver.hold(run.claim)) as writing:
        await writing.rest()
        yield writing


async def test_the_runs_own_appends_renewals_and_checkpoints_do_not_wait_for_a_checkpoint(
    bench: Bench, empty_dsn: str
) -> None:
    run = await bench.running()
    async with checkpoint_under_way(empty_dsn, run), checkpoint_under_way(empty_dsn, run):
        assert (await bench.append(run, "1")).last_seq == 2
        assert [one.run_id for one in await bench.renew([run.claim])] == [run.run_id]


def ending(run: Run, how: str) -> Script[Any]:
    """A move that takes the run from its holder."""
    match how:
        case "settle":
            return moves.settle(run.claim, DONE, run.last_seq)
        case "settle and shut the holder out":
            return moves.settle(run.claim, DONE, run.last_seq, raise_epoch=True)
        case _:
            return moves.hand_back(run.claim, (), run.last_seq, LEASE)


ENDINGS = ["settle", "settle and shut the holder out", "hand back"]


@pytest.mark.parametrize("how", ENDINGS)
async def test_whoever_ends_a_run_waits_for_its_checkpoint(how: str, bench: Bench, empty_dsn: str) -> None:
    run = await bench.running()
    async with checkpoint_under_way(empty_dsn, run) as writing:
        waiting = await blocked(empty_dsn, bench.two.write(ending(run, how)))
        assert (await bench.run(run.run_id)).state is State.RUNNING
        await writing.commit()
    await waiting
    assert (await bench.run(run.run_id)).state is not State.RUNNING


async def test_a_sweep_waits_for_the_checkpoint_of_the_run_that_it_takes(
    bench: Bench, empty_dsn: str
) -> None:
    run = await bench.running()
    suspect = await bench.suspect(run)
    async with checkpoint_under_way(empty_dsn, run) as writing:
        sweeping = await blocked(empty_dsn, bench.two.write(moves.sweep(suspect, early=True)))
        await writing.commit()
    assert await sweeping is Swept.REQUEUED


async def prove_late(dsn: str, claim: Claim) -> int:
    """Prove a claim by what was so a second ago: the statement looks, is held up, and then locks."""
    text = sql.load(sql.Dialect.POSTGRESQL)["check_fence"].statements[0]
    late = text.replace("FROM runs WHERE", "FROM (SELECT pg_sleep(1) OFFSET 0) AS late, runs WHERE")
    late = late.replace("FOR KEY SHARE", "FOR KEY SHARE OF runs")
    assert (late.count("pg_sleep"), late.count("OF runs")) == (1, 1)
    async with await postgres.connect(dsn) as connection:
        return (await connection.execute(late.encode(), fenced_saver.proof(claim).params)).rowcount


async def held_up(dsn: str) -> None:
    """Wait until it has looked, and is held up."""
    text = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    async with asyncio.timeout(20), await postgres.connect(dsn) as watch:
        while not await (await watch.execute(text)).fetchall():
            pass


@pytest.mark.parametrize("appends", [0, 1])
@pytest.mark.parametrize("how", [*ENDINGS, "sweep"])
async def test_a_proof_that_looked_before_its_run_was_taken_is_refused(
    how: str, appends: int, bench: Bench, empty_dsn: str
) -> None:
    run = await bench.running()
    proving = asyncio.get_running_loop().create_task(prove_late(empty_dsn, run.claim))
    await held_up(empty_dsn)
    for _ in range(appends):  # the row has moved on already when it is taken
        run = replace(run, last_seq=(await bench.append(run, "1")).last_seq)
    sweep = moves.sweep(await bench.suspect(run), early=True)
    await bench.two.write(sweep if how == "sweep" else ending(run, how))
    assert not proving.done()
    assert await proving == 0


async def test_a_proof_that_looked_before_an_append_holds(bench: Bench, empty_dsn: str) -> None:
    run = await bench.running()
    proving = asyncio.get_running_loop().create_task(prove_late(empty_dsn, run.claim))
    await held_up(empty_dsn)
    await bench.append(run, "1")
    assert not proving.done()
    assert await proving == 1
