"""Checks of notifications: they commit with the end, and each receiver hears of it in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from outlive.states import State
from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History


def _due(history: History) -> Mapping[str, list[str]]:
    """The ids of what every run's end has to tell, by run."""
    return {
        run["run_id"]: [
            f"{run['run_id']}-{number}" for number, _ in enumerate(json.loads(run["notify"] or "[]"), 1)
        ]
        for run in history.final_runs
    }


def ends_and_notifications_commit_together(history: History) -> Iterator[reading.Found]:
    due = _due(history)
    for commit in history.commits:
        ended = [change.run_id for change in commit.runs if State(change.after[0]).terminal]
        expected = sorted(each for run_id in ended for each in due[run_id])
        if sorted(commit.told) != expected:
            yield commit.at, f"{commit.script} ended {len(ended)} runs and tells {list(commit.told)}"


def everybody_is_told(history: History) -> Iterator[reading.Found]:
    heard = {told.id for told in history.told}
    for run in history.final_runs:
        for each in _due(history)[run["run_id"]]:
            if State(run["state"]).terminal and (each not in heard or each not in history.took):
                yield f"a receiver was never told of the end of {run['run_id'][:8]}"


def the_same_words_each_time(history: History) -> Iterator[reading.Found]:
    words: dict[str, str] = {}
    ids: dict[tuple[str, str], str] = {}
    for told in history.told:
        if words.setdefault(told.id, told.body) != told.body:
            yield told.at, f"{told.process} told of {told.run_id[:8]} in other words than before"
        if ids.setdefault((told.run_id, told.receiver), told.id) != told.id:
            yield told.at, f"{told.process} told of {told.run_id[:8]} under another id than before"


def what_is_told_is_what_was_saved(history: History) -> Iterator[reading.Found]:
    runs = {run["run_id"]: run for run in history.final_runs}
    ended = reading.ended_at(history)
    for told in history.told:
        data, run = json.loads(told.body)["data"], runs[told.run_id]
        if told.at + reading.SLACK < ended.get(told.run_id, float("inf")):
            yield told.at, f"{told.process} told of the end of {told.run_id[:8]} before it had ended"
        if (data["state"], data["reason"]) != (run["state"], run["reason"]):
            yield told.at, f"{told.process} told that {told.run_id[:8]} ended as {data['state']}"


def what_is_delivered_was_taken(history: History) -> Iterator[reading.Found]:
    for row in history.final_outbox:
        if row["state"] == "delivered" and row["notification_id"] not in history.took:
            yield f"{row['notification_id'][:8]} counts as delivered, and no receiver took it"
        if row["state"] == "dead":
            yield f"{row['notification_id'][:8]} was given up"
