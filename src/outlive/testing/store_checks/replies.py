"""Lost replies: the same script once more finds its own work done and gives the same answer."""

from __future__ import annotations

from outlive import errors
from outlive.model import Swept, Verdict
from outlive.states import Reason, State
from outlive.store import moves
from outlive.testing.store_checks.bench import LEASE, Bench, check, chunks, kinds, refused


@check()
async def a_submit_repeated_makes_one_run(bench: Bench) -> None:
    """With or without a key, waiting or started at once: one run, the same answer."""
    for key, offer in ((None, None), ("k", None), (None, bench.offer()), ("l", bench.offer())):
        script = moves.submit(bench.submission(key=key), offer)
        first, second = await bench.one.write(script), await bench.two.write(script)
        assert second == first
        assert first.claimed == (offer is not None)
        await bench.stop(first.run)  # or it would keep the next from starting at once


@check()
async def a_submit_repeated_after_its_run_ended_still_answers_with_it(bench: Bench) -> None:
    """The run id is the caller's own, so the record answers, not a new run."""
    offer = bench.offer()
    script = moves.submit(bench.submission(key="k"), offer)
    first = await bench.one.write(script)
    await bench.settle(first.run)
    again = await bench.one.write(script)
    assert (again.run.run_id, again.run.state, again.claimed) == (
        first.run.run_id,
        State.SUCCEEDED,
        False,
    )


@check()
async def a_run_id_of_another_tenant_is_refused(bench: Bench) -> None:
    """A caller that repeats somebody else's run id gets nothing of that run."""
    run = await bench.queued()
    failure = await refused(errors.InvalidInput, bench.submit(run_id=run.run_id, tenant="other"))
    assert run.run_id not in str(failure)


@check()
async def a_claim_repeated_takes_no_other_run(bench: Bench) -> None:
    """The token says which run it took; a slot left over may still take one."""
    first, second = await bench.queued(), await bench.queued()
    script = moves.claim([bench.offer()])
    taken = await bench.one.write(script)
    assert await bench.two.write(script) == taken
    assert [run.run_id for run in taken] == [first.run_id]
    assert kinds(await bench.events(first.run_id)) == ["attempt"]
    assert (await bench.run(second.run_id)).state is State.QUEUED


@check()
async def an_append_repeated_stores_its_events_once(bench: Bench) -> None:
    """The events stand in the log already: the same answer, nothing stored, though the lease be over."""
    run = await bench.running()
    script = moves.append(run.claim, chunks("1", "2"), run.last_seq, LEASE)
    assert await bench.two.write(script) == await bench.one.write(script)
    assert kinds(await bench.events(run.run_id)) == ["attempt", "chunk", "chunk"]


@check()
async def other_events_at_the_same_place_are_refused(bench: Bench) -> None:
    """As many events as already stand there, but not these: a writer that lost count is not believed."""
    run = await bench.running()
    await bench.append(run, "1", "2")
    await refused(errors.Fenced, bench.append(run, "1", "3"))
    assert [event.payload for event in await bench.events(run.run_id)][1:] == ["1", "2"]


@check()
async def an_append_repeated_after_a_newer_one_is_refused(bench: Bench) -> None:
    """Only the last batch can be one whose reply was lost."""
    run = await bench.running()
    script = moves.append(run.claim, chunks("1"), run.last_seq, LEASE)
    appended = await bench.one.write(script)
    await bench.one.write(moves.append(run.claim, chunks("2"), appended.last_seq, LEASE))
    await refused(errors.Fenced, bench.one.write(script))


@check()
async def a_settle_repeated_records_one_end(bench: Bench) -> None:
    """The verdict stands and is the same: success, and one end event; another verdict is refused."""
    for leaked in (False, True):
        run = await bench.running()
        verdict = Verdict(state=State.STOPPED, reason=Reason.TIMEOUT, tail=chunks("1"))
        script = moves.settle(run.claim, verdict, run.last_seq, raise_epoch=leaked)
        await bench.one.write(script)
        before = await bench.run(run.run_id)
        await bench.two.write(script)
        assert await bench.run(run.run_id) == before
        assert kinds(await bench.events(run.run_id)) == ["attempt", "chunk", "end"]
        other = moves.settle(run.claim, Verdict(state=State.SUCCEEDED), run.last_seq)
        await refused(errors.Fenced, bench.one.write(other))


@check()
async def a_hand_back_repeated_is_still_a_hand_back(bench: Bench) -> None:
    """The run waits under this claim: success again; once somebody took it, refused."""
    run = await bench.running()
    script = moves.hand_back(run.claim, chunks("1"), run.last_seq, LEASE)
    assert await bench.one.write(script)
    before = await bench.run(run.run_id)
    assert await bench.two.write(script)
    assert await bench.run(run.run_id) == before
    assert kinds(await bench.events(run.run_id)) == ["attempt", "chunk"]
    assert await bench.claim() is not None
    await refused(errors.Fenced, bench.one.write(script))


@check()
async def a_stop_repeated_changes_nothing(bench: Bench) -> None:
    """Of a running run the answer is the same; of a queued one, that it had ended, with the same record."""
    running = await bench.running()
    script = moves.stop(running.run_id, bench.tenant, Reason.REQUESTED)
    assert await bench.two.write(script) == await bench.one.write(script)
    queued = await bench.queued()
    script = moves.stop(queued.run_id, bench.tenant, Reason.REQUESTED)
    first, second = await bench.one.write(script), await bench.two.write(script)
    assert second.run == first.run
    assert kinds(await bench.events(queued.run_id)) == ["end"]


@check()
async def a_sweep_repeated_charges_one_loss(bench: Bench) -> None:
    """The second sweep finds another epoch and spares the run."""
    run = await bench.expired()
    script = moves.sweep(await bench.suspect(run), early=False)
    assert await bench.one.write(script) is Swept.REQUEUED
    assert await bench.two.write(script) is Swept.SPARED
    assert (await bench.run(run.run_id)).losses == 1
