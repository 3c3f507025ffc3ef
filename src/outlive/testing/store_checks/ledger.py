"""The ledger: an effect starts under a live claim only, once per key and generation, and on no guess."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from outlive import errors, seams
from outlive.ledger import Effect, EffectState, Kind, Step, Wish
from outlive.model import Run, Verdict
from outlive.states import Reason, State
from outlive.store import Store, effect_moves, effect_reads, effect_steps, moves
from outlive.store.effect_moves import Answer, Opened
from outlive.testing.store_checks.bench import LEASE, Bench, check, refused

DONE = Answer(result="1")


def wish(bench: Bench, **changes: Any) -> Wish:
    """A wish of this check's own, under a key that no other has."""
    plain = Wish(
        tenant=bench.tenant,
        name="charge",
        key=seams.new_id(),
        fingerprint="f",
        inputs="null",
        kind=Kind.IRREVERSIBLE,
        key_ttl=3600.0,
    )
    return replace(plain, **changes)


async def opened(bench: Bench, run: Run, wanted: Wish, store: Store | None = None) -> Opened:
    """Ask the ledger as an executor does."""
    return await (store or bench.one).write(effect_moves.open_(run.claim, wanted, True))


async def started(bench: Bench, run: Run, wanted: Wish) -> Effect:
    """An effect whose call is on its way."""
    found = await opened(bench, run, wanted)
    assert found.step is Step.START, found
    return found.effect


async def finished(bench: Bench, run: Run, wanted: Wish) -> Effect:
    """An effect that is done."""
    effect = await started(bench, run, wanted)
    assert await bench.one.write(effect_moves.finish(run.claim, effect, DONE))
    return await newest(bench, wanted)


async def newest(bench: Bench, wanted: Wish) -> Effect:
    """The newest row of a key, read through the other store."""
    found = await bench.two.read(effect_reads.newest(wanted.tenant, wanted.name, wanted.key))
    assert found is not None
    return found


async def swept(bench: Bench, run: Run) -> Run:
    """The next holder of a run whose holder was lost."""
    await bench.one.write(moves.sweep(await bench.suspect(run), early=False))
    again = await bench.claim()
    assert again is not None
    assert again.run_id == run.run_id
    return again


@check()
async def an_effect_starts_once_and_its_result_answers_everybody(bench: Bench) -> None:
    """The first asker starts it, whoever asks meanwhile waits, and whoever asks later gets the result."""
    run, other, wanted = await bench.running(), await bench.running(), wish(bench)
    effect = await bench.one.write(effect_moves.begin(run.claim, wanted, True))
    assert effect is not None
    assert await bench.two.write(effect_moves.begin(other.claim, wanted, True)) is None
    assert (await opened(bench, other, wanted, bench.two)).step is Step.WAIT
    assert await bench.one.write(effect_moves.finish_plainly(run.claim, effect, DONE))
    answered = await opened(bench, other, wanted, bench.two)
    assert (answered.step, answered.effect.result) == (Step.ANSWER, "1")
    assert answered.effect.calls == 1


@check()
async def of_many_askers_at_once_one_starts(bench: Bench) -> None:
    """Twenty runs on two stores want the same effect in one moment."""
    wanted = wish(bench)
    runs = [await bench.running() for _ in range(20)]
    stores = [bench.one, bench.two] * 10
    found = await asyncio.gather(
        *(opened(bench, run, wanted, store) for run, store in zip(runs, stores, strict=True))
    )
    assert sorted(each.step for each in found) == [Step.START, *[Step.WAIT] * 19]


@check()
async def no_effect_starts_without_a_live_claim(bench: Bench) -> None:
    """Another epoch, another token, an expired lease and an ended run are refused, and nothing is left."""
    run = await bench.running()
    for claim in (
        replace(run.claim, epoch=run.epoch + 1),
        replace(run.claim, epoch=run.epoch - 1),
        replace(run.claim, claim_token=seams.new_id()),
        (await bench.expired()).claim,
    ):
        wanted = wish(bench)
        assert await bench.one.write(effect_moves.begin(claim, wanted, True)) is None
        await refused(errors.Fenced, bench.one.write(effect_moves.open_(claim, wanted, True)))
        assert await bench.two.read(effect_reads.newest(wanted.tenant, wanted.name, wanted.key)) is None
    await bench.settle(run)
    await refused(errors.Fenced, bench.one.write(effect_moves.open_(run.claim, wish(bench), True)))


@check()
async def a_run_that_was_asked_to_stop_starts_nothing_more(bench: Bench) -> None:
    """Neither a new effect nor one that was wished for before the stop."""
    run, wanted = await bench.running(), wish(bench)
    intended = await bench.one.write(effect_moves.begin(run.claim, wanted, False))
    assert intended is not None
    await bench.stop(run)
    for step in (
        effect_moves.open_(run.claim, wanted, True),
        effect_moves.start(run.claim, wanted, intended),
        effect_moves.open_(run.claim, wish(bench), True),
    ):
        await refused(errors.Stopping, bench.one.write(step))
    assert await bench.one.write(effect_moves.begin(run.claim, wish(bench), True)) is None
    assert (await newest(bench, wanted)).state is EffectState.INTENDED


@check()
async def a_late_answer_changes_nothing_and_is_kept_as_evidence(bench: Bench) -> None:
    """Its executor was replaced: the next one reads the answer, and nothing is called again."""
    run, wanted = await bench.expired(), wish(bench)
    await bench.renew([run.claim], LEASE)
    effect = await started(bench, run, wanted)
    await bench.renew([run.claim], 0)
    await bench.sql(f"UPDATE runs SET lease_until = 0 WHERE run_id = '{run.run_id}'")  # noqa: S608
    again = await swept(bench, run)
    assert (await newest(bench, wanted)).state is EffectState.UNKNOWN
    assert not await bench.one.write(effect_moves.finish(run.claim, effect, DONE))
    late = await newest(bench, wanted)
    assert late.state is EffectState.UNKNOWN
    assert late.evidence is not None
    found = await opened(bench, again, wanted)
    assert found.step is Step.TAKE_EVIDENCE
    await bench.one.write(effect_moves.reconcile(found.effect, DONE, "evidence"))
    assert (await opened(bench, again, wanted)).step is Step.ANSWER


@check()
async def an_answer_is_stored_once_whatever_is_repeated(bench: Bench) -> None:
    """The reply of the ledger was lost: the repeat reads its own work back."""
    run, wanted = await bench.running(), wish(bench)
    effect = await started(bench, run, wanted)
    for _ in range(2):
        assert await bench.one.write(effect_moves.finish(run.claim, effect, DONE))
    assert (await newest(bench, wanted)).evidence is None


@check()
async def a_call_that_was_cut_is_replayed_only_while_its_key_is_known(bench: Bench) -> None:
    """With the same provider key; past its time, or without one, somebody has to be asked."""
    run = await bench.running()
    for ttl, kind, step in (
        (3600.0, Kind.IRREVERSIBLE, Step.START),
        (0.0, Kind.IRREVERSIBLE, Step.ASK),
        (None, Kind.IRREVERSIBLE, Step.ASK),
        (None, Kind.IDEMPOTENT, Step.START),
    ):
        wanted = wish(bench, key_ttl=ttl, kind=kind)
        effect = await started(bench, run, wanted)
        await bench.one.write(effect_moves.cut(effect))
        found = await opened(bench, run, wanted)
        assert found.step is step, (ttl, kind, found.step)
        assert found.effect.provider_key == effect.provider_key
    looked = wish(bench, key_ttl=None, looks_up=True)
    await bench.one.write(effect_moves.cut(await started(bench, run, looked)))
    assert (await opened(bench, run, looked)).step is Step.LOOK_UP


@check()
async def a_cut_of_an_earlier_call_does_not_touch_a_later_one(bench: Bench) -> None:
    """Nor does its answer: each start is counted, and what belongs to another is evidence at most."""
    run, wanted = await bench.running(), wish(bench)
    first = await started(bench, run, wanted)
    await bench.one.write(effect_moves.cut(first))
    second = await started(bench, run, wanted)
    assert not await bench.one.write(effect_moves.cut(first))
    assert not await bench.one.write(effect_moves.finish_plainly(run.claim, first, DONE))
    assert (await newest(bench, wanted)).state is EffectState.STARTED
    assert await bench.one.write(effect_moves.finish(run.claim, second, DONE))


@check()
async def the_same_key_with_other_inputs_is_a_conflict(bench: Bench) -> None:
    """Whatever state the first is in, as long as it was not undone."""
    run, wanted = await bench.running(), wish(bench)
    await finished(bench, run, wanted)
    assert (await opened(bench, run, replace(wanted, fingerprint="g"))).step is Step.CONFLICT


@check()
async def the_generation_rises_after_an_undoing_or_an_asked_for_retry_only(bench: Bench) -> None:
    """A definite failure stays one until somebody asks for another try; what was undone may be had again."""
    run, wanted = await bench.running(), wish(bench)
    effect = await started(bench, run, wanted)
    assert await bench.one.write(effect_moves.finish(run.claim, effect, Answer(error='"no"')))
    assert (await opened(bench, run, wanted)).step is Step.FAIL
    again = await opened(bench, run, replace(wanted, again_after_failure=True))
    assert (again.step, again.effect.generation) == (Step.START, 2)
    assert again.effect.provider_key != effect.provider_key
    assert await bench.one.write(effect_moves.finish(run.claim, again.effect, DONE))
    undo = await started(bench, run, wish(bench, name="refund", compensates=again.effect.effect_id))
    assert await bench.one.write(effect_moves.finish(run.claim, undo, DONE))
    assert (await newest(bench, wanted)).state is EffectState.COMPENSATED
    third = await opened(bench, run, wanted)
    assert (third.step, third.effect.generation) == (Step.START, 3)


@check()
async def nothing_starts_on_a_resource_with_an_unsettled_effect(bench: Bench) -> None:
    """Of several that ask at once one starts; the others follow once it is settled."""
    resource = seams.new_id()
    runs = [await bench.running() for _ in range(6)]
    wishes = [wish(bench, resource=resource, key_ttl=None) for _ in runs]
    stores = [bench.one, bench.two] * 3
    asked = zip(runs, wishes, stores, strict=True)
    found = await asyncio.gather(*(opened(bench, run, wanted, store) for run, wanted, store in asked))
    steps = [each.step for each in found]
    assert sorted(steps) == [Step.START, *[Step.WAIT] * 5]
    first = steps.index(Step.START)
    second = (first + 1) % 6
    await bench.one.write(effect_moves.cut(found[first].effect))
    assert (await opened(bench, runs[second], wishes[second])).step is Step.WAIT
    effect_id = found[first].effect.effect_id
    await bench.one.write(effect_moves.settle(effect_id, bench.tenant, True, "1", "ann"))
    assert (await opened(bench, runs[second], wishes[second])).step is Step.START


@check()
async def only_an_unknown_effect_is_settled_and_only_by_its_tenant(bench: Bench) -> None:
    """A second word, a foreign tenant and an effect in flight are refused."""
    run, wanted = await bench.running(), wish(bench, key_ttl=None)
    effect = await started(bench, run, wanted)
    say = effect_moves.settle
    await refused(errors.AlreadySettled, bench.one.write(say(effect.effect_id, bench.tenant, True, "1", "a")))
    await bench.one.write(effect_moves.cut(effect))
    await refused(errors.NotFound, bench.one.write(say(effect.effect_id, "another", True, "1", "a")))
    settled = await bench.one.write(say(effect.effect_id, bench.tenant, True, "1", "a"))
    assert (settled.state, settled.settled_by) == (EffectState.RECONCILED, "a")
    await bench.one.write(say(effect.effect_id, bench.tenant, True, "1", "a"))  # its reply was lost
    await refused(
        errors.AlreadySettled, bench.one.write(say(effect.effect_id, bench.tenant, False, None, "b"))
    )


@check()
async def an_approval_is_used_by_one_start_only(bench: Bench) -> None:
    """Of its scope, before it ends, and never again: a start that it does not cover leaves nothing behind."""
    run, wanted = await bench.running(), wish(bench, approval=True)
    granted = {"tenant": bench.tenant, "name": wanted.name, "key": wanted.key, "by": "ann"}
    ask = effect_moves.open_(run.claim, wanted, True)
    await refused(errors.NotApproved, bench.one.write(ask))
    over = effect_moves.approve(seams.new_id(), fingerprint=None, lasts=-1.0, **granted)
    await bench.one.write(over)
    foreign = effect_moves.approve(seams.new_id(), fingerprint="g", lasts=60.0, **granted)
    await bench.one.write(foreign)
    await refused(errors.NotApproved, bench.one.write(ask))
    assert await bench.two.read(effect_reads.newest(wanted.tenant, wanted.name, wanted.key)) is None
    await bench.one.write(effect_moves.approve(seams.new_id(), fingerprint="f", lasts=60.0, **granted))
    effect = (await bench.one.write(ask)).effect
    assert await bench.one.write(effect_moves.finish(run.claim, effect, Answer(error='"no"')))
    again = replace(wanted, again_after_failure=True)
    await refused(errors.NotApproved, bench.one.write(effect_moves.open_(run.claim, again, True)))


@check()
async def the_end_of_a_run_makes_its_open_effects_unknown_and_tells_them(bench: Bench) -> None:
    """The summary in the end event and the ledger are of one transaction."""
    run = await bench.running()
    await finished(bench, run, wish(bench))
    cut = wish(bench, name="notify")
    await started(bench, run, cut)
    verdict = Verdict(state=State.STOPPED, reason=Reason.REQUESTED)
    for _ in range(2):  # the reply of the first was lost
        await bench.one.write(effect_moves.settle_run(run.claim, verdict, run.last_seq))
    end = (await bench.events(run.run_id))[-1].data
    assert end["effects"] == {
        "counts": {"done": 1, "unknown": 1},
        "executed": ["charge"],
        "unknown": ["notify"],
    }
    assert (await newest(bench, cut)).state is EffectState.UNKNOWN


@check()
async def the_run_that_undoes_is_made_with_the_verdict_and_once(bench: Bench) -> None:
    """By whoever ends the run: its holder, or the sweeper in a lost one's place."""
    policy = bench.submission().policy.but(compensate="always", recovery="stop")
    for holder in (True, False):
        run = await bench.running(policy=policy)
        await finished(bench, run, wish(bench, kind=Kind.REVERSIBLE))
        if holder:
            verdict = Verdict(state=State.FAILED, error="{}")
            for _ in range(2):
                await bench.one.write(effect_moves.settle_run(run.claim, verdict, run.last_seq))
        else:
            await bench.spoil(run, "lease_until = 0")
            await bench.one.write(moves.sweep(await bench.suspect(run), early=False))
        after = await bench.run(effect_steps.aftermath_id(run.origin, run.run_id))
        assert (after.agent, after.state) == (effect_steps.AFTERMATH, State.QUEUED)
        (due,) = await bench.one.read(effect_reads.due(run.origin))
        assert due.due == "compensate"
