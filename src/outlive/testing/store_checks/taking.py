"""Large bodies and retention: what is stored beside the events, and what of a run is taken away."""

from __future__ import annotations

from outlive import errors, large
from outlive.store import bodies, pruning, reads, watching
from outlive.testing.store_checks.bench import Bench, check, other, refused

BODY = '"body"'


@check()
async def a_body_is_stored_by_its_runs_holder_only(bench: Bench) -> None:
    """Whoever reads the event that names it gets it whole; a late holder's is not kept."""
    run = await bench.running()
    late = '"late"'
    await bench.one.write(bodies.keep(other(run.claim, epoch=run.epoch + 1), late))
    await bench.one.write(bodies.keep(run.claim, BODY))
    await bench.one.write(bodies.keep(run.claim, BODY))
    await bench.append(run, large.reference(BODY))
    assert (await bench.two.read(bodies.event(run.run_id, 2))).payload == BODY
    await bench.append(await bench.run(run.run_id), large.reference(late))
    await refused(errors.NotFound, bench.two.read(bodies.event(run.run_id, 3)))


@check()
async def an_ended_run_is_pruned_in_batches_without_a_hole_and_a_live_one_never(bench: Bench) -> None:
    """What is left goes on to the end, in the run and in its thread; the record says where it begins."""
    run = await bench.running()
    await bench.append(run, *map(str, range(8)))
    assert (await bench.one.write(pruning.prune(run.run_id, 3))).deleted == 0
    await bench.settle(await bench.run(run.run_id))
    for left in (7, 4, 1):
        step = await bench.one.write(pruning.prune(run.run_id, 3))
        seqs = [event.seq for event in await bench.events(run.run_id)]
        assert seqs == list(range(11 - left, 11))
        assert await bench.two.read(pruning.oldest(run.run_id)) == seqs[0]
        assert step.over is (left == 1)
    assert (await bench.two.write(pruning.prune(run.run_id, 3))).deleted == 0
    begins = await bench.two.read(pruning.oldest_of_thread(run.thread_id))
    (kept,) = await bench.two.read(reads.thread_events(run.thread_id, 0, 10))
    assert kept.thread_seq == begins


@check()
async def who_watches_a_thread_watches_its_live_runs(bench: Bench) -> None:
    """And the record of each of them says so, as far as the viewer was sent its events."""
    run = await bench.running()
    await bench.one.write(watching.join("of-" + run.run_id, "", 3600, 0, thread_id=run.thread_id))
    found = await bench.two.read(watching.evidence(run.run_id))
    assert (found.viewers, found.watching, found.seen) == (1, 1, 0)
    await bench.one.write(watching.leave("of-" + run.run_id, "disconnect", 1, 0))
    found = await bench.two.read(watching.evidence(run.run_id))
    assert (found.watching, found.seen, found.cause) == (0, 1, "disconnect")
