"""The plain words: each finding as sentences that somebody new to checkpoints can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import assert_never

from outlive.probe.evidence.found import Position, Record
from outlive.probe.findings import Finding, Progress
from outlive.probe.plan import Behaviour, Outcome


def sentences(finding: Finding) -> tuple[str, ...]:
    """What happened, worst first where there is a worst."""
    return (
        *_trouble(finding),
        *_repeats(finding),
        *_course(finding),
        *_on_record(finding),
        *_hidden(finding),
        *_signal(finding),
        *_left_lying(finding),
        *_polls(finding),
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _trouble(finding: Finding) -> Iterator[str]:
    """What makes the rest worth little: a refused request, an undisturbed client without a whole answer."""
    refused = {str(view.status) for view in finding.trace.views if view.status and view.status >= 400}
    if refused:
        yield f"The service refused the request with {_names(sorted(refused))}."
    if finding.trace.scenario.behaviour is Behaviour.STAY and finding.trace.views[0].how.startswith("broken"):
        yield "The undisturbed client's answer broke off: look at the service before at its disconnects."


def _repeats(finding: Finding) -> Iterator[str]:
    if not finding.repeated:
        return
    who = {
        Behaviour.DOUBLE_CLICK: "A double click",
        Behaviour.RECONNECT: "A client that reconnects by itself",
    }.get(finding.trace.scenario.behaviour, "A returning user")
    yield f"{who} repeats: {_names(finding.repeated)}."


def _course(finding: Finding) -> Iterator[str]:
    if finding.outcome is None or finding.progress is None:
        if finding.outcome is Outcome.UNCLEAR:
            yield "How far the run went cannot be told: nothing names its steps, or `stay` was not played."
        return
    progress, place = finding.progress, _place(finding)
    match finding.outcome:
        case Outcome.STOPS:
            yield f"The run stops {place}; {_undone(finding)}: {_steps(progress, 'missing')}."
        case Outcome.COMPLETES:
            after = _steps(progress, "after")
            yield f"The run goes on to its end {place}; done by then: {after}."
        case Outcome.PARTIAL:
            after, missing = _steps(progress, "after"), _steps(progress, "missing")
            undone = _undone(finding)
            yield f"The run goes on for a while {place} (done: {after}), then stops; {undone}: {missing}."
        case Outcome.UNCLEAR:
            yield "The run was still going on, without an end to compare it with."
        case _:
            assert_never(finding.outcome)
    if finding.in_flight:
        yield f"Cut in the middle, with unknown effects: {_names(finding.in_flight)}."
    if finding.picked_up:
        yield "What was begun was picked up again and finished."
    if not finding.trace.settled:
        yield "The service was still working when the probe stopped watching."


def _undone(finding: Finding) -> str:
    return "not done by the time of the return" if finding.picked_up else "never done"


def _place(finding: Finding) -> str:
    signals = {Behaviour.SIGTERM: "at SIGTERM", Behaviour.SIGKILL: "at SIGKILL"}
    return signals.get(finding.trace.scenario.behaviour, "after the client has left")


def _steps(progress: Progress, which: str) -> str:
    steps = progress.after if which == "after" else progress.missing
    if progress.endless and which == "missing":
        return "the rest of a stream without an end"
    if progress.witness in {"events", "items", "chunks"}:
        return f"{steps.total()} {progress.witness}"
    return _names(steps) or "nothing"


def _on_record(finding: Finding) -> Iterator[str]:
    record = finding.at_return or finding.record
    if record is None or finding.outcome is None:
        return
    match record.position:
        case Position.NONE:
            if finding.executed:
                yield f"No checkpoint says that anything ran, yet executed: {_names(finding.executed)}."
        case Position.TORN:
            yield _torn(record)
        case Position.WAITING:
            yield f"The thread waits for a human at {_names(record.next)}."
        case Position.FINISHED:
            yield "On record the thread is finished; nothing says whether anybody saw it."
        case _:
            assert_never(record.position)


def _torn(record: Record) -> str:
    if record.next:
        place = _names(record.next)
        return f"The thread is left in the middle, at {place}; a new message starts from the beginning."
    return f"The thread looks finished (next is empty) and is not: {_names(record.tasks)} is pending."


def _hidden(finding: Finding) -> Iterator[str]:
    record = finding.record
    if record is None:
        return
    if finding.unrecorded and record.position is not Position.NONE:
        yield f"Executed, but in no checkpoint: {_names(finding.unrecorded)}."
    behind = finding.executed - Counter(record.head)
    if behind and record.head:
        yield f"The thread's state does not show all that executed; missing there: {_names(behind)}."
    if record.forks:
        plural = "s" if record.forks > 1 else ""
        yield f"The thread has {record.forks} fork{plural}: its history has more than one line."


def _signal(finding: Finding) -> Iterator[str]:
    trace = finding.trace
    if trace.exited is None:
        return
    when = f"after {trace.exit_seconds} s" if trace.exited else f"not within {trace.exit_seconds} s"
    yield f"The server exited {when}; the client's stream: {trace.views[0].how}."


def _left_lying(finding: Finding) -> Iterator[str]:
    platform = finding.platform
    if finding.trace.left is not None and platform.background_ran and platform.exception is not None:
        yield "The response's background task ran as if the answer had been delivered."
    clean = [name for name, error in platform.dependencies.items() if error is None]
    if clean and platform.exception is not None:
        yield f"Left without an exception, so that its commit commits half-done work: {_names(clean)}."
    if platform.finally_finished is False:
        yield "An await in the stream's clean-up was cancelled again and did not finish."
    if platform.generators_left:
        yield f"Nobody closed: {_names(platform.generators_left)}."


def _polls(finding: Finding) -> Iterator[str]:
    platform = finding.platform
    if platform.polls_true_while_connected:
        times = platform.polls_true_while_connected
        yield f"is_disconnected() said True {times} times of a client that was connected."
    if platform.polls_false_after_leaving > 1:
        times = platform.polls_false_after_leaving
        yield f"is_disconnected() still said False {times} times after the client had left."
