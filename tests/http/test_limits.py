"""Limits: how much one principal, and one agent, may have under way, over all processes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import keyed_service
import native_service
import psycopg
import pytest
from keyed_service import Keyed

import outlive
from outlive import errors, limits, policy, seams
from outlive.limits import Limits
from outlive.model import Submission
from outlive.store import moves

NEW = {"agent": "gated", "input": 1}


def refused(answer: httpx.Response, says: str) -> int:
    """Check that a limit refused it, and return after how many seconds to ask again."""
    found = native_service.refused(answer, 429, "limit_reached")
    assert says in found["title"]
    return int(answer.headers["retry-after"])


@contextlib.asynccontextmanager
async def two_tenants(database: str, **options: Any) -> AsyncIterator[tuple[Keyed, httpx.AsyncClient, Any]]:
    """A service, a client of one tenant and one of another."""
    async with keyed_service.serving(database, **options) as keyed:
        ann, bob = await keyed.key("ann"), await keyed.key("bob")
        async with keyed.client(ann.text) as one, keyed.client(bob.text) as other:
            yield keyed, one, other


async def asked(database: str, text: str) -> list[Any]:
    """Run one statement beside the service."""

    def run() -> list[Any]:
        if database.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as connection:
                connection.execute("PRAGMA busy_timeout = 5000")
                rows = connection.execute(text).fetchall()
                connection.commit()
                return rows
        with psycopg.connect(database, autocommit=True) as server:
            cursor = server.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    return await asyncio.to_thread(run)


async def ended(client: httpx.AsyncClient, run: str) -> None:
    """Follow a run to its end."""
    answer = await client.get(f"/runs/{run}/events", headers=native_service.STREAM)
    assert '"closed":true' in answer.text


async def test_a_principal_may_have_so_many_runs_that_are_not_over(database: str) -> None:
    bound = Limits(running=2)
    async with two_tenants(database, limits=bound) as (keyed, ann, bob):
        runs = [(await ann.post("/runs", json=NEW)).json()["run_id"] for _ in range(2)]
        for body in (NEW, NEW | {"thread": "t"}):
            assert refused(await ann.post("/runs", json=body), "your limit: 2 runs that are not over") == 5
        assert (await bob.post("/runs", json=NEW)).status_code == 201
        listed = (await ann.get("/runs")).json()["runs"]
        assert sorted(run["run_id"] for run in listed) == sorted(runs)  # what was refused left nothing
        assert (await ann.get("/threads/t")).status_code == 404
        keyed.gate.set()
        for run in runs:
            await ended(ann, run)
        assert (await ann.post("/runs", json=NEW)).status_code == 201


async def test_a_queued_run_counts_for_both_bounds(database: str) -> None:
    async with two_tenants(database, limits=Limits(running=3, queued=1)) as (_, ann, _bob):
        on_thread = NEW | {"thread": "t"}
        assert (await ann.post("/runs", json=on_thread)).json()["state"] == "running"
        assert (await ann.post("/runs", json=on_thread)).json()["state"] == "queued"
        assert refused(await ann.post("/runs", json=on_thread), "your limit: 1 runs that wait") == 5


async def test_runs_made_within_a_minute_are_bounded_and_the_answer_says_for_how_long(database: str) -> None:
    async with two_tenants(database, limits=Limits(per_minute=2)) as (keyed, ann, bob):
        keyed.gate.set()
        for _ in range(2):
            await ended(ann, (await ann.post("/runs", json=NEW)).json()["run_id"])
        wait = refused(await ann.post("/runs", json=NEW), "your limit: 2 runs made within a minute")
        assert 50 <= wait <= 60
        assert (await bob.post("/runs", json=NEW)).status_code == 201
        await asked(database, "UPDATE quota_uses SET created_at = created_at - 70000")
        assert (await ann.post("/runs", json=NEW)).status_code == 201
        left = await asked(database, "SELECT count(*) FROM quota_uses WHERE subject LIKE 'principal/ann/%'")
        assert left == [(1,)]  # what counts no more is forgotten


async def test_an_agent_is_bounded_whoever_uses_it(database: str) -> None:
    async with two_tenants(database, agent_limits={"gated": Limits(running=1)}) as (_, ann, bob):
        assert (await ann.post("/runs", json=NEW)).status_code == 201
        refused(await bob.post("/runs", json=NEW), "this agent's limit: 1 runs")


async def test_what_makes_no_run_is_not_counted(database: str) -> None:
    async with two_tenants(database, limits=Limits(running=1, per_minute=1)) as (_, ann, _bob):
        key = {"Idempotency-Key": "k"}
        made = await ann.post("/runs", json=NEW, headers=key)
        again = await ann.post("/runs", json=NEW, headers=key)
        assert (again.status_code, again.json()["run_id"]) == (200, made.json()["run_id"])
        refused(await ann.post("/runs", json=NEW, headers={"Idempotency-Key": "other"}), "your limit")
        assert (await ann.get("/runs")).status_code == 200


async def test_a_key_that_was_refused_is_free(database: str) -> None:
    async with two_tenants(database, limits=Limits(running=1)) as (keyed, ann, _bob):
        first = (await ann.post("/runs", json=NEW)).json()["run_id"]
        key = {"Idempotency-Key": "k"}
        refused(await ann.post("/runs", json=NEW, headers=key), "your limit")
        keyed.gate.set()
        await ended(ann, first)
        assert (await ann.post("/runs", json=NEW, headers=key)).status_code == 201


async def test_a_body_is_bounded_by_the_least_of_the_service_and_the_agent(database: str) -> None:
    small = {"gated": Limits(request_bytes=300)}
    async with two_tenants(database, agent_limits=small, limits=Limits(request_bytes=1000)) as (_, ann, _bob):
        assert (await ann.post("/runs", json=NEW | {"input": "x" * 100})).status_code == 201
        for size in (400, 2000):
            answer = await ann.post("/runs", json=NEW | {"input": "x" * size})
            found = native_service.refused(answer, 413, "too_large", "body")
            assert str(300 if size == 400 else 1000) in found["title"]


# ------------------------------------------------------------ over processes


@contextlib.asynccontextmanager
async def several(database: str, count: int, **options: Any) -> AsyncIterator[list[outlive.Outlive]]:
    """So many processes' worth of runtimes on one database."""
    released = asyncio.Event()

    @outlive.agent("gated", policy=policy.job(on_busy="enqueue"))
    async def gated(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.input
        await released.wait()

    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(outlive.Outlive(database, [gated], **options))
            for _ in range(count)
        ]
        released.set()


@pytest.mark.parametrize("thread", [None, "t"])
async def test_no_two_processes_take_the_last_place(database: str, thread: str | None) -> None:
    bound = {"limits": Limits(running=5), "agent_limits": {"gated": Limits(running=7)}}
    async with several(database, 3, **bound) as runtimes:
        wanted = [
            runtimes[number % 3].submit("gated", number, tenant="ann", principal="p", thread=thread)
            for number in range(30)
        ]
        answers = await asyncio.gather(*wanted, return_exceptions=True)
        made = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert len(made) == 5
        assert all(isinstance(answer, errors.LimitReached) for answer in answers if answer not in made)
        others = [
            runtimes[number % 3].submit("gated", number, tenant=f"tenant-{number}") for number in range(12)
        ]
        rest = await asyncio.gather(*others, return_exceptions=True)
        assert len([answer for answer in rest if not isinstance(answer, BaseException)]) == 2


async def test_a_submit_whose_reply_was_lost_is_not_refused_its_own_place(database: str) -> None:
    async with several(database, 1, slots=0) as (runtime,):
        quotas = limits.of_principal("ann", "p", Limits(running=1, queued=1, per_minute=1))
        for thread in (None, "t"):
            new = Submission(
                run_id=seams.new_id(),
                tenant=f"tenant-{thread}",
                agent="gated",
                input="1",
                fingerprint="f",
                policy=policy.job(),
                thread=thread,
                quotas=quotas,
            )
            repeated = moves.submit(new, None)
            first = await runtime.store.write(repeated)
            assert await runtime.store.write(repeated) == first
            await runtime.stop(first.run.run_id, tenant=None)
            await asked(database, "UPDATE quota_uses SET created_at = created_at - 70000")


async def test_without_limits_nothing_is_counted(database: str) -> None:
    async with several(database, 1) as (runtime,):
        await runtime.submit("gated", 1, tenant="ann")
        await runtime.submit("gated", 1, tenant="ann", thread="t")
        assert await asked(database, "SELECT count(*) FROM quota_uses") == [(0,)]


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, "1"])
def test_a_bound_is_a_whole_number(bound: Any) -> None:
    for kind in limits.Kind:
        with pytest.raises(errors.Misconfigured, match=kind.value):
            Limits(**{kind.value: bound})
