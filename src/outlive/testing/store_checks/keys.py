"""Idempotency keys: the same intent is the same run, and goes on where it was cut off."""

from __future__ import annotations

import asyncio

from outlive import policy
from outlive.model import Admitted, Run
from outlive.states import Reason, State
from outlive.store import moves
from outlive.testing.store_checks.bench import Bench, check


@check()
async def S21_the_same_key_attaches_to_a_live_run(bench: Bench) -> None:
    """Queued or running, the run is the one that the key made, whatever slot the repeat offers."""
    run = await bench.queued(key="k", thread="t")
    queued = await bench.submit(bench.offer(), key="k", thread="t")
    assert (queued.admitted, queued.run.run_id, queued.claimed) == (Admitted.ATTACHED, run.run_id, False)
    await bench.claim()
    running = await bench.submit(key="k", thread="t")
    assert (running.admitted, running.run.run_id) == (Admitted.ATTACHED, run.run_id)
    assert running.run.state is State.RUNNING


@check()
async def the_same_key_replays_an_ended_run(bench: Bench) -> None:
    """Succeeded, waiting, failed, or stopped by its user: the record answers, nothing is begun."""
    for number, state in enumerate((State.SUCCEEDED, State.WAITING, State.FAILED, State.STOPPED)):
        run = await bench.running(key=f"k{number}")
        await bench.settle(run, state, reason=Reason.REQUESTED if state is State.STOPPED else None)
        again = await bench.submit(bench.offer(), key=f"k{number}")
        assert (again.admitted, again.run.run_id, again.claimed) == (Admitted.REPLAYED, run.run_id, False)
        assert again.run.state is state


async def cut_off(bench: Bench, run: Run, reason: Reason) -> None:
    """End a claimed run as a disconnect, a time-out or the loss of its executor does."""
    if reason is Reason.LOST:
        assert str(await bench.one.write(moves.sweep(await bench.suspect(run), early=True))) == "abandoned"
    else:
        await bench.settle(run, State.STOPPED, reason=reason)


@check()
async def the_same_key_goes_on_where_a_run_was_cut_off(bench: Bench) -> None:
    """A new run on the same thread names the one before it and the first; the key points to the newest."""
    declared = policy.chat(max_losses=0)
    first = before = await bench.running(key="k", thread="t", policy=declared)
    for reason in (Reason.DISCONNECT, Reason.TIMEOUT, Reason.LOST):
        await cut_off(bench, before, reason)
        script = moves.submit(bench.submission(key="k", thread="t", policy=declared), bench.offer())
        made, repeated = await bench.one.write(script), await bench.two.write(script)
        assert repeated == made
        assert made.admitted is Admitted.CONTINUED
        assert made.claimed
        assert (made.run.continues, made.run.origin) == (before.run_id, first.run_id)
        assert made.run.thread_id == first.thread_id
        attached = await bench.submit(key="k", thread="t", policy=declared)
        assert (attached.admitted, attached.run.run_id) == (Admitted.ATTACHED, made.run.run_id)
        before = made.run


@check()
async def a_continuation_of_a_run_without_a_thread_stays_on_its_thread(bench: Bench) -> None:
    """A run that named no thread has one of its own; what continues it belongs there too."""
    first = await bench.running(key="k")
    await bench.settle(first, State.STOPPED, reason=Reason.DISCONNECT)
    made = await bench.submit(key="k")
    assert (made.admitted, made.run.thread, made.run.pos) == (Admitted.CONTINUED, first.run_id, 2)


@check()
async def S21_one_key_sent_many_times_at_once_makes_one_run(bench: Bench) -> None:
    """Twenty submits over two stores: one creates, the others attach to it."""
    stores = (bench.one, bench.two)
    answers = await asyncio.gather(
        *(
            stores[number % 2].write(moves.submit(bench.submission(key="k", thread="t"), None))
            for number in range(20)
        )
    )
    assert len({answer.run.run_id for answer in answers}) == 1
    admitted = [answer.admitted for answer in answers]
    assert (admitted.count(Admitted.CREATED), admitted.count(Admitted.ATTACHED)) == (1, 19)


@check()
async def one_key_sent_many_times_at_once_continues_once(bench: Bench) -> None:
    """Twenty repeats of a run that was cut off: one new run, to which the others attach."""
    first = await bench.running(key="k")
    await bench.settle(first, State.STOPPED, reason=Reason.DISCONNECT)
    stores = (bench.one, bench.two)
    answers = await asyncio.gather(
        *(stores[number % 2].write(moves.submit(bench.submission(key="k"), None)) for number in range(20))
    )
    assert len({answer.run.run_id for answer in answers}) == 1
    assert {answer.run.continues for answer in answers} == {first.run_id}


@check()
async def a_key_belongs_to_its_tenant(bench: Bench) -> None:
    """Two tenants with one key are two intents, even with different bodies."""
    one = await bench.queued(key="k", fingerprint="one")
    two = await bench.queued(key="k", fingerprint="two", tenant=f"{bench.tenant}-2")
    assert one.run_id != two.run_id


@check()
async def without_a_key_two_submits_are_two_runs(bench: Bench) -> None:
    """Identical text is no identical intent."""
    runs = [await bench.queued(thread="t") for _ in range(2)]
    assert [run.pos for run in runs] == [1, 2]
