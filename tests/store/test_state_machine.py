"""Random moves by many hands against a real store: every change is one that ``states.MOVES`` allows.

The machine knows from the rows before a move what must come of it, holds on to every claim, script and
suspicion that it ever had, and uses them late.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import pathlib
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hypothesis
import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import dict_row

from outlive import admission, errors, policy, seams, states
from outlive.model import (
    Admitted,
    Claim,
    EventKind,
    NewEvent,
    Offer,
    Run,
    StopOutcome,
    Submission,
    Submitted,
    Suspect,
    Swept,
    Verdict,
)
from outlive.states import Move, Reason, State
from outlive.store import Store, moves, reads
from outlive.store.postgres import PostgresStore
from outlive.store.script import Script
from outlive.store.sqlite import SqliteStore
from store.record import Query, Row, Snapshot, chain, faults, is_terminal

T = TypeVar("T")
LEASE = 3600.0
AGENT, TENANT, WORKER = "agent", "tenant", "0" * 32
POLICIES = (
    policy.chat(),
    policy.chat(max_losses=1),
    policy.chat(max_losses=0),
    policy.chat(recovery="stop"),
    policy.job(),
)
KINDS = [
    *("submit", "claim", "append", "settle") * 3,
    *("hand_back", "stop", "sweep", "renew", "repeat", "lose") * 2,
    *("look", "time_passes"),
]
NEEDS = {
    "append": ("holder",),
    "settle": ("holder",),
    "hand_back": ("holder",),
    "renew": ("holder",),
    "stop": ("run",),
    "sweep": ("suspect",),
    "repeat": ("script",),
}


def same(before: Snapshot, after: Snapshot) -> bool:
    """Whether nothing happened.  A place in a thread's queue may have been taken for nothing."""
    return (after.runs, after.events, after.keys) == (before.runs, before.events, before.keys)


def fresh(kind: EventKind, count: int) -> tuple[NewEvent, ...]:
    """Events that no other batch can be mistaken for."""
    return tuple(NewEvent(kind=kind, payload=f'"{seams.new_id()}"') for _ in range(count))


@dataclass
class Holder:
    """Somebody who was given a claim once, and what they believe of the log."""

    claim: Claim
    seq: int


@dataclass
class Rig:
    """Two stores of one database, a loop to run them in, and a way behind their backs."""

    runner: asyncio.Runner
    stores: tuple[Store, Store]
    query: Query
    change: Callable[[str], object]
    seen: collections.Counter[str] = field(default_factory=collections.Counter)

    def await_(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self.runner.run(bounded())


class Moves(RuleBasedStateMachine):
    """One example: a history of moves on three threads."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig = rig
        self.rng = random.Random(0)
        for table in ("events", "run_keys", "presence", "runs", "threads"):
            rig.change(f"DELETE FROM {table}")
        self.holders: list[Holder] = []
        self.scripts: list[tuple[Move, Script[Any]]] = []
        self.suspects: list[Suspect] = []
        self.latest: Script[Any] | None = None  # made just now: nothing has happened since
        self.keyed: dict[str, set[str]] = {}
        self.now = Snapshot.of(rig.query)

    # ------------------------------------------------------------ making a move

    def make(self, move: Move, script: Script[Any]) -> tuple[Any, Snapshot, Snapshot]:
        """Run a script and compare every run before and after with the table of moves."""
        self.scripts.append((move, script))
        self.latest = script
        try:
            value = self.rig.await_(self.rng.choice(self.rig.stores).write(script))
        except (errors.Fenced, errors.ThreadBusy, errors.KeyConflict) as refusal:
            value = refusal
        before = self.look_again(move)
        if isinstance(value, errors.OutliveError):
            assert self.now == before, f"a refused {move} changed something"
        return value, before, self.now

    def look_again(self, move: Move) -> Snapshot:
        """Read the rows after a move and judge each change; returns the rows before it."""
        before, self.now = self.now, Snapshot.of(self.rig.query)
        for run_id, run in self.now.runs.items():
            old = before.runs.get(run_id)
            if old != run:
                self.judge(move, old, run)
        assert set(before.runs) <= set(self.now.runs), "a run vanished"
        assert [event for event in before.events if event not in self.now.events] == [], "an event changed"
        return before

    def judge(self, move: Move, old: Row | None, run: Row) -> None:
        source, target = State(old["state"]) if old else None, State(run["state"])
        step = run["epoch"] - (old["epoch"] if old else 0)
        assert states.allowed(move, source, target), f"{move} took a run from {source} to {target}"
        assert step in states.epoch_steps(move, source, target), f"{move} raised an epoch by {step}"
        self.rig.seen[f"{move}: {source} to {target}, epoch +{step}"] += 1

    # ------------------------------------------------------------ choosing

    def recent(self, things: Sequence[T]) -> T:
        """Mostly one of the latest: old ones are mostly dead."""
        return things[-1 - self.rng.randrange(min(len(things), self.rng.choice((1, 2, 4, 50))))]

    def holder(self) -> Holder:
        """Mostly somebody who still holds a run; sometimes anybody who ever did."""
        standing = [holder for holder in self.holders if self.owns(holder)]
        return self.recent(standing if standing and self.rng.random() < 0.8 else self.holders)

    def learn(self, taken: Sequence[Run]) -> None:
        """Remember claims that a reply gave us."""
        known = {holder.claim for holder in self.holders}
        self.holders += [
            Holder(run.claim, run.last_seq)
            for run in taken
            if run.state is State.RUNNING and run.claim not in known
        ]

    def offer(self) -> Offer:
        return Offer(worker=WORKER, claim_token=seams.new_id(), lease=LEASE, agents=(AGENT,))

    # ------------------------------------------------------------ knowing

    def owns(self, holder: Holder) -> bool:
        run = self.now.runs[holder.claim.run_id]
        owner = (run["state"], run["epoch"], run["claim_token"])
        return owner == ("running", holder.claim.epoch, holder.claim.claim_token)

    def fits(self, holder: Holder, wrong: int) -> bool:
        """Whether a write of this holder, ``wrong`` events off, must be taken."""
        run = self.now.runs[holder.claim.run_id]
        return self.owns(holder) and run["lease_until"] > 1 and run["last_seq"] == holder.seq + wrong

    def running(self) -> list[str]:
        return [run_id for run_id, run in self.now.runs.items() if run["state"] == "running"]

    def claimable(self, now: Snapshot) -> list[str]:
        """What a worker must find, in order."""
        found = []
        for run_id, run in now.runs.items():
            if run["state"] != "queued" or run["not_before"] is not None:
                continue
            live = now.on(run["thread_id"], State.QUEUED, State.RUNNING)
            if all(
                other["state"] == "queued" and (other["pos"] >= run["pos"] or other["not_before"] is not None)
                for other in live
            ):
                found.append(run_id)
        return found

    # ------------------------------------------------------------ the moves

    @rule(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
    def step(self, kind: str, seed: int) -> None:
        """One move; ``seed`` decides by whom, on what, and how wrongly."""
        self.rng = random.Random(f"{seed} {kind} {len(self.scripts)}")
        need = {
            "holder": self.holders,
            "script": self.scripts,
            "suspect": self.suspects,
            "run": self.now.runs,
        }
        if all(need[word] for word in NEEDS.get(kind, ())):
            getattr(self, kind)()

    def submit(self) -> None:
        thread, key = self.rng.choice("ab-"), self.rng.choice("kl---")
        slot, later = self.rng.random() < 0.4, self.rng.random() < 0.1
        new = Submission(
            run_id=seams.new_id(),
            tenant=TENANT,
            agent=AGENT,
            input="{}",
            fingerprint=thread,
            policy=self.rng.choice(POLICIES),
            thread=None if thread == "-" else thread,
            key=None if key == "-" else key,
            not_before=4e9 if later else None,
        )
        first = self.now.runs.get(self.now.keys.get((TENANT, key), ""))
        offer = self.offer() if slot else None
        value, before, after = None, self.now, self.now
        if new.thread is None:
            value, before, after = self.make(Move.SUBMIT, moves.begin(new, offer))
            assert (value is None) == (first is not None)
        if value is None:
            value, before, after = self.make(Move.SUBMIT, moves.submit(new, offer))
        if isinstance(value, errors.KeyConflict):
            assert first is not None
        elif isinstance(value, errors.ThreadBusy):
            assert new.policy.on_busy is policy.OnBusy.REJECT
            assert not is_terminal(before.runs[str(value.run_id)])
        else:
            self.expect_admitted(new.key, first, value)
            if value.run.run_id == new.run_id:
                alone = len(after.on(value.run.thread_id, State.QUEUED, State.RUNNING)) == 1
                assert value.claimed == (slot and not later and alone and not self.claimable(before))
                assert value.run.continues == (first["run_id"] if first else None)
            else:
                assert same(before, after)
            self.learn([value.run] if value.claimed else [])

    def expect_admitted(self, key: str | None, first: Row | None, value: Submitted) -> None:
        """One key, one chain of runs, of which the key names the newest."""
        if key is None or first is None:
            assert value.admitted is Admitted.CREATED
        else:
            reason = Reason(first["reason"]) if first["reason"] else None
            intent = admission.same_intent(State(first["state"]), reason, policy.chat())
            assert (
                value.admitted
                == {"attach": "attached", "replay": "replayed", "continue": "continued"}[intent]
            )
        if key is not None:
            seen = self.keyed.setdefault(key, set())
            seen.add(value.run.run_id)
            newest = chain(self.now, self.now.keys[TENANT, key])
            assert newest[0] == value.run.run_id
            assert seen == set(newest)

    def claim(self) -> None:
        offers = [self.offer() for _ in range(self.rng.randint(1, 3))]
        taken, before, _ = self.make(Move.CLAIM, moves.claim(offers))
        assert [run.run_id for run in taken] == self.claimable(before)[: len(offers)]
        self.learn(taken)

    def append(self) -> None:
        holder, wrong = self.holder(), self.rng.choice((0,) * 8 + (-1, 1))
        batch = fresh(EventKind.CHUNK, self.rng.randint(1, 3))
        fits = self.fits(holder, wrong)
        script = moves.append(holder.claim, batch, holder.seq + wrong, LEASE)
        value, _, after = self.make(Move.APPEND, script)
        assert isinstance(value, errors.Fenced) != fits
        if fits:
            stored = [event["payload"] for event in after.log(holder.claim.run_id)][-len(batch) :]
            assert stored == [event.payload for event in batch]
            holder.seq = value.last_seq

    def settle(self) -> None:
        holder, wrong = self.holder(), self.rng.choice((0,) * 6 + (1,))
        state = self.rng.choice(sorted(states.MOVES[Move.SETTLE][0].targets))
        reason = self.rng.choice((Reason.REQUESTED, Reason.DISCONNECT)) if state is State.STOPPED else None
        verdict = Verdict(state=state, reason=reason, tail=fresh(EventKind.NOTE, self.rng.randint(1, 2)))
        fits = self.fits(holder, wrong)
        leaked = state in (State.STOPPED, State.FAILED) and self.rng.random() < 0.3
        script = moves.settle(holder.claim, verdict, holder.seq + wrong, raise_epoch=leaked)
        value, _, after = self.make(Move.SETTLE, script)
        assert isinstance(value, errors.Fenced) != fits
        if fits:
            assert after.runs[holder.claim.run_id]["state"] == state

    def hand_back(self) -> None:
        holder, wrong = self.holder(), self.rng.choice((0,) * 6 + (1,))
        claim, run = holder.claim, self.now.runs[holder.claim.run_id]
        owned, right = self.owns(holder), run["last_seq"] == holder.seq + wrong
        done = (run["state"], run["epoch"], run["claim_token"]) == ("queued", claim.epoch, claim.claim_token)
        fits = right and (done or self.fits(holder, wrong))
        value, before, after = self.make(
            Move.HAND_BACK, moves.hand_back(claim, (), holder.seq + wrong, LEASE)
        )
        if owned and right and run["stop_requested_at"] is not None:
            assert value is False
            assert after == before
        elif fits:
            assert value is True
            assert after.runs[claim.run_id]["state"] == "queued"
        else:
            assert isinstance(value, errors.Fenced)

    def stop(self) -> None:
        run_id, reason = self.recent(list(self.now.runs)), self.rng.choice(sorted(Reason))
        value, before, after = self.make(Move.STOP, moves.stop(run_id, TENANT, reason))
        old, new = before.runs[run_id], after.runs[run_id]
        if is_terminal(old):
            assert value.outcome is StopOutcome.ALREADY
            assert after == before
        elif old["state"] == "queued":
            assert value.outcome is StopOutcome.STOPPED
            assert (new["state"], new["reason"]) == ("stopped", reason)
        else:
            assert value.outcome is StopOutcome.REQUESTED
            assert new["stop_reason"] == (old["stop_reason"] or reason)

    def look(self) -> None:
        """A sweeper reads its suspects, and may act on them much later."""
        found = self.rig.await_(self.rng.choice(self.rig.stores).read(reads.suspects(0, 100)))
        assert {one.run_id for one in found} == set(self.running())
        assert all(one.expired == (self.now.runs[one.run_id]["lease_until"] <= 1) for one in found)
        self.suspects += found

    def sweep(self) -> None:
        suspect, early = self.recent(self.suspects), self.rng.random() < 0.5
        value, before, after = self.make(Move.SWEEP, moves.sweep(suspect, early))
        old, new = before.runs[suspect.run_id], after.runs[suspect.run_id]
        current = old["state"] == "running" and old["epoch"] == suspect.epoch
        lost = current and (old["lease_until"] <= 1 or (early and old["renewed_at"] == suspect.renewed_at))
        if not lost:
            assert value is Swept.SPARED
            assert after == before
        elif old["stop_requested_at"] is not None:
            assert value is Swept.STOPPED
            assert (new["state"], new["reason"]) == ("stopped", old["stop_reason"])
        elif old["recovery"] == "stop" or old["losses"] >= old["max_losses"]:
            assert value is Swept.ABANDONED
            assert (new["state"], new["reason"]) == ("abandoned", "lost")
        else:
            assert value is Swept.REQUEUED
            assert (new["state"], new["losses"], new["pos"]) == ("queued", old["losses"] + 1, old["pos"])

    def renew(self) -> None:
        asked = {self.holder().claim for _ in range(self.rng.randint(1, 3))}
        claims = sorted(asked, key=lambda claim: (claim.run_id, claim.epoch))
        renewed = self.rng.choice(self.rig.stores).renew(claims, LEASE)
        before, self.latest = self.look_again(Move.RENEW), None
        standing = {claim.run_id for claim in asked if self.owns(Holder(claim, 0))}
        assert {one.run_id for one in renewed} == standing
        for run_id, run in self.now.runs.items():
            assert run_id in standing or run == before.runs[run_id]

    def repeat(self) -> None:
        """The same script once more, as after a lost reply, at once or long after."""
        move, script = self.recent(self.scripts)
        latest = script is self.latest
        value, before, after = self.make(move, script)
        if latest and move is not Move.CLAIM:
            assert same(before, after), f"a repeated {move} changed something"
        if move is Move.CLAIM:
            self.learn(value)
        elif move is Move.SUBMIT and getattr(value, "claimed", False):
            self.learn([value.run])

    # ------------------------------------------------------------ the world

    def time_passes(self) -> None:
        """A lease runs out."""
        running = self.running()
        if running:
            late, self.latest = self.recent(running), None
            self.rig.change(f"UPDATE runs SET lease_until = 1 WHERE run_id = '{late}'")
            self.now = Snapshot.of(self.rig.query)

    def lose(self) -> None:
        """A holder dies, is found out, and its run is swept."""
        self.time_passes()
        self.look()
        if self.suspects:
            self.sweep()

    @invariant()
    def the_record_is_sound(self) -> None:
        assert faults(self.now) == []


SETTINGS = hypothesis.settings(
    parent=hypothesis.settings.get_profile("outlive"),
    derandomize=True,
    max_examples=30,
    stateful_step_count=60,
    phases=(hypothesis.Phase.generate,),  # shrinking replays hundreds of histories; add it to look for one
    suppress_health_check=list(hypothesis.HealthCheck),
)


@contextlib.contextmanager
def sqlite_rig(path: pathlib.Path) -> Iterator[Rig]:
    with asyncio.Runner() as runner:
        stores = (SqliteStore(path), SqliteStore(path))
        for store in stores:
            runner.run(store.open())
        with contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row

            def query(text: str) -> list[dict[str, Any]]:
                return [dict(row) for row in connection.execute(text)]

            yield Rig(runner, stores, query, connection.execute)
        for store in stores:
            runner.run(store.close())


@contextlib.contextmanager
def postgres_rig(dsn: str) -> Iterator[Rig]:
    with asyncio.Runner() as runner:
        stores = (PostgresStore(dsn, pool_size=3), PostgresStore(dsn, pool_size=3))
        for store in stores:
            runner.run(store.open())
        with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:

            def query(text: str) -> list[dict[str, Any]]:
                return connection.execute(text.encode()).fetchall()

            yield Rig(runner, stores, query, lambda text: connection.execute(text.encode()))
        for store in stores:
            runner.run(store.close())


def every_transition() -> set[str]:
    """All that the table of moves allows, as the machine writes it down.

    But deleting: it takes a thread out of everybody's sight, and has a check of its own elsewhere.
    """
    return {
        f"{rule.move}: {rule.source} to {target}, epoch +{rule.epoch}"
        for rule in states.RULES
        for target in rule.targets
        if rule.move is not Move.DELETE
    }


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_I1_I2_I3_I4_I7_I8_hold_after_every_move_of_a_random_history(
    kind: str, request: pytest.FixtureRequest
) -> None:
    fixture = {"sqlite": "sqlite_path", "postgresql": "empty_dsn"}[kind]
    where = request.getfixturevalue(fixture)
    with sqlite_rig(where) if kind == "sqlite" else postgres_rig(where) as rig:
        run_state_machine_as_test(lambda: Moves(rig), settings=SETTINGS)  # type: ignore[arg-type]
    assert set(rig.seen) == every_transition(), "some moves were never made"
