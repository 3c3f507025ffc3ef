"""Effects on the world outside, and the moves between what is known of them: the only source for both.

Decides which move may take an effect from which state to which, and what an executor that wants an effect
has to do about the row that it finds.  Pure: it is asked inside of the transaction that read the row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, assert_never

from outlive.policy import Compensate, RunPolicy
from outlive.states import Who

Row = Mapping[str, Any]


class EffectState(StrEnum):
    """What is known of an effect.

    ``intended``: nothing was called.  ``started``: a call may be on its way.  ``done``: the call's answer is
    stored.  ``failed``: it was definitely not executed.  ``unknown``: it was cut in flight; it may have been
    executed.  ``reconciled``: found out afterwards that it was.  ``compensated``: executed and undone.
    """

    INTENDED = "intended"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RECONCILED = "reconciled"
    COMPENSATED = "compensated"


EXECUTED = frozenset({EffectState.DONE, EffectState.RECONCILED, EffectState.COMPENSATED})


class Kind(StrEnum):
    """What sort of effect it is.

    ``idempotent``: repeating it changes nothing, for ever.  ``reversible``: ``compensate`` undoes it.
    ``deferrable``: it waits for its run to succeed, and is executed then.  ``irreversible``: none of these.
    """

    IDEMPOTENT = "idempotent"
    REVERSIBLE = "reversible"
    DEFERRABLE = "deferrable"
    IRREVERSIBLE = "irreversible"


class EffectMove(StrEnum):
    """The ways in which an effect's row changes."""

    INTEND = "intend"
    START = "start"
    FINISH = "finish"
    CUT = "cut"
    RECONCILE = "reconcile"
    DISPROVE = "disprove"
    COMPENSATE = "compensate"


class EffectGuard(StrEnum):
    """What must hold, in the transaction itself, for a move to take effect."""

    OWNER = "the run's epoch and claim token"
    RUNNING = "its run is running"
    LEASE = "its run's lease has not expired"
    NOT_STOPPED = "no stop requested"
    KEY = "one row per key and generation"
    FREE = "nothing unsettled on its resource"
    APPROVED = "an approval, if it needs one: of its scope, not expired, not used"
    REMEMBERED = "its provider still knows the key, or it may be repeated for ever"
    SEEN = "state as it was read"


_FENCE = frozenset({EffectGuard.OWNER, EffectGuard.RUNNING, EffectGuard.LEASE})


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectRule:
    """One row of the table of moves."""

    move: EffectMove
    source: EffectState | None
    targets: frozenset[EffectState]
    who: tuple[Who, ...]
    guards: frozenset[EffectGuard]


def _rule(
    move: EffectMove,
    source: EffectState | None,
    *targets: EffectState,
    who: tuple[Who, ...] = (Who.HOLDER,),
    guards: frozenset[EffectGuard] = _FENCE,
) -> EffectRule:
    return EffectRule(move=move, source=source, targets=frozenset(targets), who=who, guards=guards)


_S = EffectState
_START = _FENCE | {EffectGuard.NOT_STOPPED, EffectGuard.FREE, EffectGuard.APPROVED}
_SETTLERS = (Who.HOLDER, Who.ANYONE)
_SEEN = frozenset({EffectGuard.SEEN})

EFFECT_RULES: tuple[EffectRule, ...] = (
    _rule(EffectMove.INTEND, None, _S.INTENDED, guards=_FENCE | {EffectGuard.NOT_STOPPED, EffectGuard.KEY}),
    _rule(EffectMove.START, _S.INTENDED, _S.STARTED, guards=_START),
    # The same call with the same key, while the provider remembers it.
    _rule(EffectMove.START, _S.UNKNOWN, _S.STARTED, guards=_START | {EffectGuard.REMEMBERED}),
    _rule(EffectMove.FINISH, _S.STARTED, _S.DONE, _S.FAILED),
    _rule(EffectMove.CUT, _S.STARTED, _S.UNKNOWN, who=(Who.HOLDER, Who.SWEEPER), guards=_SEEN),
    _rule(EffectMove.RECONCILE, _S.UNKNOWN, _S.RECONCILED, _S.FAILED, who=_SETTLERS, guards=_SEEN),
    _rule(EffectMove.DISPROVE, _S.UNKNOWN, _S.INTENDED, who=_SETTLERS, guards=_SEEN),
    _rule(EffectMove.COMPENSATE, _S.DONE, _S.COMPENSATED),
    _rule(EffectMove.COMPENSATE, _S.RECONCILED, _S.COMPENSATED),
)

EFFECT_MOVES: Mapping[EffectMove, tuple[EffectRule, ...]] = MappingProxyType(
    {move: tuple(rule for rule in EFFECT_RULES if rule.move is move) for move in EffectMove}
)


def allowed(move: EffectMove, source: EffectState | None, target: EffectState) -> bool:
    """Say whether ``move`` may take an effect from ``source`` (None: no row yet) to ``target``."""
    return any(rule.source is source and target in rule.targets for rule in EFFECT_MOVES[move])


# ---------------------------------------------------------------- the nouns


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """One effect as the ledger has it.  Times are seconds on the database's clock.

    ``held``: the executor that started it still holds its run.  ``key_ttl`` is for how many seconds after
    ``first_started_at`` the provider remembers ``provider_key``.  ``calls`` counts the starts.  ``evidence``
    is an answer that came when its executor could no longer record it.  ``live_policy`` is the policy of the
    run that started it, while that run has yet to end.
    """

    effect_id: str
    tenant: str
    name: str
    key: str
    generation: int
    provider_key: str
    fingerprint: str
    kind: Kind
    resource: str | None
    state: EffectState
    due: str | None
    compensates: str | None
    run_id: str
    origin: str
    epoch: int
    claim_token: str
    key_ttl: float | None
    calls: int
    inputs: str
    result: str | None
    error: str | None
    evidence: str | None
    settled_by: str | None
    created_at: float
    first_started_at: float | None
    ended_at: float | None
    held: bool
    now: float
    live_policy: str | None = None

    @classmethod
    def from_row(cls, row: Row) -> Effect:
        """Build an effect from a row of ``effects`` joined with its run."""
        plain: dict[str, Any] = {name: row[name] for name in _SAME}
        times: dict[str, Any] = {
            name: None if row[column] is None else row[column] / 1000 for name, column in _TIMES.items()
        }
        return cls(
            **plain,
            **times,
            kind=Kind(row["kind"]),
            state=EffectState(row["state"]),
            held=bool(row["held"]),
        )

    @property
    def may_be_undone(self) -> bool:
        """Whether the run that had it executed has yet to end, and will have it undone if it ends badly."""
        if self.kind is not Kind.REVERSIBLE or self.live_policy is None:
            return False
        return RunPolicy.from_json(self.live_policy).compensate is not Compensate.NEVER

    @property
    def known(self) -> EffectState:
        """Its state, except that a start whose executor is gone is ``unknown`` before anybody marks it."""
        if self.state is EffectState.STARTED and not self.held:
            return EffectState.UNKNOWN
        return self.state

    def public(self) -> dict[str, Any]:
        """Return what its tenant may see of it, as JSON-able values."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _PUBLIC}
        shown["state"] = self.known.value
        for name in ("inputs", "result", "error", "evidence"):
            text = getattr(self, name)
            shown[name] = None if text is None else json.loads(text)
        return shown


_SAME = (
    "effect_id", "tenant", "name", "key", "generation", "provider_key", "fingerprint", "resource", "due",
    "compensates", "run_id", "origin", "epoch", "claim_token", "calls", "inputs", "result", "error",
    "evidence", "settled_by", "live_policy",
)  # fmt: skip
_TIMES = {
    "key_ttl": "key_ttl_ms",
    "created_at": "created_at",
    "first_started_at": "first_started_at",
    "ended_at": "ended_at",
    "now": "now_ms",
}
_PUBLIC = (
    "effect_id", "name", "key", "generation", "kind", "resource", "due", "compensates", "run_id", "calls",
    "provider_key", "settled_by", "created_at", "first_started_at", "ended_at",
)  # fmt: skip


def effect_id(tenant: str, name: str, key: str, generation: int) -> str:
    """Return the id of an effect: what every attempt, process and retry derives alike."""
    words = json.dumps([tenant, name, key, generation])
    return hashlib.sha256(words.encode("ascii")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What an executor wants executed, and what it can do to find out whether it was."""

    tenant: str
    name: str
    key: str
    fingerprint: str
    inputs: str
    kind: Kind
    resource: str | None = None
    key_ttl: float | None = None
    looks_up: bool = False
    lands_within: float = 60.0
    origin: str = ""
    again_after_failure: bool = False
    approval: bool = False
    compensates: str | None = None


class Step(StrEnum):
    """What to do about the row that was found."""

    INTEND = "intend"
    HOLD = "hold"
    START = "start"
    ANSWER = "answer"
    FAIL = "fail"
    WAIT = "wait"
    TAKE_EVIDENCE = "take_evidence"
    REPLAY = "replay"
    LOOK_UP = "look_up"
    ASK = "ask"
    CONFLICT = "conflict"


KEY_MARGIN = 0.1
"""Of a key's time to live, the share that is not relied upon: the call itself takes time, too."""


def decide(row: Effect | None, wish: Wish, *, ours_cut: bool = False) -> Step:
    """Decide what follows for a ``wish`` from the newest row of its key.

    ``ours_cut``: the row was started under the asking claim, and nothing of that call is on its way here.
    """
    if row is None:
        return Step.INTEND
    if row.fingerprint != wish.fingerprint and row.state is not EffectState.COMPENSATED:
        return Step.CONFLICT
    state = EffectState.UNKNOWN if ours_cut and row.state is EffectState.STARTED else row.known
    match state:
        case EffectState.INTENDED:
            held = wish.kind is Kind.DEFERRABLE and row.due is None
            step = Step.HOLD if held else Step.START
        case EffectState.STARTED:
            step = Step.WAIT
        case EffectState.DONE | EffectState.RECONCILED:
            # What another run may yet undo is nothing to build on: its end decides.
            undone = row.due == "compensate" or (row.may_be_undone and row.origin != wish.origin)
            step = Step.WAIT if undone else Step.ANSWER
        case EffectState.FAILED:
            step = Step.INTEND if wish.again_after_failure else Step.FAIL
        case EffectState.COMPENSATED:
            step = Step.INTEND
        case EffectState.UNKNOWN:
            step = find_out(row, wish)
        case _:
            assert_never(state)
    return step


def find_out(row: Effect, wish: Wish) -> Step:
    """Decide how to learn what became of a call that was cut in flight."""
    if row.evidence is not None:
        return Step.TAKE_EVIDENCE
    if wish.kind is Kind.IDEMPOTENT or remembered(row, wish.key_ttl):
        return Step.REPLAY
    return Step.LOOK_UP if wish.looks_up else Step.ASK


def remembered(row: Effect, key_ttl: float | None) -> bool:
    """Say whether the provider surely still knows the key, so that the same call is the same effect."""
    if key_ttl is None or row.first_started_at is None:
        return False
    ttl = key_ttl if row.key_ttl is None else min(key_ttl, row.key_ttl)
    return row.now < row.first_started_at + ttl * (1 - KEY_MARGIN)


def landed(row: Effect, wish: Wish) -> bool:
    """Say whether a call that was cut would have had its effect by now, if it ever were to.

    Only then does "there is none" prove anything, unless the provider refuses the key's second use anyway.
    """
    return remembered(row, wish.key_ttl) or row.now >= (row.ended_at or row.now) + wish.lands_within


def next_generation(row: Effect | None) -> int:
    """Return the generation of the row that follows ``row``: the only way in which a key is used again."""
    if row is None:
        return 1
    if row.state in (EffectState.COMPENSATED, EffectState.FAILED):
        return row.generation + 1
    raise ValueError(f"effect {row.effect_id} is {row.state}; its generation cannot rise")
