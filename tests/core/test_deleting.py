"""A thread that is deleted is gone for everybody, whatever still runs on it, and nothing of it comes back."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

import outlive
from core import record, support
from outlive import effects, errors, signals, subscription
from outlive.model import Admitted, EventKind
from outlive.store import deleting
from outlive.testing.paying import Paying

OURS = ("runs", "events", "event_bodies", "run_keys", "presence", "outbox", "threads")


def left(database: str, *tables: str) -> dict[str, int]:
    """How many rows each of these tables has, of those that have any."""
    counts = {name: len(record.rows(database, f"SELECT 1 FROM {name}")) for name in tables or OURS}
    return {name: count for name, count in counts.items() if count}


def made(root: pathlib.Path) -> int:
    """How many files the agents' runs have."""
    return len(list(root.rglob("made.txt")))


@support.job("brief")
async def brief(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Ends at once."""
    yield context.input


class Held:
    """An agent that stands still in its middle."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

        @support.job("held")
        async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
            yield "x" * 300_000
            yield 1
            await self.gate.wait()
            yield 2
            await asyncio.Event().wait()

        self.agent = agent


async def test_deleting_a_thread_takes_its_runs_events_bodies_keys_and_files(
    database: str, tmp_path: pathlib.Path
) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(context.artifact("made.txt").write_text, "hello")
        yield "x" * 300_000

    async with support.serving(database, agent, artifacts=tmp_path / "files") as served:
        run_id = ""
        for key in ("a", "b"):
            run_id = (await served.submit("agent", thread="t", key=key)).run.run_id
            await served.result(run_id)
        assert made(tmp_path) == 2
        deleted = await served.delete_thread("t")
        assert deleted.public() == {
            "thread": "t",
            "deleted": True,
            "runs": 2,
            "stopped": [],
            "effects_kept": 0,
            "effects_open": [],
            "cleared": True,
        }
        for refused in (served.thread("t"), served.delete_thread("t"), served.run(run_id, tenant=None)):
            with pytest.raises(errors.NotFound):
                await refused
        assert await served.runs() == []
        assert await served.threads() == []
        assert made(tmp_path) == 0
    assert left(database) == {}


async def test_a_message_to_the_same_name_makes_a_new_and_empty_thread(database: str) -> None:
    async with support.serving(database, brief) as served:
        first = await served.submit("brief", 1, thread="t", key="k")
        await support.story(served, first.run.run_id)
        before = await served.thread("t")
        await served.delete_thread("t")
        again = await served.submit("brief", 1, thread="t", key="k")
        assert again.admitted is Admitted.CREATED
        assert again.run.run_id != first.run.run_id
        story = await support.story(served, again.run.run_id)
        thread = await served.thread("t")
    assert [event.thread_seq for event in story] == [1, 2, 3]
    assert thread.thread_id != before.thread_id
    assert record.faults(database) == []


async def test_another_tenants_thread_is_not_found_and_stays(database: str) -> None:
    async with support.serving(database, brief) as served:
        run = (await served.submit("brief", thread="t", tenant="ann")).run
        await support.story(served, run.run_id)
        with pytest.raises(errors.NotFound):
            await served.delete_thread("t", tenant="bob")
        assert (await served.thread("t", tenant="ann")).thread == "t"


@pytest.mark.invariant("I2")
async def test_resurrected_threads_an_executor_that_lost_its_thread_writes_nothing_more(
    database: str,
) -> None:
    """Neither its events nor its verdict; what it tries is refused and counted, and its slot is free."""
    held = Held()
    async with support.serving(database, held.agent) as served:
        listening = support.heard(served)
        run_id = (await served.submit("held", thread="t")).run.run_id
        waits = (await served.submit("held", thread="t")).run.run_id
        await support.seen(served, run_id, 2)
        with support.held_script(served, "append") as late:
            held.gate.set()
            await late.arrival()
            deleted = await served.delete_thread("t")
            assert set(deleted.stopped) == {run_id, waits}
            late.open()
            await listening.of(signals.StaleWriteRefused, run_id=run_id, write=signals.Write.EVENT)
        await support.until(lambda: served._worker.free == served.slots)
    assert listening.all(signals.RunEnded) == []
    assert left(database) == {}


async def test_an_executor_that_is_idle_learns_at_once_that_its_thread_is_gone(database: str) -> None:
    held = Held()
    async with support.serving(database, held.agent) as served:
        listening = support.heard(served)
        run_id = (await served.submit("held", thread="t")).run.run_id
        await support.seen(served, run_id, 2)
        await served.delete_thread("t")
        await listening.of(signals.LeaseLost, run_id=run_id)
        await support.until(lambda: served._worker.free == served.slots)
    assert left(database) == {}


async def test_followers_of_a_run_and_of_its_thread_come_to_an_end(database: str) -> None:
    held = Held()

    async def whole(events: AsyncGenerator[Any, None]) -> tuple[list[EventKind], bool]:
        kinds: list[EventKind] = []
        async with aclosing(events):
            try:
                async for event in events:
                    kinds.append(event.kind)  # noqa: PERF401 - what was seen counts also where it fails
            except errors.Deleted:
                return kinds, True
        return kinds, False

    async with support.serving(database, held.agent) as served:
        run_id = (await served.submit("held", thread="t")).run.run_id
        await support.seen(served, run_id, 2)
        thread = await served.thread("t")
        of_run = asyncio.create_task(whole(served.watch(run_id)))
        of_thread = asyncio.create_task(whole(outlive_follow_thread(served, thread.thread_id)))
        await support.until(lambda: len(served.presence._viewers) == 1)
        await served.delete_thread("t")
        async with asyncio.timeout(support.WITHIN):
            kinds, gone = await of_run
            assert gone or kinds[-1] is EventKind.END
            assert (await of_thread)[1]


def outlive_follow_thread(served: outlive.Outlive, thread_id: str) -> AsyncGenerator[Any, None]:
    """What the stream of a thread follows."""
    return subscription.follow_thread(served.store, thread_id)


async def test_what_a_crash_left_of_a_thread_is_taken_away_by_whoever_finds_it(database: str) -> None:
    async with support.serving(database, brief) as served:
        run = (await served.submit("brief", thread="t")).run
        await support.story(served, run.run_id)
        await served.store.write(deleting.bury(run.thread_id, force=False))  # and no further
        with pytest.raises(errors.NotFound):
            await served.thread("t")
        assert left(database, "threads", "runs") == {"threads": 1, "runs": 1}
        assert await served.deletion().clear_once() == 1
        assert await served.deletion().clear_once() == 0
    assert left(database) == {}


async def test_who_reads_slowly_is_told_of_the_deletion_and_not_of_pruned_events(database: str) -> None:
    """What follows the cursor is gone already, and something behind it still there."""
    async with support.serving(database, brief) as served:
        run = (await served.submit("brief", thread="t")).run
        await support.story(served, run.run_id)
        await served.store.write(deleting.bury(run.thread_id, force=False))
        await served.store.write(deleting.clear_events(run.thread_id, 2))
        for following in (
            subscription.follow(served.store, run.run_id, after=1),
            subscription.follow_thread(served.store, run.thread_id, after=1),
        ):
            async with aclosing(following):
                with pytest.raises(errors.Deleted):
                    await anext(following)
        assert await served.deletion().clear_once() == 1


async def test_messages_and_deletions_of_one_thread_race_and_every_message_is_answered(database: str) -> None:
    """None of them fails, none waits for ever, and what is left in the end is sound."""
    async with (
        support.serving(database, brief) as one,
        support.serving(database, brief, slots=0) as two,
    ):

        async def send(number: int) -> outlive.Run:
            served = (one, two)[number % 2]
            return (await served.submit("brief", number, thread="t", key=f"key {number % 7}")).run

        async def delete(number: int) -> int:
            try:
                return len((await (one, two)[number % 2].delete_thread("t")).runs)
            except errors.NotFound:
                return 0

        async def turn(number: int) -> None:
            done = await asyncio.gather(
                *(send(7 * number + n) for n in range(4)), delete(number), return_exceptions=True
            )
            assert [one for one in done if isinstance(one, Exception) and not _told(one)] == []

        async with asyncio.timeout(support.WITHIN):
            for number in range(10):
                await turn(number)
            await delete(0)
            await one.deletion().clear_once()
    assert left(database) == {}


def _told(failure: Exception) -> bool:
    """The same key with another number is refused, as ever."""
    return isinstance(failure, errors.KeyConflict)


# ---------------------------------------------------------------- effects


async def charged(served: outlive.Outlive, paying: Paying) -> outlive.Run:
    run_id = (await served.submit("pays", "b1", thread="t")).run.run_id
    await support.story(served, run_id)
    return await served.run(run_id)


def paying_agent(http: httpx.AsyncClient) -> Any:
    @support.job("pays")
    async def pays(context: outlive.Context) -> AsyncGenerator[Any, None]:
        async def pay() -> Any:
            answer = await http.post("/charge", json={"reference": context.input})
            answer.raise_for_status()
            return {"reference": answer.json()["reference"]}

        yield await effects.once("charge", key=context.input, call=pay)

    return pays


@pytest.fixture
def paying(tmp_path: pathlib.Path) -> Any:
    """A provider."""
    with Paying(tmp_path) as provider:
        yield provider


async def test_what_a_deleted_thread_executed_stays_in_the_ledger(database: str, paying: Paying) -> None:
    async with (
        httpx.AsyncClient(base_url=paying.url) as http,
        support.serving(database, paying_agent(http)) as served,
    ):
        await charged(served, paying)
        deleted = await served.delete_thread("t")
        (effect,) = await served.effects.newest()
        again = await charged(served, paying)
    assert (deleted.effects, deleted.open) == (1, ())
    assert effect.known == "done"
    assert again.state is outlive.State.SUCCEEDED
    assert len(paying.lines()) == 1, "the ledger still knows that it was bought"


@pytest.mark.invariant("I9")
async def test_an_open_effect_keeps_its_thread_unless_it_is_deleted_by_force(
    database: str, paying: Paying
) -> None:
    """By force the run is ended, its call becomes unknown, and a person can still say what it came to."""
    paying.script("charge", {"hang": True})
    async with (
        httpx.AsyncClient(base_url=paying.url, timeout=60) as http,
        support.serving(database, paying_agent(http)) as served,
    ):
        run_id = (await served.submit("pays", "b1", thread="t")).run.run_id
        await support.until(lambda: paying.lines("effect"))
        with pytest.raises(errors.ThreadUnsettled) as refused:
            await served.delete_thread("t")
        assert refused.value.run_id == run_id
        assert (await served.run(run_id)).state is outlive.State.RUNNING
        deleted = await served.delete_thread("t", force=True)
        assert deleted.stopped == (run_id,)
        (effect,) = await served.effects.newest()
        assert deleted.open == (effect.effect_id,)
        assert effect.known == "unknown"
        await asyncio.to_thread(paying.release)
        settled = await served.effects.settle(effect.effect_id, executed=True, by="ann")
        assert settled.known == "reconciled"
    assert left(database) == {}


async def test_what_a_live_run_would_have_to_undo_is_undone_after_its_thread_is_deleted(
    database: str, paying: Paying
) -> None:
    """Deleting ends it as a stop does, and its policy holds; the undoing is on a thread of its own."""
    executed, never = asyncio.Event(), asyncio.Event()

    async with httpx.AsyncClient(base_url=paying.url) as http:

        async def ask(what: str, reference: str) -> Any:
            answer = await http.post(f"/{what}", json={"reference": reference})
            answer.raise_for_status()
            return {"reference": answer.json()["reference"]}

        async def refund(done: Any) -> Any:
            return await ask("refund", done.result["reference"])

        @support.job("pays", compensate="always")
        async def pays(context: outlive.Context) -> AsyncGenerator[Any, None]:
            yield await effects.once(
                "charge",
                key="b1",
                call=lambda: ask("charge", "b1"),
                compensate=refund,
            )
            executed.set()
            await never.wait()

        async with support.serving(database, pays) as served:
            listening = support.heard(served)
            run_id = (await served.submit("pays", thread="t")).run.run_id
            async with asyncio.timeout(support.WITHIN):
                await executed.wait()
            deleted = await served.delete_thread("t")
            assert deleted.stopped == (run_id,)
            await listening.of(signals.RunEnded, state=outlive.State.SUCCEEDED)
            charge = next(one for one in await served.effects.newest() if one.name == "charge")
            [aftermath] = await served.runs()
    assert charge.known == "compensated"
    assert (aftermath.agent, aftermath.state) == ("outlive.aftermath", outlive.State.SUCCEEDED)
    assert [line["step"] for line in paying.lines()] == ["charge", "refund"]
