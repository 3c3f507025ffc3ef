"""Every guard of every move: its condition is violated, and nothing may happen.

Each check names the pairs of ``states.RULES`` that it covers; a test sees to it that none is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlive import errors, policy, seams
from outlive.model import Claim, Offer, Run, StopOutcome, Swept, Verdict
from outlive.states import Guard, Move, Reason, State
from outlive.store import deleting, moves, reads, steps
from outlive.store.script import Script, Steps, script, statement
from outlive.testing.store_checks.bench import (
    LEASE,
    Bench,
    check,
    chunks,
    refused,
    traced,
)

DONE = Verdict(state=State.SUCCEEDED)
WRITES_A_RUN = {"insert_run", "claim", "finish", "hand_back", "request_stop", "requeue_lost", "append"}
LOCKS_A_THREAD = {"enter_thread", "lock_thread", "try_lock_thread"}


def holders_moves(claim: Claim, expected: int) -> dict[Move, Script[Any]]:
    """The moves that only a holder may make."""
    return {
        Move.APPEND: moves.append(claim, chunks("1"), expected, LEASE),
        Move.SETTLE: moves.settle(claim, DONE, expected),
        Move.HAND_BACK: moves.hand_back(claim, (), expected, LEASE),
    }


async def all_refused(bench: Bench, claim: Claim, expected: int) -> None:
    """No holder's move is possible with this claim, and the run stays as it is."""
    before, events = await bench.run(claim.run_id), await bench.events(claim.run_id)
    for step in holders_moves(claim, expected).values():
        failure = await refused(errors.Fenced, bench.one.write(step))
        assert failure.run_id == claim.run_id
    assert await bench.run(claim.run_id) == before
    assert await bench.events(claim.run_id) == events


@check(
    (Move.APPEND, Guard.OWNER),
    (Move.SETTLE, Guard.OWNER),
    (Move.HAND_BACK, Guard.OWNER),
    (Move.RENEW, Guard.OWNER),
)
async def a_wrong_epoch_or_token_moves_nothing(bench: Bench) -> None:
    """Neither the right token with another epoch nor the right epoch with another token is the holder."""
    run = await bench.running()
    for stranger in (
        replace(run.claim, epoch=run.epoch - 1),
        replace(run.claim, epoch=run.epoch + 1),
        replace(run.claim, claim_token=seams.new_id()),
    ):
        await all_refused(bench, stranger, run.last_seq)
        assert await bench.renew([stranger]) == []
    assert await bench.run(run.run_id) == run


@check(
    (Move.APPEND, Guard.STATE),
    (Move.SETTLE, Guard.STATE),
    (Move.HAND_BACK, Guard.STATE),
    (Move.RENEW, Guard.STATE),
)
async def a_holder_of_an_ended_run_moves_nothing(bench: Bench) -> None:
    """Once the verdict stands, the claim that wrote it is worth nothing."""
    run = await bench.running()
    await bench.settle(run, State.FAILED)
    await all_refused(bench, run.claim, run.last_seq + 1)
    assert await bench.renew([run.claim]) == []


@check()
async def a_holder_who_handed_back_moves_nothing(bench: Bench) -> None:
    """A run in the queue has no holder, although it remembers the last."""
    run = await bench.running()
    await bench.one.write(moves.hand_back(run.claim, (), run.last_seq, LEASE))
    for move, step in holders_moves(run.claim, run.last_seq).items():
        if move is not Move.HAND_BACK:
            await refused(errors.Fenced, bench.one.write(step))
    assert await bench.renew([run.claim]) == []


@check((Move.APPEND, Guard.LEASE), (Move.SETTLE, Guard.LEASE), (Move.HAND_BACK, Guard.LEASE))
async def an_expired_lease_moves_nothing(bench: Bench) -> None:
    """By the database's clock the lease is over, so the write is refused although nobody took the run."""
    run = await bench.expired()
    await all_refused(bench, run.claim, run.last_seq)
    await refused(errors.Fenced, bench.one.write(moves.append(run.claim, (), run.last_seq, LEASE)))


@check(
    (Move.APPEND, Guard.EXPECTED_SEQ), (Move.SETTLE, Guard.EXPECTED_SEQ), (Move.HAND_BACK, Guard.EXPECTED_SEQ)
)
async def a_writer_that_lost_count_moves_nothing(bench: Bench) -> None:
    """A write that does not follow the last event is refused, even where it would fit by number."""
    run = await bench.running()
    await bench.append(run, '"stored"')
    for wrong in (0, 1, 3):
        await all_refused(bench, run.claim, wrong)


@check((Move.HAND_BACK, Guard.NOT_STOPPED))
async def a_stopped_run_is_not_handed_back(bench: Bench) -> None:
    """A stop request beats a shutdown: the holder is told to settle instead, and nothing is written."""
    run = await bench.running()
    await bench.stop(run)
    before = await bench.run(run.run_id)
    assert not await bench.one.write(moves.hand_back(run.claim, chunks("1"), run.last_seq, LEASE))
    assert await bench.run(run.run_id) == before


@check((Move.SUBMIT, Guard.KEY))
async def a_key_used_for_another_body_is_a_conflict(bench: Bench) -> None:
    """Same key, other fingerprint: an error that names the first run, and no second run."""
    first = await bench.queued(key="k", fingerprint="one")
    failure = await refused(errors.KeyConflict, bench.submit(key="k", fingerprint="two"))
    assert failure.run_id == first.run_id


@check((Move.SUBMIT, Guard.ADMISSION))
async def a_busy_thread_rejects_and_stores_nothing(bench: Bench) -> None:
    """With ``on_busy=reject`` the second message is refused, and its key is free for another try."""
    first = await bench.running(thread="t", policy=policy.job())
    failure = await refused(errors.ThreadBusy, bench.submit(thread="t", policy=policy.job(), key="k"))
    assert failure.run_id == first.run_id
    await bench.settle(first)
    assert (await bench.submit(thread="t", policy=policy.job(), key="k", fingerprint="x")).run.pos == 2


@check((Move.SUBMIT, Guard.THREAD_FREE), (Move.CLAIM, Guard.THREAD_FREE))
async def a_thread_with_a_running_run_starts_no_other(bench: Bench) -> None:
    """Neither a submit with a free slot nor a claim starts a second run on a thread."""
    first = await bench.running(thread="t")
    second = await bench.submit(bench.offer(), thread="t")
    assert (second.claimed, second.run.state) == (False, State.QUEUED)
    assert await bench.claim() is None
    await bench.settle(first)
    taken = await bench.claim()
    assert taken is not None
    assert taken.run_id == second.run.run_id


@check((Move.SUBMIT, Guard.LOWEST_POS), (Move.CLAIM, Guard.LOWEST_POS))
async def the_first_in_the_queue_is_the_first_to_run(bench: Bench) -> None:
    """A submit with a free slot does not overtake its thread's queue, nor another thread's waiting run."""
    first = await bench.queued(thread="t")
    same_thread = await bench.submit(bench.offer(), thread="t")
    elsewhere = await bench.submit(bench.offer(), thread="u")
    assert not same_thread.claimed
    assert not elsewhere.claimed
    offers = [bench.offer() for _ in range(3)]
    taken = await bench.one.write(moves.claim(offers))
    assert [run.run_id for run in taken] == [first.run_id, elsewhere.run.run_id]


@script()
def claim_this(run: Run, offer: Offer) -> Steps[bool]:
    """Claim one run, whatever the queue says of it."""
    yield statement("lock_thread", thread_id=run.thread_id)
    return (yield from steps.claim_one(run.run_id, run.thread_id, offer))


@script(reads=True)
def listed(agent: str) -> Steps[list[str]]:
    """The runs that a worker would try to claim."""
    rows = yield statement("claimable", agents=[agent], limit=100)
    return [row["run_id"] for row in rows]


@check((Move.CLAIM, Guard.LOWEST_POS), (Move.CLAIM, Guard.THREAD_FREE))
async def the_claim_itself_looks_at_the_queue_again(bench: Bench) -> None:
    """What was claimable when the queue was read may not be any more; and the queue lists nothing else."""
    first, second = await bench.queued(thread="t"), await bench.queued(thread="t")
    assert await bench.one.read(listed(bench.agent)) == [first.run_id]
    assert not await bench.one.write(claim_this(second, bench.offer()))
    assert await bench.one.write(claim_this(first, bench.offer()))
    assert await bench.one.read(listed(bench.agent)) == []
    assert not await bench.one.write(claim_this(first, bench.offer()))
    assert not await bench.one.write(claim_this(second, bench.offer()))
    later = await bench.queued(thread="u", not_before=await bench.clock() + 3600)
    assert not await bench.one.write(claim_this(later, bench.offer()))
    assert (await bench.run(second.run_id)).state is State.QUEUED


@check((Move.CLAIM, Guard.NOT_STOPPED))
async def a_queued_run_with_a_stop_request_is_not_claimed(bench: Bench) -> None:
    """However it came to be, such a row is not begun again; a stop still ends it."""
    run = await bench.queued()
    await bench.spoil(run, "stop_requested_at = 1")
    assert await bench.claim() is None
    answer = await bench.one.write(moves.stop(run.run_id, None, Reason.REQUESTED))
    assert answer.outcome is StopOutcome.STOPPED


@check((Move.STOP, Guard.STATE))
async def S10_stopping_an_ended_run_changes_nothing(bench: Bench) -> None:
    """The first committed verdict wins: the caller is told that the run had ended, and how."""
    for state in (State.SUCCEEDED, State.WAITING, State.FAILED, State.STOPPED):
        run = await bench.running()
        await bench.settle(run, state)
        before, events = await bench.run(run.run_id), await bench.events(run.run_id)
        answer = await bench.two.write(moves.stop(run.run_id, bench.tenant, Reason.REQUESTED))
        assert answer.outcome is StopOutcome.ALREADY
        assert answer.run == before
        assert await bench.run(run.run_id) == before
        assert await bench.events(run.run_id) == events


@check((Move.SWEEP, Guard.EXPIRED))
async def a_run_whose_lease_still_holds_is_spared(bench: Bench) -> None:
    """Without proof of death, only an expired lease is taken; a renewal after the look counts."""
    run = await bench.expired()
    suspect = await bench.suspect(run)
    assert suspect.expired
    assert await bench.renew([run.claim]) != []
    assert await bench.one.write(moves.sweep(suspect, early=False)) is Swept.SPARED
    assert (await bench.run(run.run_id)).epoch == 1


@check((Move.SWEEP, Guard.EPOCH), (Move.SWEEP, Guard.STATE))
async def a_run_that_moved_on_is_spared(bench: Bench) -> None:
    """Swept, claimed again or ended since the look: an old suspicion does nothing."""
    run = await bench.expired()
    suspect = await bench.suspect(run)
    assert await bench.one.write(moves.sweep(suspect, early=False)) is Swept.REQUEUED
    assert await bench.two.write(moves.sweep(suspect, early=True)) is Swept.SPARED
    again = await bench.claim_and_expire()
    assert await bench.two.write(moves.sweep(suspect, early=True)) is Swept.SPARED
    assert (await bench.run(run.run_id)).epoch == 3
    assert await bench.renew([again.claim]) != []
    now = await bench.suspect(again)
    await bench.settle(again)
    assert await bench.two.write(moves.sweep(now, early=True)) is Swept.SPARED
    ended = await bench.run(run.run_id)
    assert (ended.state, ended.epoch, ended.losses) == (State.SUCCEEDED, 3, 1)


@check((Move.SETTLE, Guard.STATE))
async def a_holder_cannot_settle_on_what_is_not_its_to_give(bench: Bench) -> None:
    """Live states are no verdict, and only a sweep abandons: a mistake of the caller, and nothing written."""
    run = await bench.running()
    for state in (State.QUEUED, State.RUNNING, State.ABANDONED):
        try:
            await bench.settle(run, state)
        except ValueError:
            continue
        raise AssertionError(f"a holder settled on {state}")
    assert await bench.run(run.run_id) == run


@check((Move.DELETE, Guard.STATE))
async def deleting_a_thread_ends_its_live_runs_and_shuts_their_holder_out(bench: Bench) -> None:
    """What has ended stays as it is; nobody finds any of them, and the name is free."""
    ended = await bench.running()
    await bench.settle(ended)
    run = await bench.running(thread="t")
    waits = await bench.queued(thread="t")
    assert await bench.one.write(deleting.bury(ended.thread_id, force=False)) == deleting.Buried(
        thread_id=ended.thread_id, runs=(ended.run_id,)
    )
    buried = await bench.two.write(deleting.bury(run.thread_id, force=False))
    assert set(buried.stopped) == {run.run_id, waits.run_id}
    for step in holders_moves(run.claim, run.last_seq).values():
        await refused(errors.Fenced, bench.one.write(step))
    assert await bench.renew([run.claim]) == []
    log = await bench.one.read(reads.events(run.run_id, run.last_seq, 10))
    assert [(event.epoch, event.data["state"]) for event in log] == [(run.epoch + 1, "stopped")]
    for gone in (ended, run, waits):
        await refused(errors.NotFound, bench.one.read(reads.run(gone.run_id, None)))
    fresh = await bench.queued(thread="t")
    assert fresh.thread_id != run.thread_id
    await bench.stop(fresh)
    assert await bench.one.write(deleting.bury(run.thread_id, force=False)) == deleting.Buried(
        thread_id=run.thread_id
    )


@check((Move.SWEEP, Guard.LOSSES_LEFT), (Move.SWEEP, Guard.LOSSES_SPENT))
async def a_run_is_given_back_while_losses_are_left_and_abandoned_after(bench: Bench) -> None:
    """``max_losses`` executors may be lost; the next loss ends the run, as does ``recovery=stop``."""
    outcomes = []
    for declared in (policy.chat(max_losses=1), policy.chat(max_losses=0), policy.chat(recovery="stop")):
        last = await bench.expired(policy=declared)
        run: Run | None = last
        while run is not None:
            outcomes.append(await bench.one.write(moves.sweep(await bench.suspect(run), early=True)))
            last, run = run, await bench.claim()
        ended = await bench.run(last.run_id)
        assert (ended.state, ended.reason) == (State.ABANDONED, Reason.LOST)
        assert ended.epoch == last.epoch + 1
    assert outcomes == [Swept.REQUEUED, Swept.ABANDONED, Swept.ABANDONED, Swept.ABANDONED]


@check((Move.SWEEP, Guard.STOP_REQUESTED), (Move.SWEEP, Guard.NOT_STOPPED))
async def a_stop_request_decides_what_a_sweep_does(bench: Bench) -> None:
    """Requested: stopped with that reason, even where losses are spent; not requested: never stopped."""
    for declared in (policy.chat(), policy.chat(max_losses=0)):
        stopped, lost = await bench.expired(policy=declared), await bench.expired(policy=declared)
        await bench.stop(stopped, Reason.TIMEOUT)
        assert await bench.one.write(moves.sweep(await bench.suspect(stopped), early=True)) is Swept.STOPPED
        swept = await bench.one.write(moves.sweep(await bench.suspect(lost), early=True))
        assert swept is (Swept.REQUEUED if declared.max_losses else Swept.ABANDONED)
        ended = await bench.run(stopped.run_id)
        assert (ended.state, ended.reason) == (State.STOPPED, Reason.TIMEOUT)
        await bench.stop(lost)  # leave nothing to claim


@check(
    (Move.SUBMIT, Guard.THREAD_LOCK),
    (Move.CLAIM, Guard.THREAD_LOCK),
    (Move.STOP, Guard.THREAD_LOCK),
    (Move.SWEEP, Guard.THREAD_LOCK),
    (Move.DELETE, Guard.THREAD_LOCK),
)
async def the_threads_row_is_locked_before_a_run_is_written(bench: Bench) -> None:
    """Everybody takes the locks in one order, so no two moves can wait for each other for ever."""
    runs, deleted = await bench.expired(), await bench.running()
    waits, idle = await bench.queued(thread="t"), await bench.queued(thread="v")
    steps: list[Script[Any]] = [
        moves.submit(bench.submission(thread="u"), bench.offer(agents=("x", bench.agent))),
        moves.claim([bench.offer()]),
        moves.stop(waits.run_id, bench.tenant, Reason.REQUESTED),
        moves.stop(runs.run_id, bench.tenant, Reason.REQUESTED),
        moves.stop(idle.run_id, bench.tenant, Reason.REQUESTED),
        moves.sweep(await bench.suspect(runs), early=False),
        deleting.bury((await bench.queued(thread="w")).thread_id, force=False),
        deleting.bury(deleted.thread_id, force=False),
    ]
    for step in steps:
        names: list[str] = []
        await bench.one.write(traced(step, names))
        first_write = next(at for at, name in enumerate(names) if name in WRITES_A_RUN)
        first_lock = next(at for at, name in enumerate(names) if name in LOCKS_A_THREAD)
        assert first_lock < first_write, f"{step.name} wrote before it locked: {names}"
