"""A run on a thread of its own is made in one statement: whole, once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlive.model import Admitted, Submission, Submitted
from outlive.states import State
from outlive.store import Store, moves
from outlive.testing.store_checks.bench import Backdoor, Bench, Factory, kinds
from store import support


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> tuple[Factory, Backdoor]:
    """Each kind of database, and a way behind its stores' backs."""
    if request.param == "sqlite":
        path = request.getfixturevalue("sqlite_path")
        return support.sqlite_factory(path), support.sqlite_backdoor(path)
    dsn = request.getfixturevalue("empty_dsn")
    return support.postgres_factory(dsn), support.postgres_backdoor(dsn)


@pytest.fixture
async def bench(place: tuple[Factory, Backdoor]) -> AsyncIterator[Bench]:
    factory, door = place
    async with factory() as one, factory() as two:
        yield Bench(one=one, two=two, backdoor=door)


async def counts(bench: Bench) -> dict[str, int]:
    tables = ("threads", "runs", "events", "run_keys", "presence")
    return {table: (await bench.sql(f"SELECT count(*) FROM {table}"))[0][0] for table in tables}


async def made(store: Store, new: Submission, **offer: Any) -> Submitted:
    begun = await store.write(moves.begin(new, **offer))
    assert begun is not None
    return begun


async def test_it_starts_at_once_with_its_attempt_its_key_and_its_viewer(bench: Bench) -> None:
    new = bench.submission(key="k", viewer="v")
    begun = await made(bench.one, new, offer=bench.offer())
    assert begun.claimed
    assert (begun.run.state, begun.run.epoch, begun.run.pos, begun.run.last_seq) == (State.RUNNING, 1, 1, 1)
    assert begun.run.thread == new.run_id
    assert begun.run == await bench.run(new.run_id)
    (opening,) = await bench.events(new.run_id)
    assert (opening.kind, opening.seq, opening.thread_seq, opening.data) == ("attempt", 1, 1, {"epoch": 1})
    assert set((await counts(bench)).values()) == {1}
    assert (await bench.append(begun.run, "1")).last_seq == 2
    await bench.settle(await bench.run(new.run_id))
    assert kinds(await bench.events(new.run_id)) == ["attempt", "chunk", "end"]


@pytest.mark.parametrize("why", ["no offer", "not yet", "another waits"])
async def test_it_is_queued_when_it_cannot_start(bench: Bench, why: str) -> None:
    if why == "another waits":
        await bench.queued()
    new = bench.submission(not_before=4e9) if why == "not yet" else bench.submission()
    begun = await made(bench.one, new, offer=None if why == "no offer" else bench.offer())
    assert (begun.run.state, begun.run.epoch, begun.run.last_seq, begun.claimed) == (
        State.QUEUED,
        0,
        0,
        False,
    )
    assert await bench.events(new.run_id) == []
    if why == "no offer":
        taken = await bench.claim()
        assert taken is not None
        assert taken.run_id == new.run_id
        assert kinds(await bench.events(new.run_id)) == ["attempt"]


async def test_a_taken_key_makes_nothing_and_submit_answers_with_its_run(bench: Bench) -> None:
    first = await made(bench.one, bench.submission(key="k"), offer=None)
    before = await counts(bench)
    second = bench.submission(key="k", viewer="v")
    assert await bench.two.write(moves.begin(second, bench.offer())) is None
    assert await counts(bench) == before
    answer = await bench.two.write(moves.submit(second, None))
    assert (answer.run.run_id, answer.admitted) == (first.run.run_id, Admitted.ATTACHED)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_repeat_after_a_lost_reply_makes_nothing_and_submit_finds_the_run(
    bench: Bench, key: str | None
) -> None:
    new, offer = bench.submission(key=key, viewer="v"), bench.offer()
    begun = await made(bench.one, new, offer=offer)
    before = await counts(bench)
    assert await bench.one.write(moves.begin(new, offer)) is None
    assert await counts(bench) == before
    answer = await bench.one.write(moves.submit(new, offer))
    assert answer.run.run_id == begun.run.run_id
    assert answer.claimed
    assert (await counts(bench))["runs"] == 1
    assert kinds(await bench.events(new.run_id)) == ["attempt"]


async def test_S21_of_many_at_once_with_one_key_one_begins(bench: Bench) -> None:
    stores = (bench.one, bench.two)
    answers = await asyncio.gather(
        *(stores[n % 2].write(moves.begin(bench.submission(key="k"), None)) for n in range(20))
    )
    assert sum(answer is not None for answer in answers) == 1
    found = await counts(bench)
    assert (found["threads"], found["runs"], found["run_keys"]) == (1, 1, 1)
