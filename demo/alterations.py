"""Alterations of a server, made from outside before it starts.

Decides how each is done.  Nothing here is a switch of the library's: a server that is started by
``demo.launch`` rewrites its own queries or replaces its own functions first.  Each alteration insists on
finding what it takes away, so that a break cannot turn into nothing unnoticed.
"""

from __future__ import annotations

import asyncio
import functools
import re
import sqlite3
from collections.abc import AsyncGenerator, Callable
from typing import Any

from outlive import execution, lease, recorder, subscription
from outlive.agents import graph_call
from outlive.model import Event, EventKind, NewEvent, Row
from outlive.store import reads, sql, sqlite, steps, wakeup
from outlive.store.script import Script

LATE = 0.2
"""Seconds from the publication to the commit when they are the wrong way round: a busy disk takes as long."""
STALE = 0.1
"""Seconds for which an answer that was read outside of the transaction is carried about."""


def _rewrite(name: str, number: int, pattern: str, replacement: str) -> None:
    blocks: Any = sql.load(sql.Dialect.SQLITE)  # the very mapping that the store uses
    block = blocks[name]
    statements = list(block.statements)
    statements[number], found = re.subn(pattern, replacement, statements[number], flags=re.DOTALL)
    if not found:
        raise LookupError(f"{pattern!r} is not in {name}: this break breaks nothing any more.")
    blocks[name] = sql.Block(name=name, statements=tuple(statements))


def sure() -> None:
    """No break: an executor that never doubts itself, so that whatever it writes late reaches a fence.

    The real one watches its clock and the record, and mostly stops before it writes anything.
    """
    _replace(lease.Keeper, "trust_left", lambda *_: 3600.0)
    _replace(lease.Keeper, "_lost", lambda *_, **__: None)


def no_epoch_in_fence() -> None:
    """Checkpoints are written by whoever once held the run, if anybody holds it now."""
    _rewrite("check_fence", 0, r"AND epoch = :epoch AND claim_token = :claim_token", "")


def settle_by_id_only() -> None:
    """A verdict names its run and proves nothing, and takes the next number there is for its event."""
    _rewrite("finish", 0, r"WHERE run_id = :run_id AND .*RETURNING", "WHERE run_id = :run_id RETURNING")
    newest = "(SELECT last_seq FROM runs WHERE run_id = :run_id) - :count"
    _rewrite("finish", 2, r":expected", newest)


def no_resume() -> None:
    """Every attempt and every continuation calls the graph under a new run id: it begins at START."""
    original = graph_call._config

    def config(context: Any, asked: Any) -> Any:
        made, ignored = original(context, asked)
        made["metadata"]["run_id"] = f"{context.run.run_id}:{context.attempt}"
        return made, ignored

    _replace(graph_call, "_config", config)


def stale_admission() -> None:
    """What runs on a thread is read before the transaction that acts on it, and no query looks again.

    PostgreSQL would do this if the thread's row were not locked first.  SQLite lets in one writer at a time,
    so its transactions would keep two messages apart even without the index.
    """
    _rewrite("claim", 0, r"AND NOT EXISTS \(.*\)\s*RETURNING", "RETURNING")
    original = sqlite.SqliteStore.write

    async def write(store: sqlite.SqliteStore, script: Script[Any], *, budget: float = 10.0) -> Any:
        if script.name != "submit":
            return await original(store, script, budget=budget)
        return await store._within(script.name, lambda _: _submit_stale(store, script), budget)

    _replace(sqlite.SqliteStore, "write", write)


Live = dict[str, list[Row]]


async def _submit_stale(store: sqlite.SqliteStore, script: Script[Any]) -> Any:
    live = await store.read_with(_live_threads, name="stale")
    await asyncio.sleep(STALE)
    return await store.in_writer(functools.partial(_run_stale, store, script, live))


def _live_threads(connection: sqlite3.Connection) -> Live:
    found: Live = {}
    for row in connection.execute(
        "SELECT thread_id, run_id, state, epoch, displaces FROM runs"
        " WHERE state IN ('queued', 'running') ORDER BY pos"
    ):
        found.setdefault(row["thread_id"], []).append(dict(row))
    return found


def _run_stale(
    store: sqlite.SqliteStore,
    script: Script[Any],
    live: Live,
    connection: sqlite3.Connection,
) -> Any:
    running = script.start()
    step = next(running)
    try:
        while True:
            if step.name == "live_runs":
                rows = live.get(step.params["thread_id"], [])
            else:
                rows = sqlite.execute(connection, store._blocks, step)
            step = running.send(rows)
    except StopIteration as end:
        return end.value


def no_unique_index() -> None:
    """Nothing in the database keeps a second running run off a thread."""
    original = sqlite.prepare

    def prepare(connection: sqlite3.Connection) -> None:
        original(connection)
        connection.execute("DROP INDEX IF EXISTS one_running_run_per_thread")

    _replace(sqlite, "prepare", prepare)


def publish_before_commit() -> None:
    """Viewers are shown events from memory, and the record gets them a little later."""
    shown: dict[str, list[Event]] = {}
    commit, settle = recorder.Recorder._commit, execution._settle

    async def publish(held: lease.Held, store: Any, last_seq: int, batch: tuple[NewEvent, ...]) -> None:
        early = [_event(held, last_seq + n, new) for n, new in enumerate(batch, 1)]
        shown.setdefault(held.claim.run_id, []).extend(early)
        store.announce(wakeup.run_topic(held.claim.run_id))
        await asyncio.sleep(LATE)

    async def commit_late(log: Any, batch: tuple[NewEvent, ...]) -> None:
        await publish(log._held, log._store, log.last_seq, batch)
        await commit(log, batch)

    async def settle_late(attempt: Any, verdict: Any, tail: tuple[NewEvent, ...]) -> None:
        batch = (*tail, steps.end_event(verdict))
        await publish(attempt.held, attempt.around.store, attempt.recorder.last_seq, batch)
        await settle(attempt, verdict, tail)

    _replace(recorder.Recorder, "_commit", commit_late)
    _replace(execution, "_settle", settle_late)
    _replace(subscription, "looks", functools.partial(_follow_memory, shown))


def _event(held: lease.Held, seq: int, new: NewEvent) -> Event:
    claim = held.claim
    return Event(
        run_id=claim.run_id,
        seq=seq,
        thread_seq=0,
        epoch=claim.epoch,
        kind=new.kind,
        mode=new.mode,
        payload=new.payload,
        created_at=0.0,
    )


async def _follow_memory(
    shown: dict[str, list[Event]], store: Any, run_id: str, *, after: int = 0
) -> AsyncGenerator[subscription.Look, None]:
    with store.hub.watch(wakeup.run_topic(run_id)) as waiter:
        while True:
            waiter.clear()
            stored = await store.read(reads.events(run_id, after, 500))
            known = {event.seq for event in stored}
            early = [event for event in shown.get(run_id, ()) if event.seq not in known]
            for event in sorted((*stored, *early), key=lambda event: event.seq):
                if event.seq == after + 1:
                    yield subscription.Look([event])
                    after = event.seq
                    if event.kind is EventKind.END:
                        return
            await waiter.wait()


def _replace(owner: Any, name: str, replacement: Any) -> None:
    if not hasattr(owner, name):
        raise LookupError(f"{owner.__name__} has no {name}: this break breaks nothing any more.")
    setattr(owner, name, replacement)


ALTERATIONS: dict[str, Callable[[], None]] = {
    "sure": sure,
    "no-epoch-in-fence": no_epoch_in_fence,
    "settle-by-id-only": settle_by_id_only,
    "no-resume": no_resume,
    "stale-admission": stale_admission,
    "no-unique-index": no_unique_index,
    "publish-before-commit": publish_before_commit,
}
