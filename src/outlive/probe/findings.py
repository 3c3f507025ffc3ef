"""What a trace means: how far the run went, what is on record, what repeats, and what was left lying about.

Pure functions from what was collected to facts and plain sentences. Nothing here touches a service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outlive.probe import scenario as scenarios
from outlive.probe.evidence.found import Found, Record
from outlive.probe.inject.nodes import PAUSED
from outlive.probe.plan import Behaviour, Failure, Outcome, Plan
from outlive.probe.scenario import Trace
from outlive.probe.tape import Happening, of_kind

#: Whose open or collected generators count as leaks; those of other libraries are theirs to close.
ACCOUNTABLE = {"app", "langgraph"}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run went: steps when the client left, at the end, and (from `stay`) when undisturbed."""

    witness: str
    at_leaving: Counter[str]
    at_end: Counter[str]
    complete: Counter[str]
    endless: bool = False

    @property
    def after(self) -> Counter[str]:
        """What was done after the client had left."""
        return self.at_end - self.at_leaving

    @property
    def missing(self) -> Counter[str]:
        return self.complete - self.at_end


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What server and framework did with this request, as far as it was seen. None is: nothing to see."""

    time_to_cancel: float | None = None
    exception: str | None = None
    steps_after_close: int | None = None
    finally_finished: bool | None = None
    background_ran: bool | None = None
    dependencies: dict[str, str | None] = field(default_factory=dict)
    generators_left: tuple[str, ...] = ()
    polled: bool = False
    polls_true_while_connected: int = 0
    polls_false_after_leaving: int = 0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One scenario, judged."""

    trace: Trace
    outcome: Outcome | None
    progress: Progress | None
    executed: Counter[str]
    in_flight: tuple[str, ...]
    record: Record | None
    at_return: Record | None
    repeated: tuple[str, ...]
    picked_up: bool
    unrecorded: Counter[str]
    platform: Platform
    failures: tuple[Failure, ...]
    verdict: tuple[str, ...] = ()


def judge(plan: Plan, trace: Trace, undisturbed: Trace | None) -> Finding:
    """The finding of one scenario, compared with the undisturbed one where there is one."""
    progress = _progress(trace, undisturbed)
    record, at_return = _record(trace.at_end), _record(trace.before_return)
    executed = _executed(trace)
    platform = _platform(trace, progress)
    outcome = _outcome(trace, progress, plan.quiet)
    repeated = _repeated(plan, trace, undisturbed)
    return Finding(
        trace=trace,
        outcome=outcome,
        progress=progress,
        executed=executed,
        in_flight=tuple(_in_flight(trace.happenings, trace.returned)),
        record=record,
        at_return=at_return,
        repeated=repeated,
        picked_up=_picked_up(trace, undisturbed, outcome),
        unrecorded=executed - Counter(record.anywhere) if record is not None else Counter(),
        platform=platform,
        failures=tuple(_failures(repeated, record, platform)),
    )


def _record(found: Sequence[Found]) -> Record | None:
    return next((item.record for item in found if item.record is not None), None)


def _executed(trace: Trace) -> Counter[str]:
    nodes = _ended(trace.happenings)
    return nodes or scenarios.effects_of(trace.at_end) or Counter()


def _ended(
    happenings: Sequence[Happening], *, until: float | None = None, since: float = 0.0
) -> Counter[str]:
    return Counter(
        h["label"]
        for h in of_kind(happenings, "node.end")
        if h["error"] is None and h.t >= since and (until is None or h.t <= until)
    )


def _in_flight(happenings: Sequence[Happening], until: float | None) -> Iterable[str]:
    """Nodes that had begun and were cut: they never ended, or ended with an error. A pause is none."""
    done = {h["task"] for h in of_kind(happenings, "node.end") if h["error"] in {None, PAUSED}}
    for happening in of_kind(happenings, "node.start"):
        if happening["task"] not in done and (until is None or happening.t <= until):
            yield happening["label"]


def _progress(trace: Trace, undisturbed: Trace | None) -> Progress | None:
    """By the best witness there is: nodes, else effects, else checkpoints, else produced items or pieces."""
    if trace.left is None or undisturbed is None or trace.scenario.behaviour is Behaviour.RECONNECT:
        return None  # who is back at once does not wait to see what becomes of the run
    until = trace.returned or trace.ended
    for witness, at_leaving, at_end, complete in _witnesses(trace, undisturbed, until):
        if complete:
            endless = undisturbed.views[0].how.startswith("left by")
            return Progress(
                witness=witness, at_leaving=at_leaving, at_end=at_end, complete=complete, endless=endless
            )
    return None


def _witnesses(
    trace: Trace, undisturbed: Trace, until: float
) -> Iterable[tuple[str, Counter[str], Counter[str], Counter[str]]]:
    ended = trace.happenings
    yield "nodes", _ended(ended, until=trace.left), _ended(ended, until=until), _ended(undisturbed.happenings)
    found = trace.before_return or trace.at_end
    empty: Counter[str] = Counter()
    effects = [scenarios.effects_of(found) for found in (trace.at_leaving, found, undisturbed.at_end)]
    yield "effects", effects[0] or empty, effects[1] or empty, effects[2] or empty
    events = [_told(some) for some in (trace.at_leaving or found, found, undisturbed.at_end)]
    yield "events", events[0], events[1], events[2]
    steps = [_steps(_record(some)) for some in (trace.at_leaving or found, found, undisturbed.at_end)]
    yield "checkpoints", steps[0], steps[1], steps[2]
    for kind in ("item", "chunk"):
        left, end = _counted(ended, kind, trace.left), _counted(ended, kind, until)
        yield f"{kind}s", left, end, _counted(undisturbed.happenings, kind, None)


def _told(found: Sequence[Found]) -> Counter[str]:
    return sum((Counter(item.steps) for item in found if item.steps), Counter[str]())


def _steps(record: Record | None) -> Counter[str]:
    return Counter(record.anywhere) if record is not None else Counter()


def _counted(happenings: Sequence[Happening], kind: str, until: float | None) -> Counter[str]:
    # A stream of very many items is noted a hundred at a time.
    number = sum(h.fields.get("times", 1) for h in of_kind(happenings, kind) if until is None or h.t <= until)
    return Counter({kind: number}) if number else Counter()


def _outcome(trace: Trace, progress: Progress | None, quiet: float) -> Outcome | None:
    if trace.left is None or trace.scenario.behaviour is Behaviour.RECONNECT:
        return None
    if progress is None:
        return Outcome.UNCLEAR
    if progress.endless:
        return _endless(trace, progress, quiet)
    if not progress.missing:
        return Outcome.COMPLETES
    return Outcome.PARTIAL if progress.after else Outcome.STOPS


def _endless(trace: Trace, progress: Progress, quiet: float) -> Outcome:
    # An endless stream cannot complete. Going on as if nobody had left is the nearest thing to it.
    if not trace.settled:
        return Outcome.COMPLETES if progress.after else Outcome.UNCLEAR
    # What is produced while the news of the leaving is on its way is no going on.
    newest = max((h.t for h in of_kind(trace.happenings, "item", "chunk", "node.end")), default=0.0)
    return Outcome.STOPS if newest - (trace.left or 0.0) < quiet or not progress.after else Outcome.PARTIAL


def _everything(trace: Trace) -> Counter[str]:
    # An effect log sees what was cut in flight as well, and what a node does twice.
    found = _ended(trace.happenings) | (scenarios.effects_of(trace.at_end) or Counter())
    return found or _told(trace.at_end)


def _whole_runs(trace: Trace, undisturbed: Trace | None) -> int:
    """How many messages were carried out from their first step to their last."""
    total, once = _everything(trace), _everything(undisturbed) if undisturbed else Counter[str]()
    return min((total[name] // count for name, count in once.items()), default=0)


def _picked_up(trace: Trace, undisturbed: Trace | None, outcome: Outcome | None) -> bool:
    """Whether a run that had not been completed when its user came back was completed all the same."""
    unfinished = outcome in {Outcome.STOPS, Outcome.PARTIAL} and trace.returned is not None
    return unfinished and _whole_runs(trace, undisturbed) > 1


def _repeated(plan: Plan, trace: Trace, undisturbed: Trace | None) -> tuple[str, ...]:
    """Effects that executed more often than for each message that was carried out once."""
    match trace.scenario.behaviour:
        case Behaviour.RETURN | Behaviour.SIGTERM | Behaviour.SIGKILL:
            messages = max(_whole_runs(trace, undisturbed), 1)
        case Behaviour.RECONNECT | Behaviour.DOUBLE_CLICK:
            messages = 1
        case _:
            return ()
    once = _everything(undisturbed) if undisturbed is not None else Counter[str]()
    names = [name for name, count in _everything(trace).items() if count > messages * max(once[name], 1)]
    return tuple(name for name in names if not plan.effects or name.rpartition("/")[2] in plan.effects)


def _platform(trace: Trace, progress: Progress | None) -> Platform:
    happenings, left = (
        [h for h in trace.happenings if trace.returned is None or h.t < trace.returned],
        trace.left,
    )
    cut = next((h for h in of_kind(happenings, "stream.throw") if left is not None and h.t >= left), None)
    if cut is None:
        cut = next((h for h in _cut_nodes(happenings) if left is not None and h.t >= left), None)
    return Platform(
        time_to_cancel=round(cut.t - left, 3) if cut is not None and left is not None else None,
        exception=cut["error"] if cut is not None else None,
        steps_after_close=progress.after.total() if progress is not None else None,
        finally_finished=_finished(happenings, cut),
        background_ran=_ran(happenings),
        dependencies={h["dependency"]: h["error"] for h in of_kind(happenings, "dependency.exit")},
        generators_left=tuple(_left_behind(happenings)),
        polled=any(of_kind(happenings, "poll")),
        polls_true_while_connected=_polls(happenings, answer=True, before=left),
        polls_false_after_leaving=_polls(happenings, answer=False, since=left),
    )


def _cut_nodes(happenings: Sequence[Happening]) -> Iterable[Happening]:
    return (h for h in of_kind(happenings, "node.end") if h["error"] in {"CancelledError", "GeneratorExit"})


def _finished(happenings: Sequence[Happening], cut: Happening | None) -> bool | None:
    """Whether an await in the stream's clean-up got to its end; None if there was none."""
    if cut is None or cut.kind != "stream.throw":
        return None
    after = [h for h in happenings if h.t > cut.t and h.request == cut.request]
    if any(h.kind == "stream.throw" for h in after):
        return False
    return True if any(h.kind == "stream.cleaning" for h in after) else None


def _ran(happenings: Sequence[Happening]) -> bool | None:
    return True if any(of_kind(happenings, "background.start")) else None


def _left_behind(happenings: Sequence[Happening]) -> Iterable[str]:
    """Generators of a request that nobody closed: collected in the end, or suspended to the last."""
    for happening in of_kind(happenings, "generator.collected"):
        if happening["owner"] in ACCOUNTABLE and happening["of"] is not None:
            yield f"{happening['name']} (left to the garbage collector)"
    closed = {h["key"] for h in of_kind(happenings, "generator.closed", "generator.collected")}
    for happening in of_kind(happenings, "generator.idle"):
        if (
            happening["owner"] in ACCOUNTABLE
            and happening["of"] is not None
            and happening["key"] not in closed
        ):
            yield f"{happening['name']} (still open)"


def _polls(
    happenings: Sequence[Happening], *, answer: bool, before: float | None = None, since: float | None = None
) -> int:
    polls = [h for h in of_kind(happenings, "poll") if h["answer"] is answer]
    if since is not None or not answer:
        return sum(1 for h in polls if since is not None and h.t > since)
    return sum(1 for h in polls if before is None or h.t < before)


def _failures(repeated: Sequence[str], record: Record | None, platform: Platform) -> Iterable[Failure]:
    if repeated:
        yield Failure.DUPLICATE_EFFECTS
    if record is not None and record.forks:
        yield Failure.FORKS
    if platform.generators_left:
        yield Failure.LEAKS
