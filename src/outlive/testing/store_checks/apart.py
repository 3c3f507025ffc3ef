"""Apart: tenants, scripts that share a commit, callers that are cancelled, processes that hear and vouch."""

from __future__ import annotations

import asyncio

from outlive import errors, seams
from outlive.model import Run
from outlive.states import Reason, State
from outlive.store import moves, reads, wakeup
from outlive.store.script import Script, Steps, script, statement
from outlive.testing.store_checks.bench import LEASE, WITHIN, Bench, check, chunks, kinds, refused


@check()
async def S22_a_tenant_sees_nothing_of_another(bench: Bench) -> None:
    """Reading, listing and stopping another's run is as if it did not exist; thread names do not meet."""
    other = f"{bench.tenant}-2"
    mine, foreign = await bench.queued(thread="t"), await bench.queued(thread="t", tenant=other)
    assert mine.thread_id != foreign.thread_id
    missing = await refused(errors.NotFound, bench.one.read(reads.run(seams.new_id(), other)))
    hidden = await refused(errors.NotFound, bench.one.read(reads.run(mine.run_id, other)))
    assert str(hidden).replace(mine.run_id, "") == str(missing).replace(str(missing.run_id), "")
    await refused(errors.NotFound, bench.one.write(moves.stop(mine.run_id, other, Reason.REQUESTED)))
    assert (await bench.run(mine.run_id)).state is State.QUEUED
    for thread in (None, "t"):
        listed = await bench.two.read(reads.runs(other, limit=10, thread=thread))
        assert [run.run_id for run in listed] == [foreign.run_id]
    assert (await bench.two.read(reads.thread("t", other))).thread_id == foreign.thread_id
    await refused(errors.NotFound, bench.two.read(reads.thread("u", other)))


@check()
async def runs_are_listed_newest_first_page_by_page(bench: Bench) -> None:
    """Every filter narrows, ``before`` goes on after the last run of a page."""
    made = [await bench.queued(thread=name) for name in "abab"]
    await bench.stop(made[0])
    newest = [run.run_id for run in reversed(made)]

    async def listed(**filters: object) -> list[str]:
        script = reads.runs(bench.tenant, **{"limit": 10, **filters})  # type: ignore[arg-type]
        return [run.run_id for run in await bench.two.read(script)]

    assert await listed() == newest
    assert await listed(limit=2) == newest[:2]
    assert await listed(before=newest[1]) == newest[2:]
    assert await listed(thread="a") == [newest[1], newest[3]]
    assert await listed(thread="a", state=State.QUEUED) == [newest[1]]
    assert await listed(thread="b", before=newest[0]) == [newest[2]]
    assert await listed(state=State.STOPPED) == [newest[3]]
    assert await listed(agent="nobody") == await listed(thread="nothing") == []


@script()
def write_then_fail(claim_of: Run) -> Steps[None]:
    """A transaction that writes and then finds that it must not."""
    yield statement("request_stop", run_id=claim_of.run_id, reason="requested")
    raise errors.Fenced("on purpose", run_id=claim_of.run_id)


@script()
def write_then_break(run: Run) -> Steps[None]:
    """A transaction with a programming error in it."""
    yield statement("request_stop", run_id=run.run_id, reason="requested")
    raise ZeroDivisionError("on purpose")


@check()
async def a_script_that_fails_undoes_itself_and_fails_nobody_else(bench: Bench) -> None:
    """Thirty scripts at once, of which ten fail after a write: the others commit, the ten leave no trace."""
    runs = [await bench.running() for _ in range(30)]

    def job(number: int) -> Script[object]:
        run = runs[number]
        if number % 3 == 0:
            return moves.append(run.claim, chunks("1"), run.last_seq, LEASE)
        failing = write_then_break if number % 3 == 1 else write_then_fail
        return failing(run)

    answers = await asyncio.gather(
        *(bench.one.write(job(number)) for number in range(30)), return_exceptions=True
    )
    expected = [object, ZeroDivisionError, errors.Fenced] * 10
    assert all(isinstance(answer, kind) for answer, kind in zip(answers, expected, strict=True)), answers
    for number, run in enumerate(runs):
        now = await bench.run(run.run_id)
        assert now.stop_requested_at is None
        assert now.last_seq == (2 if number % 3 == 0 else 1)


@check()
async def a_cancelled_caller_tears_no_transaction(bench: Bench) -> None:
    """Cancelled at any moment, a script commits whole or not at all, and the store serves the next."""
    runs = [await bench.running() for _ in range(30)]
    loop = asyncio.get_running_loop()
    tasks = []
    for turns, run in enumerate(runs):
        script = moves.append(run.claim, chunks("1", "2"), run.last_seq, LEASE)
        tasks.append(loop.create_task(bench.one.write(script)))
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert any(task.cancelled() for task in tasks), "nothing was cancelled"
    for run in runs:
        await bench.stop(run)  # waits for the thread's row: what was under way has ended
        events = await bench.events(run.run_id)
        assert kinds(events) in (["attempt"], ["attempt", "chunk", "chunk"])
        assert (await bench.run(run.run_id)).last_seq == len(events)


@check()
async def a_cancelled_reader_harms_nobody(bench: Bench) -> None:
    """Many reads cut off in the middle: the next read works."""
    run = await bench.queued()
    loop = asyncio.get_running_loop()
    for turns in range(30):
        task = loop.create_task(bench.one.read(reads.run(run.run_id, None)))
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await bench.run(run.run_id) == run


@check()
async def an_announcement_wakes_waiters_here_and_elsewhere(bench: Bench) -> None:
    """After a commit is announced, whoever waits for the run is woken, in this process and in others."""
    run = await bench.running()
    topic = wakeup.run_topic(run.run_id)
    with bench.one.hub.watch(topic) as here, bench.two.hub.watch(topic) as there:
        await bench.append(run, "1")
        bench.one.announce(topic)
        async with asyncio.timeout(WITHIN):
            for waiter in (here, there):
                await waiter.wait(WITHIN * 2)  # only a hint ends this in time


@check()
async def a_worker_that_lives_is_not_taken_for_dead(bench: Bench) -> None:
    """The token of an open store is seen by the others; one that nobody holds is not."""
    bench.distinct()
    alive, dead = seams.new_id(), seams.new_id()
    await bench.two.hold_token(alive)
    assert await bench.one.dead([alive, dead, ""]) == {dead}
    assert await bench.two.dead([alive, dead]) == {dead}


@check()
async def held_tells_lost_claims_from_those_that_stand(bench: Bench) -> None:
    """What a renewal skipped is looked up without a lock: it stands, or it is gone."""
    stands, lost = await bench.running(), await bench.running()
    await bench.settle(lost)
    found = await bench.one.read(reads.held([stands.claim, lost.claim]))
    assert [(one.run_id, one.epoch) for one in found] == [(stands.run_id, 1)]
    assert await bench.one.read(reads.held([])) == []


@check()
async def what_cannot_be_stored_is_refused_at_once(bench: Bench) -> None:
    """A lone surrogate is the caller's mistake, not a database that is unavailable."""
    await refused(errors.InvalidInput, bench.submit(thread="\ud800"))
    assert (await bench.queued(thread="t")).pos == 1
