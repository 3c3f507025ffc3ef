"""Run states and the moves between them: the only source of truth for both.

Decides which move may take a run from which state to which, who may make it, what guards it and what it
does to the epoch.  SQL and documentation are tested against ``MOVES``; this file touches neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a run stands.  Everything but ``queued`` and ``running`` is terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"
    ABANDONED = "abandoned"

    @property
    def terminal(self) -> bool:
        """True once the record can no longer change."""
        return self not in LIVE


LIVE = frozenset({State.QUEUED, State.RUNNING})
TERMINAL = frozenset(State) - LIVE


class Reason(StrEnum):
    """Why a run was stopped or abandoned; never guessed from how a task ended."""

    REQUESTED = "requested"
    DISCONNECT = "disconnect"
    DISPLACED = "displaced"
    TIMEOUT = "timeout"
    LOST = "lost"


class Position(StrEnum):
    """Where a run left its thread, for an agent that keeps what it has done.

    ``clean``: nothing was begun, or all of it is finished.  ``waiting``: it paused at a question or at a
    static breakpoint.  ``torn``: something was begun and not finished, so that a new input would start over
    and repeat what is done.  ``unknown``: whoever ended the run could not look.
    """

    CLEAN = "clean"
    WAITING = "waiting"
    TORN = "torn"
    UNKNOWN = "unknown"


class Move(StrEnum):
    """The nine ways in which a run's row changes."""

    SUBMIT = "submit"
    CLAIM = "claim"
    RENEW = "renew"
    APPEND = "append"
    SETTLE = "settle"
    HAND_BACK = "hand_back"
    STOP = "stop"
    SWEEP = "sweep"
    DELETE = "delete"


class Who(StrEnum):
    """Who may make a move."""

    ANYONE = "anyone"
    WORKER = "worker"
    HOLDER = "holder"
    SWEEPER = "sweeper"


class Guard(StrEnum):
    """What must hold, in the transaction itself, for a move to take effect."""

    KEY = "idempotency key"
    ADMISSION = "admission"
    THREAD_LOCK = "thread row locked first"
    THREAD_FREE = "no running run on the thread"
    LOWEST_POS = "lowest position among the thread's claimable runs"
    NOT_STOPPED = "no stop requested"
    STOP_REQUESTED = "stop requested"
    OWNER = "epoch and claim token"
    LEASE = "lease not expired"
    EXPIRED = "lease expired, or holder proven dead"
    EPOCH = "epoch as seen"
    STATE = "state"
    EXPECTED_SEQ = "expected last seq"
    LOSSES_LEFT = "losses left and recovery = resume"
    LOSSES_SPENT = "losses spent or recovery = stop"


FENCE = frozenset({Guard.OWNER, Guard.STATE, Guard.LEASE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One row of the move table.  ``epoch`` is the amount by which the move raises it."""

    move: Move
    source: State | None
    targets: frozenset[State]
    who: Who
    guards: frozenset[Guard]
    epoch: int


def _rule(
    move: Move, source: State | None, *targets: State, who: Who, guards: frozenset[Guard], epoch: int = 0
) -> Rule:
    return Rule(move=move, source=source, targets=frozenset(targets), who=who, guards=guards, epoch=epoch)


_SUBMIT = frozenset({Guard.KEY, Guard.ADMISSION, Guard.THREAD_LOCK})
_CLAIM = frozenset({Guard.THREAD_LOCK, Guard.LOWEST_POS, Guard.THREAD_FREE, Guard.NOT_STOPPED})
_SWEEP = frozenset({Guard.THREAD_LOCK, Guard.STATE, Guard.EXPIRED, Guard.EPOCH})
_DELETE = frozenset({Guard.THREAD_LOCK, Guard.STATE})
_Q, _R = State.QUEUED, State.RUNNING

RULES: tuple[Rule, ...] = (
    _rule(Move.SUBMIT, None, _Q, who=Who.ANYONE, guards=_SUBMIT),
    _rule(
        Move.SUBMIT, None, _R, who=Who.ANYONE, guards=_SUBMIT | {Guard.THREAD_FREE, Guard.LOWEST_POS}, epoch=1
    ),
    _rule(Move.CLAIM, _Q, _R, who=Who.WORKER, guards=_CLAIM, epoch=1),
    _rule(Move.RENEW, _R, _R, who=Who.HOLDER, guards=frozenset({Guard.OWNER, Guard.STATE})),
    _rule(Move.APPEND, _R, _R, who=Who.HOLDER, guards=FENCE | {Guard.EXPECTED_SEQ}),
    _rule(
        Move.SETTLE,
        _R,
        State.SUCCEEDED,
        State.WAITING,
        State.FAILED,
        State.STOPPED,
        who=Who.HOLDER,
        guards=FENCE | {Guard.EXPECTED_SEQ},
    ),
    # An agent that has not returned by its deadline is shut out as well: it may still write.
    _rule(
        Move.SETTLE,
        _R,
        State.STOPPED,
        State.FAILED,
        who=Who.HOLDER,
        guards=FENCE | {Guard.EXPECTED_SEQ},
        epoch=1,
    ),
    _rule(Move.HAND_BACK, _R, _Q, who=Who.HOLDER, guards=FENCE | {Guard.EXPECTED_SEQ, Guard.NOT_STOPPED}),
    _rule(Move.STOP, _Q, State.STOPPED, who=Who.ANYONE, guards=frozenset({Guard.THREAD_LOCK, Guard.STATE})),
    _rule(Move.STOP, _R, _R, who=Who.ANYONE, guards=frozenset({Guard.THREAD_LOCK, Guard.STATE})),
    _rule(
        Move.SWEEP,
        _R,
        _Q,
        who=Who.SWEEPER,
        guards=_SWEEP | {Guard.LOSSES_LEFT, Guard.NOT_STOPPED},
        epoch=1,
    ),
    _rule(Move.SWEEP, _R, State.STOPPED, who=Who.SWEEPER, guards=_SWEEP | {Guard.STOP_REQUESTED}, epoch=1),
    _rule(
        Move.SWEEP,
        _R,
        State.ABANDONED,
        who=Who.SWEEPER,
        guards=_SWEEP | {Guard.LOSSES_SPENT, Guard.NOT_STOPPED},
        epoch=1,
    ),
    # With its thread, and without waiting for its holder, whom the raised epoch shuts out.
    _rule(Move.DELETE, _Q, State.STOPPED, who=Who.ANYONE, guards=_DELETE),
    _rule(Move.DELETE, _R, State.STOPPED, who=Who.ANYONE, guards=_DELETE, epoch=1),
)

MOVES: Mapping[Move, tuple[Rule, ...]] = MappingProxyType(
    {move: tuple(rule for rule in RULES if rule.move is move) for move in Move}
)


def allowed(move: Move, source: State | None, target: State) -> bool:
    """Say whether ``move`` may take a run from ``source`` (None: no row yet) to ``target``."""
    return any(rule.source is source and target in rule.targets for rule in MOVES[move])


def epoch_step(move: Move, source: State | None, target: State) -> int:
    """Return by how much ``move`` usually raises the epoch on its way from ``source`` to ``target``.

    Raises ``KeyError`` if the move is not allowed.
    """
    return epoch_steps(move, source, target)[0]


def epoch_steps(move: Move, source: State | None, target: State) -> tuple[int, ...]:
    """Return every amount by which ``move`` may raise the epoch there, the usual one first.

    Raises ``KeyError`` if the move is not allowed.
    """
    found = tuple(rule.epoch for rule in MOVES[move] if rule.source is source and target in rule.targets)
    if not found:
        raise KeyError((move, source, target))
    return found
