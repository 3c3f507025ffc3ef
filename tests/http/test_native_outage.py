"""A database that goes away under a service: refused and told so at the edge, held on to underneath."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator

import native_service
import pytest
from native_service import STREAM, refused

from outlive import lease, runtime, signals
from outlive.testing import hearing
from outlive.testing.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that the tests here may stop."""
    with PostgresServer() as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> str:
    """A migrated database on it."""
    dsn = server.create_database()
    runtime.migrate(dsn)
    return dsn


@contextlib.asynccontextmanager
async def down(server: PostgresServer) -> AsyncIterator[None]:
    """The server is away while this lasts."""
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@pytest.mark.invariant("I15")
async def test_S17_while_the_database_is_away_everything_is_503_and_running_work_is_kept_up(
    server: PostgresServer, database: str
) -> None:
    patient = lease.Timing(lease=60.0)
    async with native_service.serving(database, timing=patient) as service:
        run = await service.create("gated", "g")
        path = f"/runs/{run['run_id']}"
        body, key = {"agent": "echo", "input": 1}, {"Idempotency-Key": "k"}
        async with service.stream(f"{path}/events") as (_, events):
            got = [await anext(events), await anext(events)]
            async with down(server):
                service.gate("g").set()  # from here on the run has something to record
                answers = await asyncio.gather(
                    service.http.post("/runs", json=body, headers=key),
                    service.http.post("/runs", json=body, headers=key | STREAM),
                    service.http.post(f"{path}/stop"),
                    service.http.get(path),
                    service.http.get("/runs"),
                    service.http.get(f"{path}/events", headers=STREAM),
                    service.http.get("/threads/t"),
                )
                cut = [event async for event in events]
        for answer in answers:
            refused(answer, 503, "store_unavailable")
            assert answer.headers["retry-after"] == "1"
        assert (await service.http.get("/health")).status_code == 200
        # The follower was told, without a terminal event, and goes on from where it was.
        assert [event.event for event in cut] == ["error"]
        assert json.loads(cut[0].data)["code"] == "store_unavailable"
        got += await service.follow(f"{path}/events", headers={"Last-Event-ID": got[-1].id})
        assert native_service.data(got) == ["before", "after"]
        assert native_service.seqs(got) == [1, 2, 3, 4]
        record = (await service.http.get(path)).json()
        assert (record["state"], record["epoch"], record["losses"]) == ("succeeded", 1, 0)
        # Whatever became of the refused submits and the refused stop: the same key is one run.
        made = (await service.http.post("/runs", json=body, headers=key)).json()
        assert (await service.http.post("/runs", json=body, headers=key)).json()["run_id"] == made["run_id"]
        listed = (await service.http.get("/runs?agent=echo")).json()["runs"]
        assert [found["run_id"] for found in listed] == [made["run_id"]]


@pytest.mark.invariant("I15")
async def test_work_that_outlasts_its_lease_without_a_database_is_lost_and_done_again_never_a_success(
    server: PostgresServer, database: str
) -> None:
    short = lease.Timing(lease=1.5, renew_every=0.2, margin=0.3)
    async with native_service.serving(database, timing=short) as service:
        heard = hearing.Hearing(service.outlive.signals)
        run = await service.create("gated", "g")
        async with service.stream(f"/runs/{run['run_id']}/events") as (_, events):
            await anext(events)
            async with down(server):
                service.gate("g").set()
                await heard.of(signals.LeaseLost, run_id=run["run_id"])
                assert heard.all(signals.RunEnded) == []
        events_ = await service.follow(f"/runs/{run['run_id']}/events")
        record = (await service.http.get(f"/runs/{run['run_id']}")).json()
        assert record["state"] == "succeeded"
        assert record["losses"] >= 1  # a slow machine may lose so short a lease more than once
        assert [event.event for event in events_].count("attempt") == record["losses"] + 1
        assert native_service.data(events_)[-2:] == ["before", "after"]
        assert len(heard.all(signals.RunEnded, run_id=run["run_id"])) == 1
