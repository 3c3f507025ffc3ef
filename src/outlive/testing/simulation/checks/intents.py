"""Checks of what callers were told: one key is one intent, and every answer was true when it was given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outlive import signals
from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History


def one_key_one_chain(history: History) -> Iterator[reading.Found]:
    origin = {run["run_id"]: run["origin"] for run in history.final_runs}
    chains: dict[str, set[str]] = defaultdict(set)
    for answer in history.answers:
        if answer.what == "submitted" and answer.key is not None:
            if answer.run_id not in origin:
                yield answer.at, f"{answer.client} was told of {answer.run_id[:8]}, which does not exist"
            else:
                chains[answer.key].add(origin[answer.run_id])
    for key, found in chains.items():
        if len(found) > 1:
            yield f"key {key} names {len(found)} chains of runs"
    runs = len({run["run_id"] for run in history.final_runs if run["continues"] is None})
    if runs > len({answer.key for answer in history.answers if answer.key}) + _unanswered(history):
        yield f"there are {runs} first runs for fewer keys"


def _unanswered(history: History) -> int:
    return sum(1 for _, _, told in history.notes if isinstance(told, signals.RunSubmitted))


def answers_were_true(history: History) -> Iterator[reading.Found]:
    """Linearizability of the record: what a caller was told was so at some moment of its call."""
    timeline: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for commit, change in reading.changes(history):
        timeline[change.run_id].append((commit.at, change.after[0]))
    for answer in history.answers:
        if answer.what not in ("submitted", "stop", "read"):
            continue
        held = _held_between(timeline[answer.run_id], answer.asked_at, answer.at)
        if answer.state not in held:
            yield (
                answer.at,
                f"{answer.client} was told {answer.state} of {answer.run_id[:8]}, which was {sorted(held)}",
            )


def _held_between(states_: list[tuple[float, str]], start: float, end: float) -> set[str]:
    held: set[str] = set()
    last = None
    for at, state in states_:
        if at <= start:
            last = state
        elif at <= end + reading.SLACK:
            held.add(state)
    if last is not None:
        held.add(last)
    return held


def stops_say_what_happened(history: History) -> Iterator[reading.Found]:
    """``stopped`` is final, ``already`` is terminal, and ``requested`` found it running."""
    final = {run["run_id"]: run["state"] for run in history.final_runs}
    for answer in history.answers:
        if answer.what == "stop":
            terminal = answer.state not in ("queued", "running")
            true = {
                "stopped": answer.state == "stopped" == final[answer.run_id],
                "already": terminal and answer.state == final[answer.run_id],
                "requested": answer.state == "running",
            }[answer.detail]
            if not true:
                yield (
                    answer.at,
                    f"{answer.client} was told {answer.detail} of {answer.run_id[:8]}: {answer.state}",
                )


def key_means_one_body(history: History) -> Iterator[reading.Found]:
    bodies: dict[str, str] = {}
    for answer in sorted(history.answers, key=lambda answer: answer.asked_at):
        if answer.what != "submitted" or not answer.key or not answer.body:
            continue
        if bodies.setdefault(answer.key, answer.body) != answer.body:
            yield answer.at, f"{answer.client} used {answer.key} with another body and was not refused"


def stops_are_obeyed(history: History) -> Iterator[reading.Found]:
    asked: dict[str, float] = {}
    ended = reading.ended_at(history)
    for commit, change in reading.changes(history):
        if commit.script == "stop" and change.after[0] == "running":
            asked.setdefault(change.run_id, commit.at)
    for run_id, at in asked.items():
        end = ended.get(run_id, history.ended_at)
        patience = 3.0 + reading.stop_deadline(history, run_id)
        if end > at + patience and reading.calm(history, at - 2.0, at + patience):
            yield f"{run_id[:8]} ran on for {end - at:.1f} s after it was asked to stop"
