"""Presence: who watches, until when, and when nobody does any more."""

from __future__ import annotations

from outlive import policy, seams
from outlive.model import Row, Run, StopOutcome
from outlive.states import Reason, State
from outlive.store import moves, watching
from outlive.store.script import Steps, script, statement
from outlive.testing.store_checks.bench import SHORT, Bench, check

AT_ONCE = policy.chat(grace=0)
SOON = policy.chat(grace=SHORT)


async def unwatched(bench: Bench, *runs: Run) -> list[str]:
    """Which of these runs nobody watches."""
    found = await bench.two.read(watching.unwatched(1000))
    return [run.run_id for run in runs if run.run_id in found]


async def stop_if_unwatched(bench: Bench, run: Run) -> StopOutcome:
    """What the one reader of ``on_disconnect`` does."""
    script = moves.stop(run.run_id, None, Reason.DISCONNECT, only_unwatched=True)
    return (await bench.one.write(script)).outcome


@check()
async def a_run_that_nobody_ever_watched_is_unwatched_after_its_grace(bench: Bench) -> None:
    """Grace counts from submit; a policy of ``continue`` is never unwatched."""
    soon, late = await bench.queued(policy=SOON), await bench.queued(policy=policy.chat(grace=3600))
    never = await bench.queued(policy=policy.job())
    await bench.until(soon.created_at + SHORT)
    assert await unwatched(bench, soon, late, never) == [soon.run_id]
    assert await stop_if_unwatched(bench, late) is StopOutcome.ALREADY
    assert await stop_if_unwatched(bench, never) is StopOutcome.ALREADY
    assert await stop_if_unwatched(bench, soon) is StopOutcome.STOPPED
    stopped = await bench.run(soon.run_id)
    assert (stopped.state, stopped.reason) == (State.STOPPED, Reason.DISCONNECT)
    assert await unwatched(bench, soon) == []


@check()
async def a_viewer_named_by_the_submit_watches_from_the_first_moment(bench: Bench) -> None:
    """There is no gap between the run and its first viewer in which it could be stopped."""
    run = await bench.queued(policy=AT_ONCE, viewer=seams.new_id())
    assert await unwatched(bench, run) == []
    assert await stop_if_unwatched(bench, run) is StopOutcome.ALREADY
    assert (await bench.run(run.run_id)).state is State.QUEUED


@check()
async def presence_ends_with_the_last_viewers_leaving(bench: Bench) -> None:
    """A second viewer keeps the run; leaving is per viewer."""
    run, one, two = await bench.queued(policy=AT_ONCE), seams.new_id(), seams.new_id()
    for viewer in (one, two):
        await bench.one.write(watching.join(viewer, run.run_id, 3600, 0))
    await bench.one.write(watching.leave(one, "disconnect", 3, 0))
    await bench.until(await bench.clock())
    assert await unwatched(bench, run) == []
    await bench.two.write(watching.leave(two, "disconnect", 0, 0))
    await bench.until(await bench.clock())
    assert await unwatched(bench, run) == [run.run_id]


@check()
async def a_viewer_that_vanishes_is_gone_when_its_lease_ends(bench: Bench) -> None:
    """A client without a FIN, or an API process that dies, stops renewing its presence."""
    run, viewer = await bench.queued(policy=AT_ONCE), seams.new_id()
    await bench.one.write(watching.join(viewer, run.run_id, SHORT, 0))
    await bench.one.write(watching.keep({viewer: 4}, SHORT * 2))
    await bench.until(await bench.clock() + SHORT * 2)
    assert await unwatched(bench, run) == [run.run_id]
    await bench.one.write(watching.keep({}, SHORT))


@check()
async def presence_is_kept_by_renewing_it(bench: Bench) -> None:
    """Keeping extends the lease of exactly the viewers named; one who left stays gone."""
    kept, gone = await bench.queued(policy=AT_ONCE), await bench.queued(policy=AT_ONCE)
    viewers = (seams.new_id(), seams.new_id())
    for viewer, run in zip(viewers, (kept, gone), strict=True):
        await bench.one.write(watching.join(viewer, run.run_id, SHORT, 0))
    await bench.one.write(watching.leave(viewers[1], "disconnect", 0, 0))
    await bench.two.write(watching.keep(dict.fromkeys(viewers, 7), 3600))
    await bench.until(await bench.clock() + SHORT)
    assert await unwatched(bench, kept, gone) == [gone.run_id]


@check()
async def an_end_that_we_caused_keeps_presence_for_a_while(bench: Bench) -> None:
    """After a rotation or a shutdown the viewer has time to come back, and coming back counts."""
    run, viewer = await bench.queued(policy=AT_ONCE), seams.new_id()
    await bench.one.write(watching.join(viewer, run.run_id, 3600, 0))
    await bench.one.write(watching.leave(viewer, "ours", 2, 3600))
    assert await unwatched(bench, run) == []
    await bench.one.write(watching.leave(viewer, "late", 2, 0))
    assert await unwatched(bench, run) == [], "a second leave shortened the first"
    await bench.one.write(watching.join(viewer, run.run_id, 3600, 2))
    await bench.one.write(watching.leave(viewer, "disconnect", 2, 0))
    await bench.until(await bench.clock())
    assert await unwatched(bench, run) == [run.run_id]


@check()
async def viewers_who_saw_the_end_are_recorded_together(bench: Bench) -> None:
    """Each with how far it read; nobody else is touched, and whoever had left already stays as it was."""
    run, names = await bench.queued(policy=AT_ONCE), [seams.new_id() for _ in range(4)]
    for viewer in names:
        await bench.one.write(watching.join(viewer, run.run_id, 3600, 0))
    await bench.one.write(watching.leave(names[2], "disconnect", 1, 0))
    await bench.two.write(watching.leave_at_end({names[0]: 7, names[1]: 9, names[2]: 9, "unknown": 1}))
    rows = {row["viewer"]: row for row in await bench.one.read(_viewers(run.run_id))}
    told = [(rows[name]["cause"], rows[name]["last_seq"]) for name in names]
    assert told == [("end", 7), ("end", 9), ("disconnect", 1), (None, 0)]
    assert [rows[name]["left_at"] is None for name in names] == [False, False, False, True]


@script(reads=True)
def _viewers(run_id: str) -> Steps[list[Row]]:
    return (yield statement("viewers", run_id=run_id))


@check()
async def a_viewer_who_came_back_keeps_the_run(bench: Bench) -> None:
    """Between the look and the stop somebody joined: the stop looks again, under the lock, and lets go."""
    run = await bench.running(policy=AT_ONCE)
    await bench.until(run.created_at)
    assert await unwatched(bench, run) == [run.run_id]
    await bench.two.write(watching.join(seams.new_id(), run.run_id, 3600, 0))
    assert await stop_if_unwatched(bench, run) is StopOutcome.ALREADY
    assert (await bench.run(run.run_id)).stop_requested_at is None


@check()
async def a_running_run_that_nobody_watches_is_told_to_stop(bench: Bench) -> None:
    """The holder hears of it, with the reason; asked once, the run is no longer listed."""
    run = await bench.running(policy=AT_ONCE)
    await bench.until(run.created_at)
    assert await stop_if_unwatched(bench, run) is StopOutcome.REQUESTED
    assert (await bench.run(run.run_id)).stop_reason is Reason.DISCONNECT
    assert await unwatched(bench, run) == []
