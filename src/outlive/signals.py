"""Happenings: a closed list to which logs, metrics, traces and tests all listen.

Decides what can be observed; emitting never fails the code that emits, and never blocks it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from outlive import errors, spans
from outlive.states import Reason, State

logger = logging.getLogger("outlive")
LONGEST = 8192


class Write(StrEnum):
    """Kinds of write that a fence can refuse."""

    EVENT = "event"
    VERDICT = "verdict"
    HAND_BACK = "hand_back"
    RENEWAL = "renewal"
    CHECKPOINT = "checkpoint"
    EFFECT = "effect"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSubmitted:
    """A submit committed; ``claimed`` says that it went straight to running."""

    run_id: str
    agent: str
    claimed: bool
    thread_id: str = ""
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunClaimed:
    """This process took a run."""

    run_id: str
    epoch: int
    thread_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """A verdict committed in this process; ``error`` is the class of what a failed agent raised.

    ``seconds``: from the end of its agent until the verdict was on record.
    """

    run_id: str
    state: State
    reason: Reason | None
    error: str | None = None
    seconds: float = 0.0
    thread_id: str = ""
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPayload:
    """What a run was given, returned or failed with; told only where somebody has asked for it."""

    run_id: str
    what: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHandedBack:
    """Shutdown put a run back into the queue."""

    run_id: str
    epoch: int
    thread_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSwept:
    """A lost executor's run was given back (``queued``) or ended; ``heard_of``: the last sign of its life."""

    run_id: str
    epoch: int
    state: State
    early: bool
    thread_id: str = ""
    heard_of: float = 0.0
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested:
    """Somebody asked a run to stop."""

    run_id: str
    reason: Reason
    thread_id: str = ""
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleWriteRefused:
    """A fence refused a write of an executor that no longer holds its run."""

    run_id: str
    epoch: int
    write: Write


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseLost:
    """This process stopped driving a run because it could no longer trust its lease."""

    run_id: str
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopStalled:
    """The event loop has not ticked for ``seconds``; ``where`` names the code that holds it."""

    seconds: float
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopResumed:
    """The event loop turns again, after it was held for ``seconds`` by the code that ``where`` names."""

    seconds: float
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingFailed:
    """Events could not be stored and their attempt ended with them; the sweeper will recover the run."""

    run_id: str
    epoch: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalisationFailed:
    """A verdict could not be stored within its deadline; the sweeper will recover the run."""

    run_id: str
    epoch: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotLeaked:
    """A stopped agent did not return within ``stop_deadline``; its slot stays taken until it does."""

    run_id: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanupFailed:
    """Closing an agent's generator raised; the run's outcome is not affected."""

    run_id: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectSettled:
    """An effect's call has ended: ``done``, ``failed``, or ``unknown`` because it was cut in flight."""

    run_id: str
    effect_id: str
    name: str
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectWaits:
    """An effect is ``unknown`` and its run waits for somebody who knows what became of it."""

    run_id: str
    effect_id: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotificationDelivered:
    """A receiver has it, after so many tries and ``seconds`` after its run ended (or it was sent again)."""

    notification_id: str
    run_id: str
    attempts: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NotificationFailed:
    """A try failed.  ``again_in``: seconds until the next; None: that was the last."""

    notification_id: str
    run_id: str
    attempts: int
    error: str
    again_in: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NotificationDead:
    """A notification was given up, and is kept as a dead letter."""

    notification_id: str
    run_id: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleFired:
    """A slot of a schedule became a run, ``seconds`` after it."""

    schedule_id: str
    run_id: str
    slot: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSkipped:
    """No run was made for a slot of a schedule, or for so many ``slots`` up to it."""

    schedule_id: str
    slot: float
    reason: str
    slots: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreRetried:
    """A transaction is repeated after the database failed under it."""

    script: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BackgroundFailed:
    """A background duty failed and will be tried again."""

    duty: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WakeupsDegraded:
    """Cross-process wake-ups do not arrive; readers fall back to polling."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WakeupsRestored:
    """Cross-process wake-ups arrive again."""


Happening = (
    RunSubmitted
    | RunClaimed
    | RunEnded
    | RunPayload
    | RunHandedBack
    | RunSwept
    | StopRequested
    | StaleWriteRefused
    | LeaseLost
    | LoopStalled
    | LoopResumed
    | RecordingFailed
    | FinalisationFailed
    | SlotLeaked
    | CleanupFailed
    | EffectSettled
    | EffectWaits
    | NotificationDelivered
    | NotificationFailed
    | NotificationDead
    | ScheduleFired
    | ScheduleSkipped
    | StoreRetried
    | BackgroundFailed
    | WakeupsDegraded
    | WakeupsRestored
)
Listener = Callable[[Happening], None]

_LOUD: tuple[type, ...] = (
    StaleWriteRefused,
    LeaseLost,
    LoopStalled,
    SlotLeaked,
    CleanupFailed,
    EffectWaits,
    NotificationFailed,
    NotificationDead,
    ScheduleSkipped,
    StoreRetried,
    BackgroundFailed,
    WakeupsDegraded,
)


class Signals:
    """The listeners of one runtime.  Thread-safe: ``emit`` may be called from any thread."""

    def __init__(self, *, listeners: tuple[Listener, ...] | None = None) -> None:
        """Tell the log, unless given other ``listeners``."""
        self._listeners: tuple[Listener, ...] = (log,) if listeners is None else listeners
        self._tracing: spans.Tracing | None = None
        self.payloads = False

    def emit(self, happening: Happening) -> None:
        """Tell every listener.  A listener that raises is reported and does not stop the others."""
        for listener in self._listeners:
            try:
                listener(happening)
            except Exception:
                logger.exception("a listener failed on %s", type(happening).__name__)

    def show(self, run_id: str, **texts: str | None) -> None:
        """Tell of payloads, up to ``LONGEST`` characters of each, if ``payloads`` is set."""
        if self.payloads:
            for what, text in texts.items():
                if text is not None:
                    self.emit(RunPayload(run_id=run_id, what=what, text=text[:LONGEST]))

    def listen(self, listener: Listener) -> None:
        """Add a listener for the life of the runtime."""
        self._listeners = (*self._listeners, listener)

    def trace(self, tracing: spans.Tracing) -> None:
        """Have what lasts traced, for the life of the runtime; raises ``Misconfigured`` the second time."""
        if self._tracing is not None:
            raise errors.Misconfigured("It is traced already.", hint="Observe each Outlive once.")
        self._tracing = tracing

    def during(self, stretch: spans.Stretch) -> AbstractContextManager[spans.Open]:
        """Trace the ``with`` block, which is one stretch of work in one task, if anybody traces."""
        return spans.NOBODY if self._tracing is None else self._tracing.over(stretch)

    @contextmanager
    def recording(self) -> Iterator[list[Happening]]:
        """Collect happenings for the length of a ``with`` block."""
        seen: list[Happening] = []
        before = self._listeners
        self._listeners = (*before, seen.append)
        try:
            yield seen
        finally:
            self._listeners = tuple(kept for kept in self._listeners if kept != seen.append)


def log(happening: Happening) -> None:
    """Write one log line per happening; ids only, no payloads."""
    if isinstance(happening, RecordingFailed | FinalisationFailed):
        level = logging.ERROR
    elif (
        isinstance(happening, _LOUD)
        or (isinstance(happening, RunEnded) and happening.state in (State.FAILED, State.ABANDONED))
        or (isinstance(happening, EffectSettled) and happening.state == "unknown")
    ):
        level = logging.WARNING
    else:
        level = logging.INFO
    if logger.isEnabledFor(level):
        fields = {field.name: getattr(happening, field.name) for field in dataclasses.fields(happening)}
        words = " ".join(f"{name}={value}" for name, value in fields.items())
        event = type(happening).__name__
        logger.log(level, "%s %s", event, words, extra={"event": event, "happening": fields})
