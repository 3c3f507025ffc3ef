"""The same request again is the same run, unless that one was cut off: then it goes on."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncGenerator
from typing import Any

import psycopg
import pytest

import outlive
from core import record, support
from outlive import Reason, State, errors, failpoints, signals
from outlive.model import Admitted, Submitted
from outlive.store import moves, retry


@support.job()
async def brief(context: outlive.Context) -> AsyncGenerator[Any, None]:
    yield context.input
    yield outlive.Outcome(output=[context.input, context.run.run_id])


@support.job()
async def waiting(context: outlive.Context) -> AsyncGenerator[Any, None]:
    yield context.input
    await asyncio.Event().wait()


def runs_of(database: str) -> int:
    return len(record.rows(database, "SELECT 1 AS found FROM runs"))


@pytest.mark.invariant("I8")
async def test_S21_a_double_click_on_two_processes_makes_one_run(database: str) -> None:
    async with support.serving(database, brief) as one, support.serving(database, brief) as two:
        for round_ in range(25):
            key = f"click {round_}"
            answers = await asyncio.gather(
                *(served.submit("agent", "hello", thread=f"t{round_}", key=key) for served in (one, two) * 2)
            )
            (run_id,) = {answer.run.run_id for answer in answers}
            admitted = sorted(answer.admitted for answer in answers)
            assert admitted.count(Admitted.CREATED) == 1
            assert set(admitted) <= {Admitted.CREATED, Admitted.ATTACHED, Admitted.REPLAYED}
            assert support.data(await support.story(two, run_id)) == ["hello"]
    assert runs_of(database) == 25


@pytest.mark.invariant("I8")
async def test_S21_the_same_key_with_another_body_is_refused_and_names_the_run(database: str) -> None:
    async with support.serving(database, brief) as served:
        run_id = (await served.submit("agent", {"a": 1, "b": 2}, thread="t", key="k")).run.run_id
        other: list[dict[str, Any]] = [{"input": {"a": 1}}, {"thread": "u"}, {"input": {"a": 1, "b": 2.5}}]
        for changes in other:
            body = {"input": {"a": 1, "b": 2}, "thread": "t", **changes}
            with pytest.raises(errors.KeyConflict) as refused:
                await served.submit("agent", body["input"], thread=body["thread"], key="k")
            assert refused.value.run_id == run_id
        same = await served.submit("agent", {"b": 2, "a": 1}, thread="t", key="k")  # order says nothing
        assert same.run.run_id == run_id
        foreign = await served.submit("agent", "else", thread="t", key="k", tenant="other")
        assert foreign.admitted is Admitted.CREATED
        await support.story(served, run_id)
        await support.story(served, foreign.run.run_id)


@pytest.mark.invariant("I3")
async def test_S21_two_keys_with_the_same_text_are_two_runs_in_the_order_of_their_arrival(
    database: str,
) -> None:
    async with support.serving(database, brief) as one, support.serving(database, brief) as two:
        submits = [
            await served.submit("agent", "hello", thread="t", key=f"{number}")
            for number, served in zip(range(6), itertools.cycle([one, two]), strict=False)
        ]
        runs = [submitted.run.run_id for submitted in submits]
        assert len(set(runs)) == 6
        for run_id in runs:
            await support.story(one, run_id)
    order = record.rows(database, "SELECT run_id FROM events WHERE kind = 'end' ORDER BY thread_seq")
    assert [row["run_id"] for row in order] == runs


async def test_S21_a_retry_after_the_run_ended_replays_it(database: str) -> None:
    async with support.serving(database, brief) as served:
        first = await served.submit("agent", "hello", key="k")
        await support.story(served, first.run.run_id)
        again = await served.submit("agent", "hello", key="k")
        assert (again.admitted, again.run.run_id) == (Admitted.REPLAYED, first.run.run_id)
        assert again.run.state is State.SUCCEEDED
    assert runs_of(database) == 1


async def test_S21_a_submit_whose_reply_was_lost_in_the_database_makes_one_run(database: str) -> None:
    def lose() -> None:
        failpoints.disarm()
        raise retry.Transient("the reply was lost")

    async with support.serving(database, brief) as served:
        failpoints.arm("sqlite.committed", lose)
        failpoints.arm("postgres.committed", lose)
        submitted = await served.submit("agent", "hello", key="k")
        events = await support.story(served, submitted.run.run_id)
    assert support.end(events)["state"] == "succeeded"
    assert runs_of(database) == 1


async def repeated(served: outlive.Outlive) -> Submitted:
    return await served.submit("agent", "hello", thread="t", key="k")


@pytest.mark.parametrize("reason", [Reason.DISCONNECT, Reason.TIMEOUT])
async def test_S21_a_run_that_was_cut_off_goes_on_as_a_new_one_that_names_it(
    reason: Reason, database: str
) -> None:
    async with support.serving(database, waiting) as served:
        chain = [(await repeated(served)).run.run_id]
        for _ in range(2):
            await support.seen(served, chain[-1], 1)
            attached = await repeated(served)
            assert (attached.admitted, attached.run.run_id) == (Admitted.ATTACHED, chain[-1])
            await served.stop(chain[-1], reason=reason)
            await support.story(served, chain[-1])
            continued = await repeated(served)
            assert continued.admitted is Admitted.CONTINUED
            assert continued.run.continues == chain[-1]
            assert continued.run.origin == chain[0]
            assert continued.run.thread == "t"
            chain.append(continued.run.run_id)
        await served.stop(chain[-1])
        await support.story(served, chain[-1])
        ended = await repeated(served)
    assert (ended.admitted, ended.run.run_id) == (Admitted.REPLAYED, chain[-1])  # its user stopped it
    assert len(set(chain)) == 3


async def test_S21_a_run_whose_executors_were_all_lost_goes_on_too(database: str) -> None:
    async with support.serving(database, waiting, slots=0) as api:
        first = (await repeated(api)).run.run_id
        record.execute(
            database,
            "UPDATE runs SET state = 'running', epoch = 1, claim_token = 'gone', worker = 'gone',"
            " lease_until = 0, renewed_at = 0, losses = max_losses",
        )
        assert support.end(await support.story(api, first))["state"] == "abandoned"
        again = await repeated(api)
        await api.stop(again.run.run_id)
    assert (again.admitted, again.run.continues) == (Admitted.CONTINUED, first)


async def test_S21_two_retries_of_a_cut_off_run_at_once_make_one_continuation(database: str) -> None:
    async with support.serving(database, waiting) as one, support.serving(database, waiting) as two:
        run_id = (await repeated(one)).run.run_id
        for _ in range(10):
            await one.stop(run_id, reason=Reason.DISCONNECT)
            await support.story(one, run_id)
            answers = await asyncio.gather(*map(repeated, (one, two, one, two)))
            (run_id,) = {answer.run.run_id for answer in answers}
            assert sorted(answer.admitted for answer in answers) == ["attached"] * 3 + ["continued"]
        await one.stop(run_id)
        await support.story(one, run_id)
    assert runs_of(database) == 11


async def test_a_failed_run_is_replayed_and_not_tried_again(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        raise ValueError

    async with support.serving(database, agent) as served:
        first = (await repeated(served)).run.run_id
        await support.story(served, first)
        again = await repeated(served)
    assert (again.admitted, again.run.run_id, again.run.state) == (Admitted.REPLAYED, first, State.FAILED)


async def test_a_submit_whose_caller_goes_away_is_still_made_and_driven(database: str) -> None:
    async with support.serving(database, brief) as served:
        listening = support.heard(served)
        with support.held_script(served, "submit") as submitting:
            caller = asyncio.create_task(repeated(served))
            await submitting.arrival()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        run_id = (await listening.of(signals.RunSubmitted)).run_id
        assert support.end(await support.story(served, run_id))["state"] == "succeeded"
        assert (await repeated(served)).run.run_id == run_id
    assert runs_of(database) == 1


async def test_a_busy_thread_refuses_a_message_when_that_is_declared_and_keeps_its_key_free(
    database: str,
) -> None:
    agent = outlive.agent("agent", policy=outlive.job(on_busy="reject"))(waiting._function)
    async with support.serving(database, agent) as served:
        first = (await served.submit("agent", 1, thread="t")).run.run_id
        with pytest.raises(errors.ThreadBusy) as refused:
            await served.submit("agent", 2, thread="t", key="k")
        assert refused.value.run_id == first
        await served.stop(first)
        await support.story(served, first)
        second = await served.submit("agent", 2, thread="t", key="k")
        assert second.admitted is Admitted.CREATED
        await served.stop(second.run.run_id)
        await support.story(served, second.run.run_id)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("thread", "a\0b"),
        ("thread", "\ud800"),
        ("thread", "x" * 600),
        ("key", ""),
        ("key", "line\nbreak"),
        ("tenant", "\x7f"),
        ("viewer", 7),
        ("input", {"x": object()}),
        ("metadata", {"x": iter(())}),
    ],
)
async def test_a_submit_that_the_record_could_not_hold_is_refused_and_stores_nothing(
    field: str, value: Any, sqlite_url: str
) -> None:
    arguments: dict[str, Any] = {field: value}
    async with support.serving(sqlite_url, brief) as served:
        with pytest.raises(errors.InvalidInput) as refused:
            await served.submit("agent", **arguments)
    assert refused.value.field == field
    assert runs_of(sqlite_url) == 0


@pytest.mark.parametrize("policy", [None, outlive.job()])
async def test_a_run_of_an_agent_that_nobody_knows_is_refused_whatever_its_policy(
    policy: outlive.RunPolicy | None, sqlite_url: str
) -> None:
    async with support.serving(sqlite_url, brief) as served:
        with pytest.raises(errors.NotFound):
            await served.submit("unknown", policy=policy)
    assert runs_of(sqlite_url) == 0


@pytest.mark.invariant("I3")
async def test_two_processes_that_claim_at_once_never_run_two_runs_of_a_thread(database: str) -> None:
    """The query that both ask says `free` to both; only the index cannot be asked too early."""
    running: dict[str, int] = {}
    together = 0

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        nonlocal together
        thread = context.run.thread
        running[thread] = running.get(thread, 0) + 1
        together = max(together, running[thread])
        yield 1
        await asyncio.sleep(0)
        running[thread] -= 1

    async with (
        support.serving(database, agent, slots=4) as one,
        support.serving(database, agent, slots=4) as two,
        support.serving(database, agent, slots=0) as api,
    ):
        runs = [(await api.submit("agent", thread=f"t{number % 5}")).run.run_id for number in range(60)]
        for run_id in runs:
            assert support.end(await support.story(api, run_id))["state"] == "succeeded"
        assert one.ready
        assert two.ready
    assert together == 1


@pytest.mark.invariant("I3")
def test_the_database_itself_refuses_a_second_running_run_of_a_thread(database: str) -> None:
    insert = (
        "INSERT INTO runs (run_id, tenant, thread_id, agent, state, epoch, pos, input, metadata, policy,"
        " on_disconnect, grace_ms, recovery, max_losses, origin, created_at)"
        " VALUES ('{0}', '', 't', 'a', 'running', 1, {0}, '1', '1', '1', 'c', 0, 'r', 0, '{0}', 0)"
    )
    thread = (
        "INSERT INTO threads (thread_id, tenant, external_id, next_pos, last_seq, created_at)"
        " VALUES ('t', '', 't', 3, 0, 0)"
    )
    record.execute(database, thread)
    record.execute(database, insert.format(1))
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        record.execute(database, insert.format(2))
    record.execute(database, "DELETE FROM runs")
    record.execute(database, "DELETE FROM threads")


async def test_a_stop_takes_its_tenant_seriously(sqlite_url: str) -> None:
    async with support.serving(sqlite_url, waiting) as served:
        run_id = (await served.submit("agent", tenant="one")).run.run_id
        with pytest.raises(errors.NotFound):
            await served.store.write(moves.stop(run_id, "two", Reason.REQUESTED))
        await served.stop(run_id, tenant="one")
        await support.story(served, run_id)
