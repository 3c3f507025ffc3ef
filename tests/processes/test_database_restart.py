"""A database that dies under running work delays it, and nothing is reported that is not on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import errors, lease, runtime, signals
from outlive.model import EventKind, Renewed
from outlive.store import reads
from outlive.testing.postgres import PostgresServer

PATIENT = lease.Timing(lease=60.0, renew_every=0.5)
"""Longer than a restart takes on the slowest machine."""
HASTY = lease.Timing(lease=1.0, renew_every=0.1, margin=0.2)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_database(own_server: PostgresServer) -> Iterator[str]:
    """A database on a server that a test may kill."""
    database = own_server.create_database()
    runtime.migrate(database)
    yield database
    assert record.faults(database) == []
    own_server.drop_database(database)


def restart(server: PostgresServer) -> None:
    server.kill()
    server.start()


@pytest.mark.invariant("I15")
async def test_S17_a_database_that_dies_while_events_and_a_verdict_are_due_gets_them_all_when_it_is_back(
    own_server: PostgresServer, own_database: str
) -> None:
    go_on, dead = asyncio.Event(), asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield [context.input, 1]
        await go_on.wait()
        yield [context.input, 2]
        if context.input == "goes on":
            await dead.wait()
            yield [context.input, 3]

    async with support.serving(own_database, agent, timing=PATIENT) as served:
        listening = support.heard(served)
        runs = {name: (await served.submit("agent", name)).run.run_id for name in ("ends", "goes on")}
        for run_id in runs.values():
            await support.seen(served, run_id, 1)
        await asyncio.to_thread(own_server.kill)
        go_on.set()
        await listening.of(signals.StoreRetried)  # it tries, and nothing is lost of what it holds
        assert listening.all(signals.RunEnded) == []
        dead.set()
        await asyncio.to_thread(own_server.start)
        for name, run_id in runs.items():
            events = await support.story(served, run_id)
            assert support.data(events) == [[name, step] for step in range(1, len(events) - 1)]
            assert len(support.data(events)) == (2 if name == "ends" else 3)
            assert {event.epoch for event in events} == {1}
            assert support.end(events)["state"] == "succeeded"
        assert listening.all(signals.RecordingFailed) == []
        assert listening.all(signals.RunSwept) == []


@pytest.mark.invariant("I15")
async def test_S17_a_database_that_stays_away_for_longer_than_a_lease_costs_an_attempt_and_not_the_run(
    own_server: PostgresServer, own_database: str
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.attempt
        if context.attempt == 1:
            await asyncio.Event().wait()

    async with support.serving(own_database, agent, timing=HASTY) as served:
        listening = support.heard(served)
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        await asyncio.to_thread(own_server.kill)
        await listening.of(signals.LeaseLost, run_id=run_id)
        assert listening.all(signals.RunEnded) == []
        await asyncio.to_thread(own_server.start)
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert [event.epoch for event in events if event.kind is EventKind.CHUNK] == [1, 3]
    assert (support.end(events)["state"], run.losses) == ("succeeded", 1)


async def test_a_restart_of_the_database_is_no_proof_that_anybody_died(
    own_server: PostgresServer, own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops every token of a healthy fleet: taking those for dead would double all work at once."""
    go_on = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await go_on.wait()

    async def still_away() -> None:
        raise OSError("not back yet")

    def not_renewed(claims: Any, seconds: float) -> list[Renewed]:
        raise errors.StoreUnavailable

    async with (
        support.serving(own_database, agent, timing=PATIENT) as served,
        support.serving(own_database, agent, timing=PATIENT, slots=0) as other,
    ):
        listening = support.heard(served, other)
        run_id = (await served.submit("agent")).run.run_id
        await support.seen(served, run_id, 1)
        monkeypatch.setattr(served.store, "renew", not_renewed)
        monkeypatch.setattr(served.store._direct, "_connect", still_away)  # type: ignore[attr-defined]
        await asyncio.to_thread(restart, own_server)
        await support.until(lambda: other.store._direct.listening)  # type: ignore[attr-defined]
        missed = round(PATIENT.renew_every * 1.6 * 1000)
        async with asyncio.timeout(support.WITHIN):
            while not (  # noqa: ASYNC110 - the database sets no event
                suspects := await other.store.read(reads.suspects(missed, 10))
            ):
                await asyncio.sleep(0)
        workers = {suspect.worker for suspect in suspects}
        assert await other.store.dead(workers) == workers  # so it seems
        for _ in range(3):
            assert await other._sweeper.sweep_once() == 0
        monkeypatch.undo()
        go_on.set()
        events = await support.story(other, run_id)
    assert {event.epoch for event in events} == {1}
    assert listening.all(signals.RunSwept) == []
