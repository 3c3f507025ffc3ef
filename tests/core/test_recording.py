"""What an agent yields reaches the log: all of it, in order, and before anybody is told."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy
import pytest
from langchain_core.messages import AIMessageChunk

import outlive
from core import record, support
from outlive import errors, recorder, signals
from outlive.model import EventKind

MANY = 50_000


@pytest.mark.invariant("I4")
async def test_an_agent_that_never_awaits_neither_starves_the_loop_nor_fills_the_memory(
    database: str,
) -> None:
    yielded = 0
    waiting: list[int] = []

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        nonlocal yielded
        for number in range(MANY):
            yielded = number
            yield number

    class Watched(recorder.Recorder):
        async def put(self, item: Any) -> None:
            await super().put(item)
            waiting.append(len(self._waiting))

    strides = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outlive.execution.Recorder", Watched)
        async with support.serving(database, agent) as served:
            run_id = (await served.submit("agent")).run.run_id
            following = asyncio.create_task(support.story(served, run_id))
            while not following.done():
                before = yielded
                await asyncio.sleep(0)
                strides.append(yielded - before)
            events = following.result()
    assert support.data(events) == list(range(MANY))
    assert [event.seq for event in events] == list(range(1, MANY + 3))
    assert max(strides) <= 2 * recorder.GROUP_EVENTS
    assert max(waiting) <= recorder.MOST_WAITING


async def test_chunks_larger_than_any_group_are_stored_and_bound_what_waits(database: str) -> None:
    large = "x" * 3_000_000
    waiting: list[int] = []

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(8):
            yield [number, large]
            yield number

    class Watched(recorder.Recorder):
        async def put(self, item: Any) -> None:
            await super().put(item)
            waiting.append(self._bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outlive.execution.Recorder", Watched)
        patch.setattr("outlive.large.INLINE_BYTES", 2 * len(large))
        async with support.serving(database, agent) as served:
            run_id = (await served.submit("agent")).run.run_id
            events = await support.story(served, run_id)
    expected = [item for number in range(8) for item in ([number, large], number)]
    assert support.data(events) == expected
    assert max(waiting) < recorder.MOST_WAITING_BYTES + 2 * len(large)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 255, 256, 257, 600])
async def test_a_burst_of_any_size_is_stored_whole_and_in_order(size: int, sqlite_url: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(size):
            yield number

    async with support.serving(sqlite_url, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        assert support.data(await support.story(served, run_id)) == list(range(size))


@pytest.mark.invariant("I6")
async def test_whatever_a_follower_is_given_is_committed_already(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(40):
            yield number
            await asyncio.sleep(0)

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with asyncio.timeout(support.WITHIN), aclosing(served.follow(run_id)) as events:
            async for event in events:
                stored = await asyncio.to_thread(record.rows, database, "SELECT seq FROM events")
                assert event.seq in {row["seq"] for row in stored}
                state = (await asyncio.to_thread(record.rows, database, "SELECT state FROM runs"))[0]["state"]
                assert (state == "succeeded") >= (event.kind is EventKind.END)


@pytest.mark.invariant("I6")
async def test_an_event_that_is_not_committed_yet_is_shown_to_nobody(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "secret"

    async with support.serving(database, agent) as served:
        with support.held_script(served, "append") as appending, support.held_script(served, "settle"):
            run_id = (await served.submit("agent")).run.run_id
            await appending.arrival()
            served.store.hub.wake_all()
            assert support.data(await served.events(run_id)) == []
        assert support.data(await support.story(served, run_id)) == ["secret"]


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("leave_at", [1, 40])
async def test_S06_what_a_client_saw_before_the_stop_is_kept_and_so_is_the_question(
    leave_at: int, database: str
) -> None:
    asked: list[Any] = []
    kept: list[record.Row] = []
    go_on = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        asked.extend(await asyncio.to_thread(record.rows, database, "SELECT input, last_seq FROM runs"))
        for number in range(100):
            yield f"word {number} "
            await asyncio.sleep(0)
            if number >= leave_at:
                await go_on.wait()

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent", {"text": "my question"})).run.run_id
        seen = support.data(await support.seen(served, run_id, leave_at))
        await served.stop(run_id)
        async with asyncio.timeout(support.WITHIN), aclosing(served.follow(run_id)) as events:
            async for event in events:
                if event.kind is EventKind.END:
                    kept = record.rows(database, "SELECT payload FROM events WHERE kind = 'chunk'")
    assert [json.loads(row["payload"]) for row in kept][:leave_at] == seen
    assert json.loads(asked[0]["input"]) == {"text": "my question"}
    assert asked[0]["last_seq"] == 1  # nothing but the opening of the attempt


async def test_S06_a_run_that_nobody_stops_keeps_the_whole_text_after_its_client_left(database: str) -> None:
    left = asyncio.Event()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(100):
            yield number
            if number == 40:
                await left.wait()

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        async with aclosing(served.watch(run_id)) as events:
            async for event in events:
                if support.data([event]) == [40]:
                    break
        left.set()
        assert support.data(await support.story(served, run_id)) == list(range(100))


class Odd:
    """Nothing about it can be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def odd_things() -> dict[str, Any]:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    point = dataclasses.make_dataclass("Point", ["x", "y"])
    return {
        "nan": float("nan"),
        "infinity": [float("inf"), float("-inf")],
        "bytes": b"\x00\xff",
        "set": {1},
        "enum": enum.Enum("Colour", "RED").RED,  # type: ignore[attr-defined]
        "numpy": numpy.float32(1.5),
        "when": datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC),
        "naive": datetime.datetime(2026, 11, 30),  # noqa: DTZ001 - an agent may hold one
        "uuid": uuid.UUID(int=7),
        "decimal": decimal.Decimal("1.10"),
        "dataclass": point(1, 2),
        "message": AIMessageChunk(content="hello"),
        "surrogate": "half \ud83d",
        "separators": "a\u2028b\u2029c\u0085d\r\ne\x00f",
        "big": 2**80,
        "cyclic": cyclic,
        "odd": Odd(),
        "generator": (number for number in range(3)),
    }


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


async def test_S18_values_that_json_cannot_hold_cost_one_warning_and_not_the_run(database: str) -> None:
    things = odd_things()

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for thing in things.values():
            yield thing
        yield outlive.Chunk(data=things, mode="values")
        yield outlive.Outcome(output=things)

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert support.end(events)["state"] == "succeeded"
    assert support.notes(events) == ["unencodable"]
    for text in (*(event.payload for event in events), run.output):
        assert text is not None
        json.loads(text, parse_constant=_refuse)
        assert text.isascii()
    assert len(support.data(events)) == len(things) + 1
    assert isinstance(things["message"], AIMessageChunk)
    assert list(things["generator"]) == [0, 1, 2]


async def test_S16_text_with_every_line_separator_comes_back_as_it_was(database: str) -> None:
    text = "".join(map(chr, range(0x20))) + "\x7f\x85\u2028\u2029\ufeffdata:\n\n: \U0001f600"

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield text
        yield ""
        yield outlive.Note(code="odd", message=text)
        yield outlive.Outcome(output=text)

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent", text, metadata={"text": text})).run.run_id
        events = await support.story(served, run_id)
        run = await served.run(run_id)
    assert support.data(events) == [text, ""]
    assert all(event.payload.isascii() and event.payload.isprintable() for event in events)
    assert run.public()["input"] == run.public()["output"] == run.public()["metadata"]["text"] == text


async def test_S18_a_mode_that_the_database_cannot_hold_costs_nothing(database: str) -> None:
    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield outlive.Chunk(data=1, mode="a\0b\ud800c")

    async with support.serving(database, agent) as served:
        run_id = (await served.submit("agent")).run.run_id
        events = await support.story(served, run_id)
    assert support.end(events)["state"] == "succeeded"
    assert events[1].mode == "a?b?c"


@pytest.mark.invariant("I15")
@pytest.mark.parametrize(
    ("script", "times", "loud"),
    [
        ("append", 1, None),
        ("settle", 2, None),
        ("append", 3, signals.RecordingFailed),
        ("settle", 3, signals.FinalisationFailed),
    ],
)
async def test_S17_what_cannot_be_stored_is_tried_again_then_loud_and_never_a_success(
    script: str, times: int, loud: type[signals.Happening] | None, database: str
) -> None:
    failures = 0

    @support.job()
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        await asyncio.sleep(0)
        yield 2

    async with support.serving(database, agent, timing=support.QUICK) as served:
        listening = support.heard(served)
        write = served.store.write

        async def failing(step: Any, **options: Any) -> Any:
            nonlocal failures
            if step.name == script and failures < times:
                failures += 1
                raise errors.StoreUnavailable(f"The database did not take {step.name} in time.")
            return await write(step, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(served.store, "write", failing)
            run_id = (await served.submit("agent")).run.run_id
            events = await support.story(served, run_id)
            run = await served.run(run_id)
    assert len(listening.all(signals.RecordingFailed)) == (loud is signals.RecordingFailed)
    assert len(listening.all(signals.FinalisationFailed)) == (loud is signals.FinalisationFailed)
    assert (support.end(events)["state"], run.losses) == ("succeeded", int(loud is not None))
    assert support.data([event for event in events if event.epoch == run.epoch]) == [1, 2]
