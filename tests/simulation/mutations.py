"""Bugs put back on purpose, each of which the simulation has to notice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from outlive import agents, commands, disconnect, encoding, execution, lease, recorder, subscription, worker
from outlive.model import EventKind
from outlive.policy import RunPolicy
from outlive.store import moves, reads, sql, steps, wakeup
from outlive.testing.simulation import agent
from outlive.testing.simulation.database import SimulatedStore
from outlive.testing.simulation.simulate import Sabotage

Blocks = Mapping[str, sql.Block]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A bug: how to put it in, and by which of the first ``within`` seeds it must be noticed."""

    name: str
    sabotage: Callable[[], Sabotage] = Sabotage
    patch: Callable[[], Any] | None = None
    within: int = 60
    noticed_as: frozenset[str] = field(default=frozenset())

    @contextmanager
    def applied(self) -> Iterator[Sabotage]:
        """Put the bug in for the length of the block."""
        if self.patch is None:
            yield self.sabotage()
            return
        with self.patch():
            yield self.sabotage()


def edited(*edits: tuple[str, str, str], **more: Any) -> Sabotage:
    """Replace text in named blocks; an edit that changes nothing is an error of the test."""
    blocks: dict[str, sql.Block] = dict(sql.load(sql.Dialect.SQLITE, bound_clock=True))
    for name, old, new in edits:
        changed = tuple(text.replace(old, new) for text in blocks[name].statements)
        assert changed != blocks[name].statements, f"{old!r} is not in {name}"
        blocks[name] = dataclasses.replace(blocks[name], statements=changed)
    return Sabotage(blocks=blocks, **more)


NOW = "CAST(:now AS BIGINT)"
OWNER = "AND epoch = :epoch AND claim_token = :claim_token"
BUSY = "o.state = 'running'"
NO_INDEX = ("DROP INDEX one_running_run_per_thread",)
LATEST_SEQ = (
    ("append", "AND last_seq = :expected", ""),
    (
        "append",
        ":expected + 1 + e.key",
        "(SELECT last_seq FROM runs WHERE run_id = :run_id) - :count + 1 + e.key",
    ),
)
ALL: list[Mutation] = []


def bug(name: str, **how: Any) -> None:
    """Add a mutation to the list."""
    ALL.append(Mutation(name=name, **how))


# ---------------------------------------------------------------- the record

bug(
    "two runs may run on one thread",
    sabotage=lambda: edited(
        ("claim", BUSY, "0"), ("claim", "o.pos < runs.pos", "0"), ("claimable", BUSY, "0"),
        ("claimable", "o.pos < r.pos", "0"), ddl=NO_INDEX,
    ),
)  # fmt: skip
bug(
    "appending proves neither epoch nor token",
    sabotage=lambda: edited(("append", OWNER, ""), *LATEST_SEQ),
    within=150,
)
bug(
    "checkpoints prove neither epoch nor token",
    sabotage=lambda: edited(("check_fence", OWNER, "")),
    within=150,
)
bug(
    "checkpoints are written without any fence",
    patch=lambda: mock.patch.object(agent, "save", _unfenced),
    within=150,
)
bug(
    "the verdict goes by the run's id only",
    sabotage=lambda: edited(
        ("finish", "AND epoch = :epoch AND state = :from_state AND last_seq = :expected", ""),
        (
            "finish",
            "AND (:claim_token IS NULL OR (claim_token = :claim_token AND lease_until > " + NOW + "))",
            "",
        ),
        (
            "finish",
            ":expected + 1 + e.key",
            "(SELECT last_seq FROM runs WHERE run_id = :run_id) - :count + 1 + e.key",
        ),
    ),
    within=150,
)
bug(
    "claiming does not raise the epoch",
    sabotage=lambda: edited(("claim", "epoch = epoch + 1", "epoch = epoch + 0")),
)
bug(
    "requeueing does not raise the epoch",
    sabotage=lambda: edited(("requeue_lost", "epoch = epoch + 1", "epoch = epoch")),
)
bug(
    "a loss is not counted",
    sabotage=lambda: edited(("requeue_lost", "losses = losses + 1", "losses = losses")),
)
bug(
    "handing back charges a loss",
    sabotage=lambda: edited(("hand_back", "worker = NULL,", "worker = NULL, losses = losses + 1,")),
)
bug(
    "a run handed back is running still",
    sabotage=lambda: edited(("hand_back", "state = 'queued'", "state = 'running'")),
)
bug(
    "the end event is missing",
    sabotage=lambda: edited(
        (
            "finish",
            "FROM json_each(:events) AS e",
            "FROM json_each(:events) AS e WHERE e.value ->> 0 <> 'end'",
        )
    ),
)
bug(
    "the attempt event is missing",
    sabotage=lambda: edited(
        (
            "append",
            "FROM json_each(:events) AS e",
            "FROM json_each(:events) AS e WHERE e.value ->> 0 <> 'attempt'",
        )
    ),
)
bug(
    "seq is counted outside of the transaction",
    sabotage=lambda: edited(
        ("append", "AND last_seq = :expected", ""),
        ("append", "last_seq = last_seq + :count, renewed", "last_seq = :expected + :count, renewed"),
    ),
    patch=lambda: mock.patch.object(recorder.Recorder, "_commit", _forgetting_commit),
)
bug(
    "a retry appends twice",
    sabotage=lambda: edited(*LATEST_SEQ),
)
bug(
    "the thread's sequence is not counted",
    sabotage=lambda: edited(
        (
            "append",
            "UPDATE threads SET last_seq = last_seq + :count WHERE",
            "UPDATE threads SET last_seq = last_seq + :count + (:count > 1) WHERE",
        )
    ),
)

# ---------------------------------------------------------------- leases and sweeping

bug(
    "renewal names the worker instead of the pairs",
    sabotage=lambda: edited(
        (
            "renew",
            "(run_id, epoch, claim_token) IN (\n    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:claims))",
            "worker IN (SELECT w.worker FROM runs w WHERE w.run_id IN (SELECT value ->> 0 FROM json_each(:claims)))",
        )
    ),
    within=150,
)
bug(
    "every renewal keeps every run",
    sabotage=lambda: edited(
        (
            "renew",
            "AND (run_id, epoch, claim_token) IN (\n    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:claims))",
            "",
        )
    ),
    within=150,
)
bug(
    "sweeping asks neither for the epoch nor for the lease",
    patch=lambda: mock.patch.object(moves, "sweep", _careless_sweep),
)
bug(
    "a missing token is proof enough",
    patch=lambda: _both(
        mock.patch("outlive.sweeper.Sweeper._proven_dead", _one_look),
        mock.patch.object(reads, "suspects", _all_suspects),
    ),
    within=150,
)
bug("nobody sweeps", patch=lambda: mock.patch("outlive.sweeper.Sweeper.sweep_once", _nothing))
bug(
    "recovery=stop is taken up again",
    patch=lambda: mock.patch("outlive.store.moves.Recovery", mock.Mock(STOP=object())),
)
bug(
    "a run with a stop request is given back",
    patch=lambda: mock.patch.object(moves.steps, "finish", _never_stopped),
    within=150,
)
bug(
    "a holder trusts itself for ever",
    patch=lambda: mock.patch.object(lease.Keeper, "_trust", lambda self, since: 1e9),
    within=150,
)

# ---------------------------------------------------------------- commands

bug(
    "a key is taken again",
    sabotage=lambda: edited(("take_key", "DO NOTHING", "DO UPDATE SET run_id = excluded.run_id")),
)
bug(
    "the body behind a key is not compared",
    sabotage=lambda: edited(("read_key", "SELECT fingerprint,", "SELECT :key AS ignored, fingerprint,")),
    patch=lambda: mock.patch.object(commands.encoding, "fingerprint", lambda value: "same"),
)
bug(
    "a full thread takes another run at once",
    patch=lambda: mock.patch.object(
        moves.admission, "admit", lambda live, policy: moves.admission.Accept(at_once=True)
    ),
    sabotage=lambda: edited(ddl=NO_INDEX),
)
bug("a running run is ended by whoever asks", patch=lambda: mock.patch.object(moves, "stop", _ending_stop))
bug("nobody hears a stop request", patch=lambda: mock.patch.object(lease.Held, "end", _deaf_end))
bug(
    "the slot of a claim whose reply was lost stays reserved",
    patch=lambda: mock.patch.object(worker.Worker, "claim_once", _leaking_claim),
    within=150,
)

# ---------------------------------------------------------------- execution

bug(
    "recovery starts again from the top",
    patch=lambda: mock.patch.object(agent.StepsAgent, "first_step", lambda self, origin: 0),
)
bug("the provider does not know keys", sabotage=lambda: Sabotage(forgetful_provider=True))
bug(
    "a step is recorded before it is done",
    patch=lambda: mock.patch.object(agent.StepsAgent, "do", _record_first),
    within=150,
)
bug(
    "what was not yet written is dropped at the end",
    patch=lambda: mock.patch.object(recorder.Recorder, "tail", lambda self: ()),
)
bug(
    "shutdown fails what it should hand back",
    patch=lambda: mock.patch.object(execution, "_hand_back", _fail_instead),
)

# ---------------------------------------------------------------- observers

bug("readers see what was rolled back", sabotage=lambda: Sabotage(dirty_reads=True), within=150)
bug("hints are all there is", patch=lambda: mock.patch.object(wakeup.Waiter, "wait", _trusting_wait))
bug(
    "a hint is given before the commit, and hints are all there is",
    patch=lambda: _both(
        mock.patch.object(wakeup.Waiter, "wait", _trusting_wait),
        mock.patch.object(SimulatedStore, "announce", _early_hint),
    ),
)
bug(
    "a cursor includes its own event",
    sabotage=lambda: edited(("events_after", "seq > :after", "seq >= :after")),
)
bug(
    "a follower skips an event now and then",
    sabotage=lambda: edited(("events_after", "seq > :after", "seq > :after + (:after % 5 = 3)")),
)
bug(
    "a follower ends with the state instead of the event",
    patch=lambda: mock.patch.object(subscription, "follow", _hasty_follow),
)

# ---------------------------------------------------------------- presence

bug(
    "a disconnect is decided without a second look",
    sabotage=lambda: edited(
        (
            "is_unwatched",
            "AND NOT EXISTS (\n        SELECT 1 FROM presence p\n        WHERE p.run_id = r.run_id AND coalesce(p.left_at, p.lease_until) + r.grace_ms > "
            + NOW
            + ")",
            "",
        ),
        ("unwatched", "coalesce(p.left_at, p.lease_until) + r.grace_ms > " + NOW, "0"),
    ),
)
bug(
    "grace does not count",
    sabotage=lambda: edited(("is_unwatched", "r.grace_ms", "0"), ("unwatched", "r.grace_ms", "0")),
)
bug(
    "viewers of a dead process stay for ever",
    sabotage=lambda: edited(
        ("is_unwatched", "coalesce(p.left_at, p.lease_until)", "coalesce(p.left_at, 9e15)"),
        ("unwatched", "coalesce(p.left_at, p.lease_until)", "coalesce(p.left_at, 9e15)"),
    ),
    patch=lambda: mock.patch("outlive.presence.Presence._leave", _nothing),
    within=150,
)
bug(
    "continue is not asked for",
    sabotage=lambda: edited(
        ("is_unwatched", "r.on_disconnect = 'cancel' AND ", ""),
        ("unwatched", "r.on_disconnect = 'cancel' AND ", ""),
    ),
)


@contextmanager
def _both(*patches: Any) -> Iterator[None]:
    first, second = patches
    with first, second:
        yield


def _unfenced(database: Any, holder: Any, origin: str, step: int) -> Any:
    @steps_script
    def save() -> Any:
        yield steps.statement("clock")
        database.checkpoints[origin] = step + 1
        database.history.checkpoints.append(
            agent.Checkpoint(database.loop.time(), origin, step, holder.epoch, holder.run_id)
        )

    return save()


def steps_script(function: Any) -> Any:
    """Make a script of a generator function."""
    return moves.script()(function)


async def _forgetting_commit(self: Any, batch: Any) -> None:
    """The recorder counts by itself, whatever the reply says, and begins again after an error."""
    if not batch:
        return
    step = moves.append(self._held.claim, batch, max(0, self.last_seq - 1), self._keeper.timing.lease)
    appended = await self._store.write(step)
    self.last_seq = appended.last_seq


def _careless_sweep(suspect: Any, early: bool) -> Any:
    @steps_script
    def sweep() -> Any:
        yield steps.statement("lock_thread", thread_id=suspect.thread_id)
        rows = yield steps.statement("lock_run", run_id=suspect.run_id)
        if not rows or rows[0]["state"] != "running":
            return moves.Swept.SPARED
        yield steps.statement("requeue_lost", run_id=suspect.run_id, epoch=rows[0]["epoch"])
        return moves.Swept.REQUEUED

    return sweep()


_suspects = reads.suspects


def _all_suspects(missed_ms: int, limit: int) -> Any:
    return _suspects(0, limit)


async def _one_look(self: Any, workers: set[str]) -> set[str]:
    dead: set[str] = await self._store.dead(workers) if workers else set()
    return dead


async def _nothing(self: Any, *_: Any) -> int:
    return 0


def _never_stopped(run: Any, verdict: Any, *, source: Any, step: int = 0) -> Any:
    if step:
        yield steps.statement("requeue_lost", run_id=run.run_id, epoch=run.epoch)
    else:
        yield from _finish(run, verdict, source=source, step=step)


_finish = steps.finish
_stop = moves.stop
_end = lease.Held.end
_claim_once = worker.Worker.claim_once
_write = SimulatedStore.write


def _ending_stop(run_id: str, tenant: str | None, reason: Any, only_unwatched: bool = False) -> Any:
    @steps_script
    def stop() -> Any:
        run = yield from steps.visible(run_id, tenant)
        if run.state is moves.State.RUNNING:
            yield from steps.finish(
                run, moves.Verdict(state=moves.State.STOPPED, reason=reason), source=run.state
            )
            return moves.Stop(run=(yield from steps.known(run_id)), outcome=moves.StopOutcome.STOPPED)
        return (yield from _stop(run_id, tenant, reason, only_unwatched).start())

    stop.__name__ = "stop"
    return dataclasses.replace(stop(), name="stop")


def _deaf_end(self: Any, halt: Any, reason: Any = None) -> None:
    if halt is not lease.Halt.STOP:
        _end(self, halt, reason)


async def _leaking_claim(self: Any) -> int:
    before = set(self._reserved)
    try:
        return await _claim_once(self)
    except Exception:
        self._reserved |= {f"leaked-{len(self._reserved)}"} | before
        raise


async def _record_first(self: Any, context: Any, step: int) -> None:
    await self._process.store.write(
        agent.save(self._process.fleet.database, context.claim, context.run.origin, step)
    )
    self._call(context, step)


async def _fail_instead(attempt: Any, tail: Any) -> Any:
    return moves.Verdict(state=moves.State.FAILED, error="{}")


async def _trusting_wait(self: Any, bound: float | None = None) -> None:
    await self._event.wait()


def _early_hint(self: Any, *topics: str) -> None:
    """The hint went out before the transaction began; nothing is said after its commit."""


async def _hasty_follow(store: Any, run_id: str, *, after: int = 0) -> Any:
    with store.hub.watch(wakeup.run_topic(run_id)) as waiter:
        while True:
            waiter.clear()
            for event in await store.read(reads.events(run_id, after, 500)):
                if event.kind is not EventKind.END:
                    yield event
                    after = event.seq
            if (await store.read(reads.run(run_id, None))).state.terminal:
                return
            await waiter.wait()
