"""Reads a whole history and says which promise it breaks.

Every check is independent of the code under test: it reads commits, transcripts, answers and effects, and the
move table.  A check returns sentences; none means that the promise was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outlive.testing.simulation.checks import (
    effects,
    holders,
    intents,
    log,
    observers,
    presence,
    reading,
    record,
)
from outlive.testing.simulation.history import History

Check = Callable[[History], Iterator[reading.Found]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the invariant's id, what shows that, and when it showed, if at one moment."""

    invariant: str
    what: str
    at: float | None = None


CHECKS: tuple[tuple[str, Check], ...] = (
    ("I1", record.terminal_is_final),
    ("I1", log.nothing_follows_the_end),
    ("I2", record.moves_are_allowed),
    ("I2", log.epochs_open_and_never_return),
    ("I2", effects.stale_attempts_record_nothing),
    ("I2", holders.only_holders_record),
    ("I2", holders.only_holders_write),
    ("I2", holders.the_lost_stop_acting),
    ("I2", holders.holders_let_go_in_time),
    ("I3", record.one_running_per_thread),
    ("I4", log.sequences_are_dense),
    ("I5", observers.transcripts_have_no_hole),
    ("I5", observers.subscribers_reach_the_end),
    ("I6", observers.delivered_is_committed),
    ("I7", intents.answers_were_true),
    ("I8", intents.one_key_one_chain),
    ("I11", record.reasons_are_true),
    ("I11", presence.watched_runs_are_kept),
    ("I11", presence.grace_is_kept),
    ("I12", holders.losses_are_losses),
    ("I12", holders.shutdown_loses_nothing),
    ("I12", holders.shutdown_finalises_nothing),
    ("I13", record.nothing_is_left_behind),
    ("I15", record.everything_ends),
    ("I15", effects.recorded_steps_are_not_repeated),
    ("I9", effects.provider_executes_once),
    ("I15", effects.recorded_steps_were_executed),
    ("I6", log.what_was_yielded_is_logged),
    ("I11", intents.stops_are_obeyed),
    ("I11", presence.unwatched_runs_stop),
    ("I7", intents.stops_say_what_happened),
    ("I8", intents.key_means_one_body),
    ("I3", record.threads_keep_their_order),
    ("I3", record.delays_are_kept),
    ("I12", holders.losses_are_bounded),
    ("I15", record.failures_are_the_agents),
    ("I2", record.scripts_end_where_they_should),
    ("I12", holders.losses_are_counted),
    ("I12", holders.healthy_holders_keep_their_runs),
    ("I15", holders.orphans_are_taken_over),
    ("I5", observers.streams_end_with_the_event),
)


def check(history: History) -> list[Violation]:
    """Return every violation that the history shows, in the order of the checks."""
    return [_violation(invariant, found) for invariant, find in CHECKS for found in find(history)]


def _violation(invariant: str, found: reading.Found) -> Violation:
    return Violation(invariant, found) if isinstance(found, str) else Violation(invariant, found[1], found[0])
