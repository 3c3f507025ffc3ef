"""What the leaving of viewers means is decided on the record, by who watches it, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

import outlive
from core import record, support
from outlive import Reason, State, disconnect, presence, signals
from outlive.model import Event

GRACE = 60
"""Seconds that pass only when a test makes them: by setting every time in the record back."""


@pytest.fixture
def _look_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for unwatched runs but the test itself."""

    async def never(self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(disconnect.Disconnect, "run", never)


by_hand = pytest.mark.usefixtures("_look_out_by_hand")


def chatty(name: str = "agent", **changes: Any) -> Any:
    @outlive.agent(name, policy=outlive.chat(**changes))
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "hello"
        await asyncio.Event().wait()

    return agent


def pass_time(database: str, seconds: float) -> None:
    """Let time pass for the record's view of who watches: everything happened earlier."""
    by = round(seconds * 1000)
    record.execute(database, f"UPDATE runs SET created_at = created_at - {by}")
    record.execute(
        database,
        f"UPDATE presence SET joined_at = joined_at - {by}, lease_until = lease_until - {by},"
        f" left_at = left_at - {by}",
    )


def viewers(database: str) -> list[record.Row]:
    return record.rows(database, "SELECT * FROM presence ORDER BY joined_at")


async def watching(served: outlive.Outlive, run_id: str, **options: Any) -> AsyncGenerator[Event, None]:
    """A stream that has joined: its first event is here."""
    stream = served.watch(run_id, **options)
    async with asyncio.timeout(support.WITHIN):
        await anext(stream)
    return stream


async def left(served: outlive.Outlive, stream: AsyncGenerator[Event, None]) -> None:
    """Leave, and wait until the record says so."""
    await stream.aclose()
    await support.until(lambda: not served.presence._tasks)


async def looked(served: outlive.Outlive) -> int:
    return await served._disconnect.look_once()


@pytest.mark.invariant("I11")
async def test_the_last_viewer_who_leaves_without_grace_stops_the_run_as_a_disconnect(database: str) -> None:
    async with support.serving(database, chatty(grace=0)) as served:
        run_id = (await served.submit("agent", viewer="mine")).run.run_id
        await left(served, await watching(served, run_id, viewer="mine"))
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert (support.end(events)["state"], support.end(events)["reason"]) == ("stopped", "disconnect")
    assert (run.state, run.stop_reason) == (State.STOPPED, Reason.DISCONNECT)
    (viewer,) = viewers(database)
    assert (viewer["viewer"], viewer["cause"]) == ("mine", "disconnect")


@by_hand
async def test_a_second_viewer_keeps_the_run_and_its_leaving_does_not(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent")).run.run_id
        first, second = await watching(served, run_id), await watching(served, run_id)
        await left(served, first)
        pass_time(database, GRACE + 1)
        await served.presence.keep_once()
        assert await looked(served) == 0
        await left(served, second)
        assert await looked(served) == 0  # its grace has only begun
        pass_time(database, GRACE + 1)
        assert await looked(served) == 1
        assert support.end(await support.story(served, run_id))["reason"] == "disconnect"


@by_hand
async def test_a_viewer_who_returns_within_the_grace_keeps_the_run(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent")).run.run_id
        await left(served, await watching(served, run_id))
        pass_time(database, GRACE - 1)
        again = await watching(served, run_id)
        pass_time(database, 2)
        assert await looked(served) == 0
        assert (await served.run(run_id)).state is State.RUNNING
        await left(served, again)
        await served.stop(run_id)
        assert support.end(await support.story(served, run_id))["reason"] == "requested"


@by_hand
async def test_a_viewer_who_returns_while_the_stop_is_on_its_way_keeps_the_run(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent")).run.run_id
        pass_time(database, GRACE + 1)
        with support.held_script(served, "stop") as stopping:  # it was read that nobody watches
            looking = asyncio.create_task(looked(served))
            await stopping.arrival()
            stream = await watching(served, run_id)
        assert await looking == 0
        run = await served.run(run_id)
        assert (run.state, run.stop_requested_at) == (State.RUNNING, None)
        await stream.aclose()
        await served.stop(run_id)
        await support.story(served, run_id)


@by_hand
async def test_a_run_that_nobody_ever_watched_has_its_grace_from_the_submit_on(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE), slots=0) as served:
        run_id = (await served.submit("agent")).run.run_id
        assert await looked(served) == 0
        pass_time(database, GRACE + 1)
        assert await looked(served) == 1
        run = await served.run(run_id)
    assert (run.state, run.reason) == (State.STOPPED, Reason.DISCONNECT)  # queued, so stopped at once


async def test_whoever_submits_as_a_viewer_watches_from_the_first_moment(database: str) -> None:
    async with support.serving(database, chatty(grace=0), slots=0) as served:
        watched = (await served.submit("agent", thread="1", viewer="me")).run.run_id
        unwatched = (await served.submit("agent", thread="2")).run.run_id
        assert support.end(await support.story(served, unwatched))["reason"] == "disconnect"
        assert (await served.run(watched)).state is State.QUEUED
        pass_time(database, presence.LEASE + 1)  # the client never came for its stream
        await looked(served)
        assert (await served.run(watched)).state is State.STOPPED


@by_hand
async def test_a_viewer_whose_process_dies_counts_as_gone_when_its_lease_is_over(database: str) -> None:
    """Nothing of that process runs any more: no leave, no extension."""
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent")).run.run_id
        stream = await watching(served, run_id)
        pass_time(database, presence.LEASE + GRACE - 2)
        assert await looked(served) == 0
        pass_time(database, 4)
        assert await looked(served) == 1
        await support.story(served, run_id)
        await stream.aclose()


@by_hand
async def test_the_presence_of_a_live_viewer_is_extended_with_how_far_it_read(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with aclosing(served.watch(run_id)) as events:
            await anext(events)
            await anext(events)
            pass_time(database, presence.LEASE + GRACE + 1)
            await served.presence.keep_once()
            assert await looked(served) == 0
            assert viewers(database)[0]["last_seq"] == 1  # the second is in the viewer's hands, not past them
        await served.stop(run_id)
        await support.story(served, run_id)


@by_hand
async def test_a_viewer_let_go_by_a_shutdown_keeps_the_run_for_a_while(database: str) -> None:
    async with support.serving(database, chatty(grace=0)) as staying:
        async with outlive.Outlive(database, [chatty(grace=0)], slots=0) as going:
            run_id = (await going.submit("agent", viewer="me")).run.run_id
            stream = await watching(going, run_id, viewer="me")  # open to the last
        assert viewers(database)[0]["cause"] == "ours"
        assert await looked(staying) == 0
        pass_time(database, presence.HOLD - 2)
        assert await looked(staying) == 0
        pass_time(database, 4)
        assert await looked(staying) == 1
        assert support.end(await support.story(staying, run_id))["reason"] == "disconnect"
        await stream.aclose()


@by_hand
async def test_a_run_declared_to_continue_runs_on_when_everybody_has_left(database: str) -> None:
    go_on = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await go_on.wait()
        yield 2

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent", viewer="me")).run.run_id
        await left(served, await watching(served, run_id, viewer="me"))
        pass_time(database, 10_000)
        assert await looked(served) == 0
        go_on.set()
        events = await support.story(served, run_id)
    assert support.data(events) == [1, 2]
    assert support.end(events)["state"] == "succeeded"


@pytest.mark.invariant("I13")
async def test_a_viewer_who_is_cut_off_while_joining_does_not_stay(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent")).run.run_id
        with support.held_before("join") as joining:
            viewer = asyncio.create_task(served.result(run_id))
            await joining.arrival()
            viewer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await viewer
            for _ in range(300):  # time enough for a leave that does not wait for its join
                await asyncio.sleep(0)
        await support.until(lambda: not served.presence._tasks)
        (row,) = viewers(database)
        assert row["left_at"] is not None
        await served.stop(run_id)
        await support.story(served, run_id)


async def test_a_viewer_who_saw_the_end_left_because_of_it(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        run = await served.result(run_id)
        await support.until(lambda: not served.presence._tasks)
    (viewer,) = viewers(database)
    assert (viewer["cause"], viewer["last_seq"]) == ("end", run.last_seq)


async def test_viewers_who_saw_the_end_within_a_moment_are_recorded_in_one_write(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1

    monkeypatch.setattr(presence, "LINGER", 3600.0)
    async with support.serving(database, agent) as served:
        writes: list[str] = []
        write = served.store.write

        async def noted(script: Any, **options: Any) -> Any:
            writes.append(script.name)
            return await write(script, **options)

        monkeypatch.setattr(served.store, "write", noted)
        run_ids = [(await served.submit("agent")).run.run_id for _ in range(5)]
        for run_id in run_ids:
            await served.result(run_id)
        assert not {"leave", "leave_at_end"} & set(writes)
    # Closing waits for nothing that can be done at once.
    assert [name for name in writes if name.startswith("leave")] == ["leave_at_end"]
    assert [(row["run_id"], row["cause"]) for row in viewers(database)] == [(one, "end") for one in run_ids]


async def test_watching_what_is_not_yours_neither_shows_nor_keeps_it(database: str) -> None:
    async with support.serving(database, chatty(grace=GRACE)) as served:
        run_id = (await served.submit("agent", tenant="one")).run.run_id
        with pytest.raises(outlive.OutliveError, match="no run"):
            async with aclosing(served.watch(run_id, tenant="two", viewer="spy")) as events:
                await anext(events)
        assert viewers(database) == []
        await served.stop(run_id, tenant="one")
        await support.story(served, run_id)


async def test_many_unwatched_runs_are_all_stopped(sqlite_url: str) -> None:
    async with support.serving(sqlite_url, chatty(grace=GRACE), slots=0) as served:
        listening = support.heard(served)
        for number in range(130):
            await served.submit("agent", thread=str(number))
        pass_time(sqlite_url, GRACE + 1)
        served.store.hub.wake(("viewers",))
        await listening.of(signals.StopRequested, count=130)
    assert {row["reason"] for row in record.rows(sqlite_url, "SELECT reason FROM runs")} == {"disconnect"}
