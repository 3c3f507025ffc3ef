"""Reads a whole history and says which promise it breaks.

Every check is independent of the code under test: it reads commits, transcripts, answers and effects, and the
move table.  A check returns sentences; none means that the promise was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from outlive.testing.simulation.checks import (
    effects,
    holders,
    intents,
    log,
    observers,
    outbox,
    presence,
    reading,
    record,
    tenants,
)
from outlive.testing.simulation.history import History

Check = Callable[[History], Iterator[reading.Found]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the invariant's id, what shows that, when it showed, if at one moment, and the check
    that noticed.
    """

    invariant: str
    what: str
    at: float | None = None
    check: str = ""

    def like(self, other: Violation) -> bool:
        """Say whether the same promise is broken in the same way: in another way is another failure."""
        return (self.invariant, self.check) == (other.invariant, other.check)


PROMISES: Mapping[str, str] = {
    "I1": "a run ends once, with one end event, committed together",
    "I2": "only the holder of the current claim writes",
    "I3": "a thread has at most one running run, and its runs begin in order",
    "I4": "the sequences of a run's and of a thread's events have no hole and no repeat",
    "I5": "who follows gets every event, in order, to the end",
    "I6": "what was shown was committed before, and what was yielded is kept",
    "I7": "the first verdict wins, and whoever asked is told the truth",
    "I8": "the same key with the same body is the same run",
    "I9": "an effect is executed once",
    "I10": "an end and its notifications commit together, and each is told in the same words",
    "I11": "disconnect, stop, shutdown, time-out and loss are told apart, and each does what the policy says",
    "I12": "shutdown hands work back, and only losses are charged",
    "I13": "nothing is left behind: no task, no slot, no failure that nobody looked at",
    "I14": "nobody learns of another tenant's runs",
    "I15": "what could not be stored is never a success, and everything ends",
    "own": "what the application's own check asks for",
}
"""What each id stands for, in a few words."""


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
    ("I11", record.a_displaced_run_is_over_before_the_one_in_its_place_begins),
    ("I3", record.a_message_that_displaces_goes_before_all_who_wait),
    ("I3", record.delays_are_kept),
    ("I12", holders.losses_are_bounded),
    ("I15", record.failures_are_the_agents),
    ("I15", record.outcomes_are_the_agents),
    ("I2", record.scripts_end_where_they_should),
    ("I12", holders.losses_are_counted),
    ("I12", holders.healthy_holders_keep_their_runs),
    ("I15", holders.orphans_are_taken_over),
    ("I5", observers.streams_end_with_the_event),
    ("I4", observers.feeds_have_no_hole),
    ("I5", observers.feeds_are_current),
    ("I14", tenants.strangers_learn_nothing),
    ("I14", tenants.keys_and_threads_are_a_tenants_own),
    ("I10", outbox.ends_and_notifications_commit_together),
    ("I10", outbox.everybody_is_told),
    ("I10", outbox.the_same_words_each_time),
    ("I10", outbox.what_is_told_is_what_was_saved),
    ("I10", outbox.what_is_delivered_was_taken),
)


def check(history: History) -> list[Violation]:
    """Return every violation that the history shows, in the order of the checks."""
    return [
        _violation(invariant, find.__name__, found) for invariant, find in CHECKS for found in find(history)
    ]


def _violation(invariant: str, check: str, found: reading.Found) -> Violation:
    at, what = (None, found) if isinstance(found, str) else found
    return Violation(invariant, what, at, check)
