"""Deleting a thread, as transactions: first nobody finds it or can write to it, then it is taken away.

The first is one transaction under the thread's lock, and ends its live runs with a raised epoch: whatever
their executors send later is refused by the fence like that of any late holder.  The rest is done piece by
piece, so that nobody waits for a long thread, and by whoever finds it, so that a crash leaves nothing behind.

The ledger's rows stay: they are what is known of other people's money.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlive import errors
from outlive.ledger import Effect
from outlive.model import Verdict, millis
from outlive.states import Reason, State
from outlive.store import steps
from outlive.store.script import Steps, script, statement

GRAVE = "\x01"
"""The tenant of what is being deleted."""
MOST_NAMED = 20
"""Open effects that are named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Buried:
    """What burying did: the runs that it ended, how many effects remain, and which of them are open."""

    thread_id: str
    runs: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    effects: int = 0
    open: tuple[str, ...] = ()


@script()
def bury(thread_id: str, *, force: bool) -> Steps[Buried]:
    """End a thread's live runs and let nobody find it any more.

    A repeat, and whoever comes second, finds it done.  Raises ``ThreadUnsettled`` while the outcome of an
    effect is open, or one has yet to be released or undone, unless ``force``.
    """
    yield statement("lock_thread", thread_id=thread_id)
    return (yield from _bury(thread_id, force=force))


@script()
def bury_passed(thread_id: str) -> Steps[Buried | None]:
    """Do the same with a thread whose time has passed; None if something has happened on it meanwhile.

    Its schedules go with it: they would make it anew, as one that stays.
    """
    yield statement("lock_thread", thread_id=thread_id)
    if not (yield statement("has_passed", thread_id=thread_id)):
        return None
    scheduled = yield statement("schedules_on_thread", thread_id=thread_id)  # it loses its name then
    buried = yield from _bury(thread_id, force=False)
    for row in scheduled:
        yield statement("drop_schedule", **row)
        yield statement("drop_occurrences", schedule_id=row["schedule_id"])
    return buried


def _bury(thread_id: str, *, force: bool) -> Steps[Buried]:
    if not (yield statement("thread_is_there", thread_id=thread_id)):
        return Buried(thread_id=thread_id)
    found = yield statement("open_effects_of_thread", thread_id=thread_id, limit=MOST_NAMED)
    unsettled = [Effect.from_row(row) for row in found]
    if unsettled and not force:
        raise _unsettled(unsettled)
    live = yield statement("live_runs", thread_id=thread_id)
    for run_id in sorted(row["run_id"] for row in live):
        yield from _end(run_id)
    runs = yield statement("runs_of_thread", thread_id=thread_id)
    kept = yield statement("count_effects_of_thread", thread_id=thread_id)
    yield statement("forget_keys_of_thread", thread_id=thread_id)
    yield statement("bury_thread", thread_id=thread_id, grave=GRAVE)
    return Buried(
        thread_id=thread_id,
        runs=tuple(row["run_id"] for row in runs),
        stopped=tuple(row["run_id"] for row in live),
        effects=kept[0]["many"],
        open=tuple(effect.effect_id for effect in unsettled),
    )


def _unsettled(effects: list[Effect]) -> errors.ThreadUnsettled:
    named = ", ".join(
        f"{effect.name} ({effect.effect_id}, {effect.due or effect.known})" for effect in effects
    )
    return errors.ThreadUnsettled(
        f"The thread has effects that are open: {named}.",
        run_id=effects[0].run_id,
        effect_id=effects[0].effect_id,
    )


def _end(run_id: str) -> Steps[None]:
    yield statement("lock_run", run_id=run_id)
    run = yield from steps.known(run_id)
    verdict = Verdict(state=State.STOPPED, reason=Reason.REQUESTED)
    yield from steps.finish(run, verdict, source=run.state, step=int(run.state is State.RUNNING))


@script(single=True)
def pass_after(tenant: str, thread: str, seconds: float | None) -> Steps[bool]:
    """Have a thread pass ``seconds`` after the last that happens on it; None: never.

    Returns whether there is such a thread.
    """
    after = None if seconds is None else millis(seconds)
    return bool((yield statement("pass_after", tenant=tenant, thread=thread, after_ms=after)))


@script(reads=True)
def passes_after(thread_id: str) -> Steps[float | None]:
    """Return how many seconds after the last that happens on it a thread passes; None: it does not."""
    rows = yield statement("passing_of_thread", thread_id=thread_id)
    after = rows[0]["passes_after_ms"] if rows else None
    return None if after is None else after / 1000


@script(reads=True)
def passed(after: str, limit: int) -> Steps[list[tuple[str, str]]]:
    """Return the ids, above ``after``, and the names of threads whose time has passed."""
    rows = yield statement("passed_threads", after=after, limit=limit)
    return [(row["thread_id"], row["thread"]) for row in rows]


@script(reads=True)
def buried(limit: int) -> Steps[list[str]]:
    """Return threads of which something may be left, longest deleted first."""
    rows = yield statement("buried_threads", limit=limit)
    return [row["thread_id"] for row in rows]


@script(reads=True)
def runs(thread_id: str) -> Steps[list[tuple[str, str]]]:
    """Return the id and the agent of each run of a thread."""
    rows = yield statement("runs_of_thread", thread_id=thread_id)
    return [(row["run_id"], row["agent"]) for row in rows]


@script()
def clear_events(thread_id: str, batch: int) -> Steps[int]:
    """Delete up to ``batch`` events of a thread that was buried; returns how many those were."""
    if not (yield statement("lock_buried_thread", thread_id=thread_id)):
        return 0
    return len((yield statement("clear_events", thread_id=thread_id, limit=batch)))


@script()
def clear(thread_id: str) -> Steps[None]:
    """Delete whatever else a thread has that was buried, its checkpoints too, and the thread itself."""
    if not (yield statement("lock_buried_thread", thread_id=thread_id)):
        return
    if (yield statement("has_checkpoints")):
        yield statement("delete_checkpoints", thread_id=thread_id)
        yield statement("delete_checkpoint_writes", thread_id=thread_id)
    yield statement("clear_bodies", thread_id=thread_id)
    yield statement("clear_notifications", thread_id=thread_id)  # they tell what its runs came to
    yield statement("clear_viewers_of_runs", thread_id=thread_id)
    yield statement("clear_viewers_of_thread", thread_id=thread_id)
    yield statement("clear_runs", thread_id=thread_id)
    yield statement("clear_thread", thread_id=thread_id)
