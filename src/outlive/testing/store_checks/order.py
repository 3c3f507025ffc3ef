"""Order: one run at a time per thread, in the order of arrival, and numbers without hole or repeat."""

from __future__ import annotations

import asyncio

from outlive import errors
from outlive.model import Run, Verdict
from outlive.states import Reason, State
from outlive.store import moves, reads
from outlive.testing.store_checks.bench import LEASE, Bench, check, chunks, kinds


@check()
async def a_threads_runs_run_one_after_the_other_in_order(bench: Bench) -> None:
    """Positions rise by one, and each run is claimed only once the one before it has ended."""
    queued = [await bench.queued(thread="t") for _ in range(4)]
    assert [run.pos for run in queued] == [1, 2, 3, 4]
    for expected in queued:
        taken = await bench.claim(bench.two)
        assert taken is not None
        assert taken.run_id == expected.run_id
        assert await bench.claim() is None
        await bench.settle(taken)


@check()
async def threads_do_not_wait_for_each_other(bench: Bench) -> None:
    """Runs of several threads are claimed oldest first, whatever their own threads' queues."""
    runs = [await bench.queued(thread=name) for name in "aabbc"]
    taken = await bench.one.write(moves.claim([bench.offer() for _ in range(5)]))
    assert [run.run_id for run in taken] == [runs[0].run_id, runs[2].run_id, runs[4].run_id]


@check()
async def a_run_for_later_blocks_nobody(bench: Bench) -> None:
    """A run that is not due does not hold up the runs behind it; once due it goes first again."""
    later = await bench.queued(thread="t", not_before=await bench.clock() + 3600)
    first, second = await bench.queued(thread="t"), await bench.queued(thread="t")
    taken = await bench.claim()
    assert taken is not None
    assert taken.run_id == first.run_id
    await bench.settle(taken)
    await bench.spoil(later, "not_before = 1")
    order = []
    while (run := await bench.claim()) is not None:
        order.append(run.run_id)
        await bench.settle(run)
    assert order == [later.run_id, second.run_id]


@check()
async def a_run_becomes_due_by_the_databases_clock(bench: Bench) -> None:
    """Not a moment before its time, and at the first look after it."""
    due = await bench.clock() + 0.1
    run = await bench.queued(not_before=due)
    taken = None
    async with asyncio.timeout(20):
        while taken is None:
            taken = await bench.claim()
    assert taken.run_id == run.run_id
    assert taken.started_at is not None
    assert taken.started_at >= due - 0.001


@check()
async def a_waiting_run_that_cannot_start_does_not_hold_up_others(bench: Bench) -> None:
    """A run that waits for its own thread, or for its time, keeps nobody else from a free slot."""
    await bench.running(thread="t")
    await bench.queued(thread="t")
    await bench.queued(thread="u", not_before=await bench.clock() + 3600)
    assert (await bench.submit(bench.offer(), thread="v")).claimed


@check()
async def numbers_have_no_hole_per_run_nor_per_thread(bench: Bench) -> None:
    """Runs of one thread, their attempts and their ends share one sequence in the order of their commits."""
    thread_id = ""
    for _ in range(3):
        run = await bench.running(thread="t")
        thread_id = run.thread_id
        appended = await bench.append(run, "1", "2")
        await bench.one.write(moves.hand_back(run.claim, chunks("3"), appended.last_seq, LEASE))
        again = await bench.claim()
        assert again is not None
        await bench.settle(again)
        log = await bench.events(run.run_id)
        assert [event.seq for event in log] == list(range(1, 7))
        assert kinds(log) == ["attempt", "chunk", "chunk", "chunk", "attempt", "end"]
    whole = await bench.two.read(reads.thread_events(thread_id, 0, 1000))
    assert [event.thread_seq for event in whole] == list(range(1, 19))
    assert (await bench.two.read(reads.thread("t", bench.tenant))).last_seq == 18
    assert [event.thread_seq for event in await bench.two.read(reads.thread_events(thread_id, 4, 2))] == [
        5,
        6,
    ]


async def _drive(bench: Bench, threads: int) -> int:
    """Claim, write and settle runs of this bench until nothing is left."""
    ended = 0
    while True:
        waiting = await bench.two.read(reads.claimable([bench.agent]))
        if not waiting:
            return ended
        for run in await bench.two.write(moves.claim([bench.offer() for _ in range(threads)])):
            seq = run.last_seq
            for text in ("1", "2", "3"):
                seq = (await bench.two.write(moves.append(run.claim, chunks(text), seq, LEASE))).last_seq
            await bench.two.write(moves.settle(run.claim, Verdict(state=State.SUCCEEDED), seq))
            ended += 1


@check()
async def numbers_have_no_hole_while_others_write_to_the_thread(bench: Bench) -> None:
    """Submits, stops and two workers at once on few threads: every sequence is whole, every run ends."""
    made: list[Run] = []

    async def submit_many(name: str) -> None:
        for number in range(10):
            made.append(await bench.queued(thread=name))
            if number % 5 == 4:
                await bench.stop(made[-1])

    async with asyncio.TaskGroup() as group:
        for name in "abab":
            group.create_task(submit_many(name))
        for _ in range(2):
            group.create_task(_drive(bench, 2))
    await _drive(bench, 4)
    for thread_id in {run.thread_id for run in made}:
        whole = await bench.one.read(reads.thread_events(thread_id, 0, 10_000))
        assert [event.thread_seq for event in whole] == list(range(1, len(whole) + 1))
    for run in made:
        log = await bench.events(run.run_id)
        assert [event.seq for event in log] == list(range(1, len(log) + 1))
        assert kinds(log).count("end") == 1, (run.run_id, kinds(log))


@check()
async def two_workers_never_run_one_thread_at_once(bench: Bench) -> None:
    """Both stores claim at the same moment, again and again: nobody gets a run whose thread is taken."""
    for _ in range(10):
        await bench.queued(thread="t")
    ended = 0
    while ended < 10:
        answers = await asyncio.gather(
            *(
                store.write(moves.claim([bench.offer(), bench.offer()]))
                for store in (bench.one, bench.two, bench.one, bench.two)
            )
        )
        taken = [run for answer in answers for run in answer]
        assert len(taken) <= 1, "two runs of one thread were running"
        for run in taken:
            await bench.settle(run)
            ended += 1


@check()
async def a_reader_never_sees_an_end_before_the_state(bench: Bench) -> None:
    """Whoever reads the end event finds the run ended: both commit together."""
    for _ in range(5):
        run = await bench.running()

        async def settle(run: Run = run) -> None:
            await bench.settle(run)

        async with asyncio.TaskGroup() as group:
            group.create_task(settle())
            async with asyncio.timeout(20):
                while "end" not in kinds(await bench.events(run.run_id)):  # noqa: ASYNC110 - looks hard
                    await asyncio.sleep(0)
            state = (await bench.run(run.run_id, bench.two)).state
        assert state is State.SUCCEEDED


@check()
async def S10_of_many_who_end_a_run_one_wins(bench: Bench) -> None:
    """Settle, stop and sweep race over two stores: one state, one end event, and everybody is told which."""
    for number in range(8):
        run = await bench.running() if number % 2 else await bench.expired()
        suspect = await bench.suspect(run)
        verdict = Verdict(state=State.SUCCEEDED)
        outcomes = await asyncio.gather(
            bench.one.write(moves.settle(run.claim, verdict, run.last_seq)),
            bench.two.write(moves.stop(run.run_id, None, Reason.REQUESTED)),
            bench.two.write(moves.sweep(suspect, early=True)),
            bench.one.write(moves.settle(run.claim, Verdict(state=State.FAILED), run.last_seq)),
            return_exceptions=True,
        )
        unexpected = [
            one for one in outcomes if isinstance(one, BaseException) and not isinstance(one, errors.Fenced)
        ]
        assert unexpected == []
        await bench.stop(run)
        ended, log = await bench.run(run.run_id), await bench.events(run.run_id)
        assert ended.state.terminal
        assert kinds(log).count("end") == 1
        assert log[-1].data["state"] == ended.state
        settled = [one for one in (outcomes[0], outcomes[3]) if not isinstance(one, BaseException)]
        assert len(settled) == (ended.state in (State.SUCCEEDED, State.FAILED))
