"""The outbox: an end and its notifications are one, and each is sent from one place at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from outlive import failpoints
from outlive.model import Run, StopOutcome, Swept, Verdict
from outlive.notifications import Delivery, Notification
from outlive.policy import Recovery, job
from outlive.states import Reason, State
from outlive.store import effect_moves, moves, outbox_moves
from outlive.testing.store_checks.bench import LEASE, SHORT, WITHIN, Bench, check

URLS = ("https://one.example/hook", "https://two.example/hook")
MOST = 1000


def receivers(bench: Bench, *urls: str) -> str:
    """Who is told, as a run's record keeps it: receivers that no other check has."""
    told = [{"receiver": f"{bench.tenant} {url}", "url": url, "audience": "tenant"} for url in urls]
    return json.dumps(told)


def compose(run: Run, end: Mapping[str, Any]) -> str:
    """A body that shows what it was made of."""
    return json.dumps({"run": run.run_id, "state": run.state, "end": end["state"]})


async def told_of(bench: Bench, run: Run) -> list[Notification]:
    """The notifications of a run's end, read through the other store."""
    return await bench.two.read(outbox_moves.of_run(run.run_id, bench.tenant, limit=10))


async def take(
    bench: Bench, url: str = URLS[0], *, lease: float = LEASE, limit: int = 10
) -> list[Notification]:
    """Take what is to be sent to one receiver."""
    receiver = f"{bench.tenant} {url}"
    taken = await bench.one.write(outbox_moves.take(receiver, limit, bench.worker, lease, compose))
    return list(taken.rows)


async def ended(bench: Bench, *urls: str) -> Run:
    """A run that has succeeded, and of which somebody is to be told."""
    run = await bench.running(notify=receivers(bench, *(urls or URLS[:1])))
    await bench.settle(run)
    return run


async def _settled(bench: Bench, state: State, reason: Reason | None = None) -> Run:
    run = await bench.running(notify=receivers(bench, *URLS))
    await bench.settle(run, state, reason=reason)
    return run


async def _settled_with_effects(bench: Bench) -> Run:
    run = await bench.running(notify=receivers(bench, *URLS))
    await bench.one.write(effect_moves.settle_run(run.claim, Verdict(state=State.SUCCEEDED), run.last_seq))
    return run


async def _stopped_in_the_queue(bench: Bench) -> Run:
    run = await bench.queued(notify=receivers(bench, *URLS))
    answer = await bench.one.write(moves.stop(run.run_id, bench.tenant, Reason.REQUESTED))
    assert answer.outcome is StopOutcome.STOPPED
    return run


async def _swept(bench: Bench, stopped: bool) -> Run:
    declared = job(recovery=Recovery.STOP)
    run = await bench.running(notify=receivers(bench, *URLS), policy=declared)
    if stopped:
        await bench.stop(run)
    swept = await bench.one.write(moves.sweep(await bench.suspect(run), True))
    assert swept is (Swept.STOPPED if stopped else Swept.ABANDONED)
    return run


ENDS: tuple[tuple[State, Callable[[Bench], Coroutine[Any, Any, Run]]], ...] = (
    (State.SUCCEEDED, lambda bench: _settled(bench, State.SUCCEEDED)),
    (State.SUCCEEDED, _settled_with_effects),
    (State.WAITING, lambda bench: _settled(bench, State.WAITING)),
    (State.FAILED, lambda bench: _settled(bench, State.FAILED)),
    (State.STOPPED, lambda bench: _settled(bench, State.STOPPED, Reason.TIMEOUT)),
    (State.STOPPED, _stopped_in_the_queue),
    (State.STOPPED, lambda bench: _swept(bench, True)),
    (State.ABANDONED, lambda bench: _swept(bench, False)),
)


@check()
async def S24_every_kind_of_end_tells_each_receiver_once(bench: Bench) -> None:
    """However a run ends, there is one notification per receiver, and none before."""
    for state, end in ENDS:
        run = await end(bench)
        told = await told_of(bench, run)
        assert [(each.kind, each.url) for each in told] == [(f"run.{state}", url) for url in URLS], state
        assert [each.notification_id for each in told] == [f"{run.run_id}-1", f"{run.run_id}-2"]
        assert {each.created_at for each in told} == {(await bench.run(run.run_id)).ended_at}


@check()
async def nobody_is_told_of_a_run_that_goes_on(bench: Bench) -> None:
    """Made, claimed, written to, handed back, asked to stop: no end, so nothing to tell."""
    run = await bench.running(notify=receivers(bench, *URLS))
    await bench.append(run, '"chunk"')
    await bench.one.write(moves.hand_back(run.claim, (), run.last_seq + 1, LEASE))
    again = await bench.claim()
    assert again is not None
    await bench.stop(again)
    assert await told_of(bench, run) == []


@check()
async def a_run_without_receivers_tells_nobody(bench: Bench) -> None:
    """Most runs have none."""
    run = await bench.running()
    await bench.settle(run)
    assert await told_of(bench, run) == []


@check()
async def S24_an_end_that_was_rolled_back_tells_nobody(bench: Bench) -> None:
    """Refused, or failed after its statement: neither the end nor the notification is there."""
    run = await bench.running(notify=receivers(bench, *URLS))
    script = moves.settle(run.claim, Verdict(state=State.SUCCEEDED), run.last_seq + 1)
    try:
        await bench.one.write(script)
    except Exception:
        assert await told_of(bench, run) == []
    else:
        raise AssertionError("a writer that lost count ended the run")
    queued = await bench.queued(notify=receivers(bench, *URLS))
    try:
        await bench.one.write(_broken_after_the_end(queued, bench.tenant))
    except failpoints.FailpointReached:
        assert await told_of(bench, queued) == []
        assert (await bench.run(queued.run_id)).state is State.QUEUED
    else:
        raise AssertionError("the transaction did not fail")


def _broken_after_the_end(run: Run, tenant: str) -> Any:
    stop = moves.stop(run.run_id, tenant, Reason.REQUESTED)

    def start() -> Any:
        steps = stop.start()
        step = next(steps)
        while True:
            step = steps.send((yield step))
            if step.name == "finish":
                yield step
                failpoints.fail()

    return type(stop)("stop", start)


@check()
async def an_end_that_is_repeated_after_a_lost_reply_tells_once(bench: Bench) -> None:
    """The second settle finds the first."""
    run = await bench.running(notify=receivers(bench, *URLS))
    for store in (bench.one, bench.two):
        await store.write(moves.settle(run.claim, Verdict(state=State.SUCCEEDED), run.last_seq))
    assert len(await told_of(bench, run)) == 2


@check()
async def a_notification_is_in_one_hand_at_a_time(bench: Bench) -> None:
    """Two that look at once: one takes it; when its lease is over another may, with the same body."""
    run = await ended(bench)
    [taken] = await take(bench, lease=SHORT)
    assert (taken.run_id, taken.attempts) == (run.run_id, 1)
    assert taken.body == json.dumps({"run": run.run_id, "state": "succeeded", "end": "succeeded"})
    await bench.until(taken.next_at)
    [again] = await take(bench)
    assert (again.notification_id, again.body, again.attempts) == (taken.notification_id, taken.body, 2)
    assert await take(bench) == []


@check()
async def what_was_put_off_comes_when_it_is_due(bench: Bench) -> None:
    """A try that failed is made again after its delay, and the row says why it failed."""
    await ended(bench)
    [taken] = await take(bench)
    miss = outbox_moves.Miss(why="500", status=500, delay=SHORT)
    assert await bench.one.write(outbox_moves.missed(taken, miss))
    row = await bench.two.read(outbox_moves.notification(taken.notification_id, bench.tenant))
    assert (row.state, row.status, row.error) == (Delivery.PENDING, 500, "500")
    await bench.until(row.next_at)
    assert [each.attempts for each in await take(bench)] == [2]


@check()
async def a_late_hand_puts_nothing_off(bench: Bench) -> None:
    """Somebody else has it by now; but that it was delivered is a fact, whoever says so."""
    await ended(bench)
    [late] = await take(bench, lease=SHORT)
    await bench.until(late.next_at)
    bench.worker += "-2"
    [current] = await take(bench)
    miss = outbox_moves.Miss(why="late", delay=WITHIN, last=True)
    assert not await bench.one.write(outbox_moves.missed(late, miss))
    assert (
        await bench.two.read(outbox_moves.notification(late.notification_id, None))
    ).next_at == current.next_at
    assert await bench.one.write(outbox_moves.delivered(late, 200)) is not None
    assert await bench.one.write(outbox_moves.delivered(current, 200)) is None
    row = await bench.two.read(outbox_moves.notification(late.notification_id, None))
    assert row.state is Delivery.DELIVERED


@check()
async def a_receiver_that_does_not_answer_is_tried_by_one_at_a_time(bench: Bench) -> None:
    """After some failures it is left alone, then one row is tried; an answer closes the circuit."""
    for _ in range(3):
        await ended(bench)
    receiver = f"{bench.tenant} {URLS[0]}"
    [first, *_] = await take(bench)
    for _ in range(outbox_moves.TRIP):
        miss = outbox_moves.Miss(
            why="dead", delay=0.0, pause=lambda failures: SHORT if failures >= 5 else 0.0
        )
        await bench.one.write(outbox_moves.missed(first, miss))
    assert receiver not in await bench.one.read(outbox_moves.due([], MOST))
    await bench.until(await bench.clock() + SHORT)
    assert receiver in await bench.one.read(outbox_moves.due([], MOST))
    assert receiver not in await bench.one.read(outbox_moves.due([receiver], MOST))
    assert len(await take(bench)) == 1
    assert await take(bench) == []
    await bench.one.write(outbox_moves.delivered(first, 204))
    await bench.one.write(outbox_moves.resend(first.notification_id, bench.tenant))
    assert receiver in await bench.one.read(outbox_moves.due([], MOST))


@check()
async def what_waits_for_an_address_that_is_gone_is_given_up(bench: Bench) -> None:
    """So is what comes for it later, without a try; until somebody has one sent again."""
    for _ in range(2):
        await ended(bench)
    [first, second] = await take(bench)
    buried = await bench.one.write(outbox_moves.gone(first, 410))
    assert {each.notification_id for each in buried} == {first.notification_id, second.notification_id}
    later = await ended(bench)
    assert await take(bench) == []
    [row] = await told_of(bench, later)
    assert (row.state, row.attempts, row.error) == (Delivery.DEAD, 1, outbox_moves.GONE)
    again = await bench.one.write(outbox_moves.resend(row.notification_id, bench.tenant))
    assert (again.state, again.attempts) == (Delivery.PENDING, 0)
    assert [each.notification_id for each in await take(bench)] == [row.notification_id]


@check()
async def what_cannot_be_told_stands_in_nobodys_way(bench: Bench) -> None:
    """A record that cannot be read is a dead letter at once, and what comes behind it is taken."""
    runs = [await ended(bench) for _ in range(2)]

    def picky(run: Run, end: Mapping[str, Any]) -> str:
        if run.run_id == runs[0].run_id:
            raise ValueError("unreadable")
        return compose(run, end)

    receiver = f"{bench.tenant} {URLS[0]}"
    taken = await bench.one.write(outbox_moves.take(receiver, 10, bench.worker, LEASE, picky))
    assert [each.run_id for each in taken.rows] == [runs[1].run_id]
    assert [each.why for each in taken.buried] == [outbox_moves.NOTHING]
    assert [each.state for each in await told_of(bench, runs[0])] == [Delivery.DEAD]


@check()
async def what_is_too_old_is_given_up_unless_it_is_being_sent(bench: Bench) -> None:
    """A dead letter says why."""
    in_hand = await ended(bench, URLS[0])
    assert len(await take(bench)) == 1
    waiting = await ended(bench, URLS[1])
    buried = await bench.one.write(outbox_moves.expire(-WITHIN, MOST))
    assert waiting.run_id in {each.run_id for each in buried}
    assert in_hand.run_id not in {each.run_id for each in buried}
    [row] = await told_of(bench, waiting)
    assert (row.state, row.error) == (Delivery.DEAD, outbox_moves.OLD)


@check()
async def notifications_are_a_tenants_own(bench: Bench) -> None:
    """Nobody else reads, lists or resends them; newest first, page by page."""
    runs = [await ended(bench) for _ in range(3)]
    stranger = f"{bench.tenant}-stranger"
    listed = await bench.two.read(outbox_moves.notifications(bench.tenant, limit=2))
    rest = await bench.two.read(
        outbox_moves.notifications(bench.tenant, limit=10, before=listed[-1].notification_id)
    )
    assert [each.run_id for each in (*listed, *rest)] == [run.run_id for run in reversed(runs)]
    assert await bench.two.read(outbox_moves.notifications(stranger, limit=10)) == []
    assert await bench.two.read(outbox_moves.of_run(runs[0].run_id, stranger, limit=10)) == []
    for step in (outbox_moves.notification, outbox_moves.resend):
        try:
            await bench.one.write(step(listed[0].notification_id, stranger))
        except Exception as refused:
            assert type(refused).__name__ == "NotFound"  # noqa: PT017 - pytest is not here
        else:
            raise AssertionError("a stranger reached a notification")
    dead = await bench.two.read(outbox_moves.notifications(bench.tenant, limit=9, state=Delivery.DEAD))
    assert dead == []
