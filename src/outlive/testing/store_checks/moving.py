"""Every move, made as it should be: what it does to the row and to the log."""

from __future__ import annotations

import json

from outlive import errors, policy, seams, states
from outlive.model import Admitted, StopOutcome, Swept, Verdict
from outlive.states import Move, Reason, State
from outlive.store import moves, reads
from outlive.testing.store_checks.bench import (
    LEASE,
    SHORT,
    Bench,
    assert_whole,
    check,
    chunks,
    kinds,
    refused,
)


@check()
async def submit_makes_a_queued_run(bench: Bench) -> None:
    """A submit without a slot makes a queued run of epoch 0 with an empty log, as every store sees it."""
    made = await bench.submit(thread="t", input='{"n":1}', metadata='{"a":2}')
    run = await bench.run(made.run.run_id, bench.two)
    assert made.admitted is Admitted.CREATED
    assert not made.claimed
    assert run == made.run
    assert (run.state, run.epoch, run.last_seq, run.pos, run.thread) == (State.QUEUED, 0, 0, 1, "t")
    assert (run.input, run.metadata, run.policy) == ('{"n":1}', '{"a":2}', policy.chat())
    assert await bench.events(run.run_id) == []


@check()
async def a_free_slot_starts_a_run_at_once(bench: Bench) -> None:
    """A submit with a slot goes straight to running, at epoch 1, and opens the attempt in the log."""
    offer = bench.offer()
    made = await bench.submit(offer)
    assert made.claimed
    assert (made.run.state, made.run.epoch, made.run.last_seq) == (State.RUNNING, 1, 1)
    assert (made.run.claim_token, made.run.worker) == (offer.claim_token, bench.worker)
    assert made.run.lease_until is not None
    assert made.run.lease_until > await bench.clock()
    [attempt] = await bench.events(made.run.run_id)
    assert (attempt.kind.value, attempt.epoch, attempt.seq, attempt.data) == ("attempt", 1, 1, {"epoch": 1})


@check()
async def a_slot_for_another_agent_starts_nothing(bench: Bench) -> None:
    """A slot of a worker that does not know the agent leaves the run in the queue."""
    made = await bench.submit(bench.offer(agents=("somebody-else",)))
    assert (made.claimed, made.run.state) == (False, State.QUEUED)


@check()
async def a_run_that_is_not_due_is_not_started(bench: Bench) -> None:
    """A run with a time before which it must not start waits although a slot is free."""
    made = await bench.submit(bench.offer(), not_before=await bench.clock() + 3600)
    assert (made.claimed, made.run.state) == (False, State.QUEUED)
    assert await bench.claim() is None


@check()
async def claim_opens_an_attempt(bench: Bench) -> None:
    """A claim raises the epoch, names the holder and opens the attempt in the log."""
    queued = await bench.queued()
    offer = bench.offer()
    [run] = await bench.two.write(moves.claim([offer]))
    assert run.run_id == queued.run_id
    assert (run.state, run.epoch, run.last_seq) == (State.RUNNING, 1, 1)
    assert (run.claim_token, run.worker) == (offer.claim_token, bench.worker)
    assert run.started_at is not None
    assert kinds(await bench.events(run.run_id)) == ["attempt"]
    assert await bench.one.write(moves.claim([bench.offer()])) == []


@check()
async def a_claim_takes_no_more_runs_than_it_offers_slots(bench: Bench) -> None:
    """Several slots take several runs in queue order, each slot the first run that it fits."""
    queued = [await bench.queued() for _ in range(3)]
    offers = [bench.offer(), bench.offer(agents=("nobody",)), bench.offer()]
    taken = await bench.one.write(moves.claim(offers))
    assert [run.run_id for run in taken] == [run.run_id for run in queued[:2]]
    assert [run.claim_token for run in taken] == [offers[0].claim_token, offers[2].claim_token]
    assert await bench.one.write(moves.claim([])) == []


@check()
async def append_stores_events_in_order(bench: Bench) -> None:
    """Events get the next numbers and the holder's epoch, and keep kind, mode and payload to the letter."""
    run = await bench.running()
    texts = ('"a"', '"\\u00e9 \\ud83d\\ude00"', "[1,2.5,null]")
    appended = await bench.append(run, *texts)
    assert (appended.last_seq, appended.stop_requested, appended.stop_reason) == (4, False, None)
    stored = (await bench.events(run.run_id))[1:]
    assert [(event.seq, event.epoch, event.payload) for event in stored] == [
        (seq, 1, text) for seq, text in enumerate(texts, 2)
    ]
    assert [event.seq for event in await bench.two.read(reads.events(run.run_id, 2, 1))] == [3]


@check()
async def append_extends_the_lease(bench: Bench) -> None:
    """A write keeps the run, and never shortens a longer lease."""
    run = await bench.running()
    await bench.one.write(moves.append(run.claim, chunks("1"), 1, LEASE * 10))
    extended = await bench.run(run.run_id)
    await bench.one.write(moves.append(run.claim, chunks("2"), 2, 1.0))
    again = await bench.run(run.run_id)
    assert run.lease_until is not None
    assert extended.lease_until is not None
    assert extended.lease_until > run.lease_until + LEASE
    assert again.lease_until == extended.lease_until


@check()
async def settle_records_the_verdict_and_the_end_event_together(bench: Bench) -> None:
    """Each state that a holder may settle on ends the log with one end event that tells the same."""
    for state in states.MOVES[Move.SETTLE][0].targets:
        run = await bench.running()
        reason = Reason.TIMEOUT if state is State.STOPPED else None
        verdict = Verdict(
            state=state, reason=reason, output='{"o":1}', error='{"e":2}', detail="secret", tail=chunks('"x"')
        )
        await bench.one.write(moves.settle(run.claim, verdict, run.last_seq))
        ended, events = await bench.run(run.run_id, bench.two), await bench.events(run.run_id)
        assert (ended.state, ended.reason, ended.epoch) == (state, reason, 1)
        assert (ended.output, ended.error, ended.error_detail) == ('{"o":1}', '{"e":2}', "secret")
        assert (ended.lease_until, ended.last_seq) == (None, len(events))
        assert ended.ended_at is not None
        assert kinds(events) == ["attempt", "chunk", "end"]
        assert_whole(events, state)
        assert events[-1].data["error"] == json.loads('{"e":2}')
        assert "secret" not in events[-1].payload


@check()
async def settling_an_agent_that_never_returned_shuts_it_out(bench: Bench) -> None:
    """With ``raise_epoch`` the epoch rises with the verdict, so the holder itself writes no more."""
    run = await bench.running()
    verdict = Verdict(state=State.STOPPED, reason=Reason.REQUESTED)
    await bench.one.write(moves.settle(run.claim, verdict, run.last_seq, raise_epoch=True))
    ended, events = await bench.run(run.run_id), await bench.events(run.run_id)
    assert (ended.state, ended.epoch) == (State.STOPPED, 2)
    assert events[-1].epoch == 2
    assert_whole(events, State.STOPPED)


@check()
async def hand_back_keeps_the_place_and_charges_no_loss(bench: Bench) -> None:
    """A run handed back waits at its old place with its log; the next attempt has the next epoch."""
    first = await bench.running(thread="t")
    later = await bench.queued(thread="t")
    assert await bench.one.write(moves.hand_back(first.claim, chunks('"kept"'), first.last_seq, LEASE))
    back = await bench.run(first.run_id)
    assert (back.state, back.epoch, back.losses, back.pos) == (State.QUEUED, 1, 0, first.pos)
    assert (back.worker, back.lease_until, back.ended_at) == (None, None, None)
    again = await bench.claim()
    assert again is not None
    assert (again.run_id, again.epoch, again.last_seq) == (first.run_id, 2, 3)
    assert kinds(await bench.events(first.run_id)) == ["attempt", "chunk", "attempt"]
    assert (await bench.run(later.run_id)).state is State.QUEUED


@check()
async def stop_ends_a_queued_run_at_once(bench: Bench) -> None:
    """Nobody holds a queued run, so a stop ends it, with its end event."""
    run = await bench.queued()
    answer = await bench.one.write(moves.stop(run.run_id, bench.tenant, Reason.REQUESTED))
    assert answer.outcome is StopOutcome.STOPPED
    assert (answer.run.state, answer.run.reason, answer.run.epoch) == (State.STOPPED, Reason.REQUESTED, 0)
    assert_whole(await bench.events(run.run_id), State.STOPPED)
    assert await bench.claim() is None


@check()
async def stop_tells_the_holder_of_a_running_run(bench: Bench) -> None:
    """A running run goes on until its holder settles; the holder hears of it at its next write."""
    run = await bench.running()
    answer = await bench.two.write(moves.stop(run.run_id, bench.tenant, Reason.DISCONNECT))
    assert answer.outcome is StopOutcome.REQUESTED
    assert (answer.run.state, answer.run.stop_reason) == (State.RUNNING, Reason.DISCONNECT)
    appended = await bench.append(run, "1")
    assert (appended.stop_requested, appended.stop_reason) == (True, Reason.DISCONNECT)
    [held] = await bench.one.read(reads.held([run.claim]))
    assert (held.stop_requested, held.stop_reason) == (True, Reason.DISCONNECT)
    await bench.settle(run, State.STOPPED, at=2, reason=Reason.DISCONNECT)
    assert_whole(await bench.events(run.run_id), State.STOPPED)


@check()
async def the_first_stop_gives_the_reason(bench: Bench) -> None:
    """A second stop request changes nothing and is no error."""
    run = await bench.running()
    await bench.stop(run, Reason.DISCONNECT)
    before = await bench.run(run.run_id)
    answer = await bench.two.write(moves.stop(run.run_id, bench.tenant, Reason.REQUESTED))
    assert answer.outcome is StopOutcome.REQUESTED
    assert answer.run == before


@check()
async def sweep_gives_a_lost_run_back(bench: Bench) -> None:
    """An expired run returns to its place in the queue with a higher epoch and one loss charged."""
    lost = await bench.expired(thread="t")
    suspect = await bench.suspect(lost)
    assert suspect.expired
    assert await bench.two.write(moves.sweep(suspect, early=False)) is Swept.REQUEUED
    back = await bench.run(lost.run_id)
    assert (back.state, back.epoch, back.losses, back.pos) == (State.QUEUED, 2, 1, lost.pos)
    assert (back.claim_token, back.worker, back.lease_until) == (None, None, None)
    again = await bench.claim()
    assert again is not None
    assert (again.run_id, again.epoch) == (lost.run_id, 3)
    assert kinds(await bench.events(lost.run_id)) == ["attempt", "attempt"]


@check()
async def sweep_ends_a_lost_run_whose_stop_was_requested(bench: Bench) -> None:
    """A run that somebody stopped is not begun again after its holder was lost."""
    lost = await bench.expired()
    await bench.stop(lost, Reason.DISCONNECT)
    assert await bench.one.write(moves.sweep(await bench.suspect(lost), early=False)) is Swept.STOPPED
    ended = await bench.run(lost.run_id)
    assert (ended.state, ended.reason, ended.epoch) == (State.STOPPED, Reason.DISCONNECT, 2)
    assert_whole(await bench.events(lost.run_id), State.STOPPED)


@check()
async def sweep_takes_a_dead_workers_run_before_its_lease_ends(bench: Bench) -> None:
    """Proof of death is enough, unless the run was renewed since it was looked at."""
    run, alive = await bench.running(), await bench.running()
    dead, late = await bench.suspect(run), await bench.suspect(alive)
    assert not dead.expired
    await bench.until(late.renewed_at / 1000)
    assert await bench.renew([alive.claim]) != []
    assert await bench.one.write(moves.sweep(dead, early=True)) is Swept.REQUEUED
    assert await bench.one.write(moves.sweep(late, early=True)) is Swept.SPARED
    assert (await bench.run(alive.run_id)).state is State.RUNNING


@check()
async def S07_a_running_run_without_a_lease_is_swept(bench: Bench) -> None:
    """A row that says running with no lease, no holder and no renewal is a suspect like any other."""
    run = await bench.running()
    await bench.spoil(run, "lease_until = NULL, renewed_at = NULL, worker = NULL, claim_token = NULL")
    suspect = await bench.suspect(run)
    assert (suspect.expired, suspect.worker, suspect.renewed_at) == (True, "", 0)
    assert await bench.one.dead([suspect.worker]) == set()
    assert await bench.one.write(moves.sweep(suspect, early=False)) is Swept.REQUEUED
    assert (await bench.claim() or run).epoch == 3


@check()
async def renew_extends_exactly_the_claims_that_it_names(bench: Bench) -> None:
    """A renewal names runs with epochs and tokens; it returns those that stand, and touches no other."""
    named, unnamed = await bench.running(), await bench.running()
    renewed = await bench.renew([named.claim], LEASE * 10)
    assert [(one.run_id, one.epoch, one.stop_requested) for one in renewed] == [(named.run_id, 1, False)]
    assert named.lease_until is not None
    after = await bench.run(named.run_id)
    assert after.lease_until is not None
    assert after.lease_until > named.lease_until + LEASE
    assert await bench.run(unnamed.run_id) == unnamed
    assert await bench.renew([]) == []


@check()
async def a_late_holder_whom_nobody_replaced_revives(bench: Bench) -> None:
    """The lease only stops the obviously late: a renewal after it brings the claim back to life."""
    late = await bench.expired()
    assert [one.run_id for one in await bench.renew([late.claim])] == [late.run_id]
    assert (await bench.append(late, "1")).last_seq == 2


@check()
async def renew_tells_of_a_stop_request(bench: Bench) -> None:
    """The renewing thread hears of a stop although the event loop may be blocked."""
    run = await bench.running()
    await bench.stop(run)
    [renewed] = await bench.renew([run.claim])
    assert (renewed.stop_requested, renewed.stop_reason) == (True, Reason.REQUESTED)


@check()
async def suspects_are_the_runs_that_nobody_renewed(bench: Bench) -> None:
    """A run is a suspect only once it went unrenewed for as long as asked."""
    run = await bench.running()
    missed = round(SHORT * 1000)
    await bench.until(await bench.clock() + 2 * SHORT)
    assert run.run_id in {one.run_id for one in await bench.two.read(reads.suspects(missed, 1000))}
    assert run.run_id not in {one.run_id for one in await bench.two.read(reads.suspects(3_600_000, 1000))}


@check()
async def a_run_that_was_never_made_is_not_found(bench: Bench) -> None:
    """Reading and stopping what does not exist says so."""
    missing = seams.new_id()
    await refused(errors.NotFound, bench.one.read(reads.run(missing, None)))
    await refused(errors.NotFound, bench.one.write(moves.stop(missing, None, Reason.REQUESTED)))
