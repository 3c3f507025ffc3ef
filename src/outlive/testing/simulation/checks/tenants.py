"""Checks that a tenant never learns of another's runs, and never shares a key or a thread with it."""

from __future__ import annotations

from collections.abc import Iterator

from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History


def strangers_learn_nothing(history: History) -> Iterator[reading.Found]:
    for answer in history.answers:
        if answer.what == "pry" and answer.detail != "not found":
            yield answer.at, f"{answer.client} is of another tenant and was told of {answer.run_id[:8]}"


def keys_and_threads_are_a_tenants_own(history: History) -> Iterator[reading.Found]:
    tenants = {run["run_id"]: run["tenant"] for run in history.final_runs}
    for answer in history.answers:
        asked_as = (answer.key or "").partition("/")[0]
        if answer.what == "submitted" and tenants.get(answer.run_id, asked_as) != asked_as:
            yield answer.at, f"{answer.client} submitted as {asked_as!r} and was given {answer.run_id[:8]}"
    owners: dict[str, str] = {}
    for run in history.final_runs:
        if owners.setdefault(run["thread_id"], run["tenant"]) != run["tenant"]:
            yield f"{run['run_id'][:8]} is on a thread of another tenant"
