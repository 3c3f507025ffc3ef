"""Checks of the model provider's calls and of the steps that the agents recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from outlive.testing.simulation.checks import reading
from outlive.testing.simulation.history import History


def recorded_steps_are_not_repeated(history: History) -> Iterator[reading.Found]:
    recorded = {(point.origin, point.step): point.at for point in reversed(history.checkpoints)}
    began: dict[tuple[str, int], float] = {}
    for commit in history.commits:
        for event in commit.events:
            if event.kind == "attempt":
                began[(event.run_id, event.epoch)] = commit.at
    for effect in history.effects:
        noted = recorded.get((effect.origin, effect.step))
        attempt = began.get((effect.run_id, effect.epoch))
        if noted is not None and attempt is not None and noted < attempt - reading.SLACK:
            yield effect.at, f"step {effect.step} of {effect.origin[:8]} was called again after its record"


def stale_attempts_record_nothing(history: History) -> Iterator[reading.Found]:
    best: dict[str, int] = defaultdict(int)
    for point in history.checkpoints:
        if point.step + 1 < best[point.origin]:
            yield point.at, f"the checkpoint of {point.origin[:8]} went back to step {point.step}"
        best[point.origin] = max(best[point.origin], point.step + 1)


def provider_executes_once(history: History) -> Iterator[reading.Found]:
    executed: set[tuple[str, int]] = set()
    for effect in history.effects:
        if not effect.repeated and (effect.origin, effect.step) in executed:
            yield effect.at, f"step {effect.step} of {effect.origin[:8]} was executed twice at the provider"
        executed.add((effect.origin, effect.step))


def recorded_steps_were_executed(history: History) -> Iterator[reading.Found]:
    executed = {(effect.origin, effect.step): effect.at for effect in reversed(history.effects)}
    for point in history.checkpoints:
        at = executed.get((point.origin, point.step))
        if at is None or at > point.at + reading.SLACK:
            yield point.at, f"step {point.step} of {point.origin[:8]} was recorded before it was executed"
