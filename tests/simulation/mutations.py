"""Bugs put back on purpose, each of which the simulation has to notice, and as what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from outlive import admission, commands, encoding, execution, lease, presence, recorder, subscription, worker
from outlive.store import displacing, moves, reads, sql, steps, wakeup
from outlive.testing.simulation import Sabotage, agent, provider, simulate
from outlive.testing.simulation.database import SimulatedStore
from simulation import bugs

Blocks = Mapping[str, sql.Block]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A bug: how to put it in, the promises of which one must be seen broken, and by which seed at last.

    The bound leaves room: a change to the code under test is a change to every history.
    """

    name: str
    noticed_as: frozenset[str]
    sabotage: Callable[[], Sabotage] = Sabotage
    patch: Callable[[], Any] | None = None
    within: int = 150

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


def bug(name: str, *noticed_as: str, **how: Any) -> None:
    """Add a mutation to the list."""
    ALL.append(Mutation(name=name, noticed_as=frozenset(noticed_as), **how))


ALL: list[Mutation] = []
NOW = "CAST(:now AS BIGINT)"
OWNER = "AND epoch = :epoch AND claim_token = :claim_token"
BUSY = "o.state = 'running'"
NO_INDEX = ("DROP INDEX one_running_run_per_thread",)
EVENTS = "FROM json_each(:events) AS e"
CLAIMED = "(SELECT value ->> 0 FROM json_each(:claims))"
PAIRS = """(run_id, epoch, claim_token) IN (
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:claims))"""
WATCHED_STILL = f"""AND NOT EXISTS (
        SELECT 1 FROM presence p
        WHERE p.run_id = r.run_id AND coalesce(p.left_at, p.lease_until) + r.grace_ms > {NOW})"""
NEXT_SEQ = "(SELECT last_seq FROM runs WHERE run_id = :run_id) - :count + 1 + e.key"
LATEST_SEQ = (
    ("append", "AND last_seq = :expected", ""),
    ("append", ":expected + 1 + e.key", NEXT_SEQ),
)

# ---------------------------------------------------------------- the record

bug(
    "two runs may run on one thread",
    "I3",
    sabotage=lambda: edited(
        ("claim", BUSY, "0"),
        ("claim", "o.pos < runs.pos", "0"),
        ("claimable", BUSY, "0"),
        ("claimable", "o.pos < r.pos", "0"),
        ddl=NO_INDEX,
    ),
)
bug(
    "appending proves neither epoch nor token",
    "I2",
    sabotage=lambda: edited(("append", OWNER, ""), *LATEST_SEQ),
)
bug(
    "checkpoints prove neither epoch nor token",
    "I2",
    sabotage=lambda: edited(("check_fence", OWNER, "")),
)
bug(
    "checkpoints are written without any fence",
    "I2",
    patch=lambda: mock.patch.object(agent, "save", bugs.unfenced_save),
)
bug(
    "the verdict goes by the run's id only",
    "I1",
    "I2",
    sabotage=lambda: edited(
        ("finish", "AND epoch = :epoch AND state = :from_state AND last_seq = :expected", ""),
        (
            "finish",
            f"AND (:claim_token IS NULL OR (claim_token = :claim_token AND lease_until > {NOW}))",
            "",
        ),
        ("finish", ":expected + 1 + e.key", NEXT_SEQ),
    ),
    within=300,
)
bug(
    "claiming does not raise the epoch",
    "I2",
    sabotage=lambda: edited(("claim", "epoch = epoch + 1", "epoch = epoch + 0")),
)
bug(
    "requeueing does not raise the epoch",
    "I2",
    sabotage=lambda: edited(("requeue_lost", "epoch = epoch + 1", "epoch = epoch")),
)
bug(
    "a loss is not counted",
    "I12",
    sabotage=lambda: edited(("requeue_lost", "losses = losses + 1", "losses = losses")),
)
bug(
    "handing back charges a loss",
    "I12",
    sabotage=lambda: edited(("hand_back", "worker = NULL,", "worker = NULL, losses = losses + 1,")),
)
bug(
    "a run handed back is running still",
    "I2",
    sabotage=lambda: edited(("hand_back", "state = 'queued'", "state = 'running'")),
)
bug(
    "the end event is missing",
    "I1",
    sabotage=lambda: edited(("finish", EVENTS, f"{EVENTS} WHERE e.value ->> 0 <> 'end'")),
)
bug(
    "the attempt event is missing",
    "I2",
    sabotage=lambda: edited(("append", EVENTS, f"{EVENTS} WHERE e.value ->> 0 <> 'attempt'")),
)
bug(
    "seq is counted outside of the transaction",
    "I6",
    "I15",
    sabotage=lambda: edited(
        ("append", "AND last_seq = :expected", ""),
        ("append", "last_seq = last_seq + :count, renewed", "last_seq = :expected + :count, renewed"),
    ),
    patch=lambda: mock.patch.object(recorder.Recorder, "_commit", bugs.forgetting_commit),
)
bug("a retry appends twice", "I6", sabotage=lambda: edited(*LATEST_SEQ))
bug(
    "the thread's sequence is not counted",
    "I4",
    sabotage=lambda: edited(
        (
            "append",
            "UPDATE threads SET last_seq = last_seq + :count WHERE",
            "UPDATE threads SET last_seq = last_seq + :count + (:count > 1) WHERE",
        )
    ),
)
bug(
    "a later message overtakes an earlier one",
    "I3",
    sabotage=lambda: edited(
        ("claim", "o.pos < runs.pos", "o.pos > runs.pos"), ("claimable", "o.pos < r.pos", "o.pos > r.pos")
    ),
)
bug(
    "a delayed run begins at once",
    "I3",
    sabotage=lambda: edited(
        ("claim", f"AND (not_before IS NULL OR not_before <= {NOW})", ""),
        ("claimable", f"AND (r.not_before IS NULL OR r.not_before <= {NOW})", ""),
    ),
)

# ---------------------------------------------------------------- leases and sweeping

bug(
    "renewal names the worker instead of the pairs",
    "I2",
    sabotage=lambda: edited(
        (
            "renew",
            PAIRS,
            f"worker IN (SELECT w.worker FROM runs w WHERE w.run_id IN {CLAIMED})",
        )
    ),
)
bug("every renewal keeps every run", "I2", sabotage=lambda: edited(("renew", f"AND {PAIRS}", "")))
bug(
    "sweeping asks neither for the epoch nor for the lease",
    "I12",
    "I15",
    patch=lambda: mock.patch.object(moves, "sweep", bugs.sweep),
)
bug(
    "a missing token is proof enough",
    "I12",
    patch=lambda: bugs.both(
        mock.patch("outlive.sweeper.Sweeper._proven_dead", bugs.one_look),
        mock.patch.object(reads, "suspects", bugs.all_suspects),
    ),
)
bug("nobody sweeps", "I15", patch=lambda: mock.patch("outlive.sweeper.Sweeper.sweep_once", bugs.nothing))
bug(
    "recovery=stop is taken up again",
    "I12",
    patch=lambda: mock.patch("outlive.store.moves.Recovery", mock.Mock(STOP=object())),
)
bug(
    "a run with a stop request is given back",
    "I15",
    patch=lambda: mock.patch.object(steps, "finish", bugs.never_stopped),
)
bug(
    "a holder trusts itself for ever",
    "I2",
    patch=lambda: mock.patch.object(lease.Keeper, "_trust", return_value=1e9),
)

# ---------------------------------------------------------------- commands

bug(
    "a key is taken again",
    "I8",
    sabotage=lambda: edited(("take_key", "DO NOTHING", "DO UPDATE SET run_id = excluded.run_id")),
)
bug(
    "the key row comes after the run row",
    "I8",
    patch=lambda: mock.patch.object(commands.Commands, "_recorded", bugs.key_after_run),
)
bug(
    "the body behind a key is not compared",
    "I8",
    patch=lambda: mock.patch.object(encoding, "fingerprint", return_value="same"),
)
bug(
    "a full thread takes another run at once",
    "I3",
    patch=lambda: mock.patch.object(admission, "admit", return_value=admission.Accept(at_once=True)),
    sabotage=lambda: edited(ddl=NO_INDEX),
)
bug(
    "a message that displaces does not say whom",
    "I11",
    patch=lambda: mock.patch.object(displacing, "place", bugs.nobodys_place),
)
bug(
    "a message that displaces waits behind all who wait",
    "I3",
    patch=lambda: mock.patch.object(displacing, "place", bugs.last_place),
)
bug(
    "a message in the place of a run does not wait for its end",
    "I3",
    "I11",
    sabotage=lambda: edited(
        ("claim", BUSY, f"(runs.displaces IS NULL AND {BUSY})"),
        ("claimable", BUSY, f"(r.displaces IS NULL AND {BUSY})"),
        ddl=NO_INDEX,
    ),
)
bug(
    "a running run is ended by whoever asks",
    "I2",
    patch=lambda: mock.patch.object(moves, "stop", bugs.ending_stop),
)
bug(
    "a stop that came too late is said to be under way",
    "I7",
    patch=lambda: mock.patch.object(moves, "stop", bugs.polite_stop),
)
bug("nobody hears a stop request", "I11", patch=lambda: mock.patch.object(lease.Held, "end", bugs.deaf_end))
bug(
    "the slot of a claim whose reply was lost stays reserved",
    "I13",
    patch=lambda: mock.patch.object(worker.Worker, "claim_once", bugs.leaking_claim),
)

# ---------------------------------------------------------------- execution

bug(
    "recovery starts again from the top",
    "I2",
    "I15",
    patch=lambda: mock.patch.object(agent.StepsAgent, "first_step", return_value=0),
)
bug("the provider does not know keys", "I9", sabotage=lambda: Sabotage(forgetful_provider=True))
bug(
    "a step is recorded before it is done",
    "I15",
    patch=lambda: mock.patch.object(agent.StepsAgent, "do", bugs.record_first),
)
bug(
    "what was not yet written is dropped at the end",
    "I6",
    patch=lambda: mock.patch.object(recorder.Recorder, "tail", return_value=()),
)
bug(
    "shutdown fails what it should hand back",
    "I15",
    patch=lambda: mock.patch.object(execution, "_hand_back", bugs.fail_instead),
)
bug(
    "shutdown does not wait for a claim under way",
    "I12",
    patch=lambda: mock.patch.object(worker.Worker, "_end_claiming", bugs.cut_claiming),
    within=300,
)

bug(
    "nobody looks at how an agent that was given up on ended",
    "I13",
    patch=lambda: mock.patch.object(worker.Worker, "_drive", bugs.forgetful_drive),
)

# ---------------------------------------------------------------- observers

bug("readers see what was rolled back", "I5", "I6", sabotage=lambda: Sabotage(dirty_reads=True), within=300)
bug(
    "viewers are handed what is not committed yet",
    "I5",
    "I6",
    patch=lambda: mock.patch.object(recorder.Recorder, "_commit", bugs.handing_commit),
)
bug(
    "hints are all there is",
    "I15",
    patch=lambda: mock.patch.object(wakeup.Waiter, "wait", bugs.trusting_wait),
)
bug(
    "a hint is given before the commit, and hints are all there is",
    "I5",
    "I15",
    patch=lambda: bugs.both(
        mock.patch.object(wakeup.Waiter, "wait", bugs.trusting_wait),
        mock.patch.object(SimulatedStore, "announce", bugs.early_hint),
    ),
)
bug(
    "a cursor includes its own event",
    "I5",
    sabotage=lambda: edited(("events_after", "seq > :after", "seq >= :after")),
)
bug(
    "a follower skips an event now and then",
    "I5",
    sabotage=lambda: edited(("events_after", "seq > :after", "seq > :after + (:after % 5 = 3)")),
)
bug(
    "a follower ends with the state instead of the event",
    "I5",
    patch=lambda: mock.patch.object(subscription, "follow", bugs.hasty_follow),
)

# ---------------------------------------------------------------- presence

bug(
    "a disconnect is decided without a second look",
    "I11",
    sabotage=lambda: edited(
        ("is_unwatched", WATCHED_STILL, ""),
        ("unwatched", f"coalesce(p.left_at, p.lease_until) + r.grace_ms > {NOW}", "0"),
    ),
)
bug(
    "grace does not count",
    "I11",
    sabotage=lambda: edited(("is_unwatched", "r.grace_ms", "0"), ("unwatched", "r.grace_ms", "0")),
)
bug(
    "viewers of a dead process stay for ever",
    "I11",
    sabotage=lambda: edited(
        ("is_unwatched", "coalesce(p.left_at, p.lease_until)", "coalesce(p.left_at, 9e15)"),
        ("unwatched", "coalesce(p.left_at, p.lease_until)", "coalesce(p.left_at, 9e15)"),
    ),
    patch=lambda: mock.patch.object(presence.Presence, "_leave", bugs.nothing),
)
bug(
    "continue is not asked for",
    "I11",
    sabotage=lambda: edited(
        ("is_unwatched", "r.on_disconnect = 'cancel' AND ", ""),
        ("unwatched", "r.on_disconnect = 'cancel' AND ", ""),
    ),
)
bug(
    "nobody looks at how a join ended",
    "I13",
    patch=lambda: mock.patch.object(presence.Presence, "_joined", bugs.unlooked_joined),
    within=300,
)


bug(
    "who follows a thread gets two of its events in the wrong order",
    "I4",
    patch=lambda: mock.patch.object(subscription, "_read_thread", bugs.swapped),
)

# ---------------------------------------------------------------- tenants, people, providers

bug(
    "another tenant may ask for a run by its id",
    "I14",
    sabotage=lambda: edited(("run", "AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)", "")),
)
bug(
    "tenants share their threads",
    "I14",
    patch=lambda: mock.patch.object(moves, "submit", bugs.submit_for_everybody),
)
bug(
    "an agent that waits for a person is taken to be done",
    "I15",
    patch=lambda: mock.patch.object(execution, "_verdict", bugs.impatient_verdict),
)
bug(
    "every attempt has a key of its own",
    "I9",
    patch=lambda: mock.patch.object(provider, "key_of", bugs.key_of_attempt),
)


@dataclass(frozen=True, kw_only=True)
class Caught:
    """The first seed that noticed a mutation as what it is, and what it said."""

    seed: int
    says: str


def hunt(name: str) -> Caught | None:
    """Try the seeds within a mutation's bound, in order."""
    mutation = next(mutation for mutation in ALL if mutation.name == name)
    with mutation.applied() as sabotage:
        for seed in range(mutation.within):
            for violation in simulate(seed, sabotage=sabotage).violations:
                if violation.invariant in mutation.noticed_as:
                    return Caught(seed=seed, says=f"{violation.invariant}: {violation.what}")
    return None
