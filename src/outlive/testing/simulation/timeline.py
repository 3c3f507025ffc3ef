"""A history as a person reads it: when, who, what, with the broken promises where they show."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum

from outlive import signals
from outlive.testing.simulation.checker import PROMISES, Violation
from outlive.testing.simulation.history import Answer, Commit, History, Transcript
from outlive.testing.simulation.simulate import Result


class Kind(StrEnum):
    """What a line is about."""

    FAULT = "fault"
    COMMIT = "commit"
    EFFECT = "effect"
    CLIENT = "client"
    SIGNAL = "signal"
    VIOLATION = "violation"


@dataclass(frozen=True, slots=True)
class Line:
    """One happening, at a virtual second."""

    at: float
    who: str
    kind: Kind
    what: str

    def __str__(self) -> str:
        mark = ">>>" if self.kind is Kind.VIOLATION else "   "
        return f"{mark} {self.at:9.4f}  {self.who:<5} {self.kind.value:<9} {self.what}"


QUIET: tuple[type, ...] = (signals.StoreRetried, signals.RunSubmitted, signals.RunEnded, signals.RunSwept)
"""What a commit next to it says already, or says too often."""


def timeline(result: Result, *, renewals: bool = False) -> list[Line]:
    """Return everything that happened, in order; renewals only if they are asked for."""
    lines = [*_faults(result.history), *_commits(result.history, renewals), *_effects(result.history)]
    lines += [*_clients(result.history), *_signals(result.history)]
    for broken in result.violations:
        at = result.history.ended_at if broken.at is None else broken.at
        lines.append(Line(at, "", Kind.VIOLATION, f"{broken.invariant}: {broken.what}"))
    return sorted(lines, key=lambda line: (line.at, line.kind is Kind.VIOLATION))


SHOWN = 16
"""Lines that are shown as evidence."""
_RUN = re.compile(r"\b([0-9a-f]{8})(?:[0-9a-f]{24})?\b")
_NAME = re.compile(r"\b(?:c[0-9]+|p[0-9]\.[0-9]+)\b")


def evidence(result: Result, broken: Violation) -> list[Line]:
    """Return the last lines before a violation showed that are about what it names: runs, clients, processes.

    What was wrong at that time with the processes that appear there is among them.
    """
    runs, named = set(_RUN.findall(broken.what)), set(_NAME.findall(broken.what))
    until = result.history.ended_at if broken.at is None else broken.at
    lines = [line for line in timeline(result) if line.at <= until and line.kind is not Kind.VIOLATION]
    said = [line for line in lines if line.kind is not Kind.FAULT]
    if runs:
        said = [line for line in said if runs & set(_RUN.findall(line.what))]
        said = [line for line in said if line.kind is not Kind.CLIENT or line.who in named]
    elif named:
        said = [line for line in said if line.who in named]
    said = said[-SHOWN:]
    who, since = {line.who for line in said}, said[0].at - 10.0 if said else 0.0
    wrong = [line for line in lines if line.kind is Kind.FAULT and line.at >= since and line.who in who]
    return sorted([*said, *wrong], key=lambda line: line.at)


def explain(result: Result) -> str:
    """Return every broken promise of a result with its evidence, once per way in which one is broken."""
    told: list[str] = []
    for broken in {found.check or found.what: found for found in reversed(result.violations)}.values():
        told.append(f"{broken.invariant} is broken ({PROMISES.get(broken.invariant, broken.check)}):")
        told.append(f"    {broken.what}")
        told += [str(line) for line in evidence(result, broken)]
    return "\n".join(told)


def _faults(history: History) -> Iterator[Line]:
    for span in history.faults:
        yield Line(span.begin, span.process, Kind.FAULT, f"{span.fault} begins")
        if span.begin < span.end < float("inf"):
            yield Line(span.end, span.process, Kind.FAULT, f"{span.fault} is over")


def _commits(history: History, renewals: bool) -> Iterator[Line]:
    for commit in history.commits:
        if renewals or commit.script != "renew":
            yield Line(commit.at, commit.process, Kind.COMMIT, f"{commit.script:<9} {_changed(commit)}")


def _changed(commit: Commit) -> str:
    changes = {change.run_id: change for change in commit.runs}
    before = {change.run_id: change.before for change in reversed(commit.runs)}
    said = [
        f"{run_id[:8]} {_state(before[run_id])} → {_state(change.after)}"
        for run_id, change in changes.items()
    ]
    events = [f"{event.run_id[:8]}:{event.seq} {event.kind}" for event in commit.events]
    return ", ".join(said) + (f"  [{', '.join(events)}]" if events else "")


def _state(state: tuple[str, int] | None) -> str:
    return "nothing" if state is None else f"{state[0]}/{state[1]}"


def _effects(history: History) -> Iterator[Line]:
    for effect in history.effects:
        again = ", which replays it" if effect.repeated else ""
        what = f"step {effect.step} of {effect.run_id[:8]}/{effect.epoch} reaches the provider{again}"
        yield Line(effect.at, effect.process, Kind.EFFECT, what)
    for point in history.checkpoints:
        what = f"step {point.step} of {point.run_id[:8]}/{point.epoch} is recorded as done"
        yield Line(point.at, "", Kind.EFFECT, what)


def _clients(history: History) -> Iterator[Line]:
    for answer in history.answers:
        yield Line(answer.at, answer.client, Kind.CLIENT, _told(answer))
    for feed in history.feeds:
        yield Line(feed.joined_at, feed.client, Kind.CLIENT, f"follows the thread {feed.thread_id[:8]}")
        for at, thread_seq, run_id, seq in feed.events:
            yield Line(at, feed.client, Kind.CLIENT, f"gets {thread_seq} of the thread: {run_id[:8]}:{seq}")
        yield Line(feed.left_at, feed.client, Kind.CLIENT, "no longer follows the thread")
    for got in history.transcripts:
        begins = f"follows {got.run_id[:8]} after {got.after} through {got.process}"
        yield Line(got.joined_at, got.client, Kind.CLIENT, begins)
        for at, seq, epoch, kind, payload in got.events:
            what = f"gets {got.run_id[:8]}:{seq} {kind} of {epoch}: {payload}"
            yield Line(at, got.client, Kind.CLIENT, what)
        if got.left_at is not None:
            yield Line(got.left_at, got.client, Kind.CLIENT, _left(got))


def _told(answer: Answer) -> str:
    asked = f" with key {answer.key}" if answer.key else ""
    return f"{answer.what}{asked}: {answer.detail} {answer.run_id[:8]} {answer.state}".rstrip()


def _left(got: Transcript) -> str:
    why = "the server hung up" if got.closed else "it leaves or hears nothing"
    return f"no longer follows {got.run_id[:8]}: {why}"


def _signals(history: History) -> Iterator[Line]:
    for at, process, told in history.notes:
        if not isinstance(told, QUIET):
            fields = [(field.name, getattr(told, field.name)) for field in dataclasses.fields(told)]
            said = " ".join(f"{name}={_short(value)}" for name, value in fields)
            yield Line(at, process, Kind.SIGNAL, f"{type(told).__name__} {said}")


def _short(value: object) -> str:
    text = str(value.value) if isinstance(value, Enum) else str(value)
    return text[:8] if len(text) == 32 and text.isalnum() else text
