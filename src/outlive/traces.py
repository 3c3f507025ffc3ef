"""Traces: each run's submit, attempts, effects and notifications as spans of one trace, by OpenTelemetry.

Decides how a stretch of work looks as a span.  It speaks to OpenTelemetry's API alone: which SDK records the
spans, and where they are sent, is the application's to say.  A span holds ids, states and the names of
errors, never what a run was given, yielded or returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, assert_never

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TracerProvider

from outlive import errors, names, signals, spans
from outlive.runtime import Outlive
from outlive.states import State

_ENDED = (signals.NotificationDelivered, signals.NotificationFailed, signals.NotificationDead)


def observe(outlive: Outlive, provider: TracerProvider | None = None, *, messages: bool = False) -> Traces:
    """Have an ``Outlive`` traced from now on, once, before it is opened.

    ``provider`` None is the one that is set for the process.  ``messages``: the span of a failed attempt
    holds the traceback too, whose texts may hold anything.  Raises ``Misconfigured`` the second time.
    """
    traces = Traces(provider or trace.get_tracer_provider(), messages=messages)
    outlive.signals.trace(traces)
    outlive.signals.listen(traces.heard)
    return traces


class Traces:
    """Makes spans of what lasts, and tells them what happens."""

    def __init__(self, provider: TracerProvider, *, messages: bool = False) -> None:
        """Make them by ``provider``."""
        self._tracer = provider.get_tracer("outlive")
        self._messages = messages
        self._attempts: dict[tuple[str, int], _Open] = {}

    @contextmanager
    def over(self, stretch: spans.Stretch) -> Iterator[spans.Open]:
        """Have one span last as long as the block, and be the current one of its task."""
        span = self._begun(stretch)
        opened = _Open(span, messages=self._messages)
        key = (stretch.run_id, stretch.epoch) if isinstance(stretch, spans.Attempting) else None
        if key is not None:
            self._attempts[key] = opened
        try:
            with opened.here():
                yield opened
        except Exception as failure:
            opened.error(type(failure).__name__)
            raise
        except BaseException:
            opened.say(cut=True)
            raise
        finally:
            if key is not None:
                self._attempts.pop(key, None)
            span.end()

    def _begun(self, stretch: spans.Stretch) -> Span:
        match stretch:
            case spans.Submitting():
                within = contexts.get_current()
                if not trace.get_current_span(within).get_span_context().is_valid:
                    within = _within(stretch.traceparent, within)
                return self._span("run.submit", within, SpanKind.PRODUCER, agent=stretch.agent)
            case spans.Attempting():
                about = {name: getattr(stretch, name) for name in ("run_id", "thread_id", "epoch", "agent")}
                return self._span("run.attempt", _within(stretch.traceparent), SpanKind.CONSUMER, **about)
            case spans.Effecting():
                within, about = contexts.get_current(), {"run_id": stretch.run_id, "effect": stretch.name}
                return self._span(f"effect {stretch.name}", within, SpanKind.INTERNAL, **about)
            case spans.Notifying():
                about = {name: getattr(stretch, name) for name in ("notification_id", "run_id", "attempts")}
                return self._span("notification", _within(stretch.traceparent), SpanKind.CLIENT, **about)
            case _:
                assert_never(stretch)

    def _span(
        self, name: str, within: Context, kind: SpanKind, *, since: float | None = None, **about: Any
    ) -> Span:
        return self._tracer.start_span(
            name,
            context=within,
            kind=kind,
            attributes={f"outlive.{word}": value for word, value in about.items()},
            start_time=None if since is None else round(since * 1e9),
        )

    # ------------------------------------------------------------ what happens

    def heard(self, happening: signals.Happening) -> None:
        """Tell the span that a happening is about."""
        if isinstance(happening, signals.RunSwept):
            self._swept(happening)
        elif isinstance(happening, signals.EffectSettled | signals.EffectWaits):
            _effect(happening)
        elif isinstance(happening, _ENDED):
            _notification(happening)
        elif isinstance(happening, signals.SlotLeaked | signals.CleanupFailed):
            if isinstance(current := spans.CURRENT.get(), _Open):
                current.event(happening)
        else:
            key = (getattr(happening, "run_id", ""), getattr(happening, "epoch", 0))
            if (opened := self._attempts.get(key)) is not None:
                _attempt(opened, happening)

    def _swept(self, swept: signals.RunSwept) -> None:
        """Nobody else tells what became of an attempt whose process is gone: its own span died with it."""
        about = {"run_id": swept.run_id, "thread_id": swept.thread_id, "epoch": swept.epoch}
        about |= {"state": swept.state.value, "reason": "proof" if swept.early else "expiry"}
        within = _within(swept.traceparent)
        self._span("run.lost", within, SpanKind.INTERNAL, since=swept.heard_of, **about).end()


class _Open:
    """A span, as the core sees it."""

    def __init__(self, span: Span, *, messages: bool) -> None:
        self._span = span
        self._messages = messages

    @property
    def traceparent(self) -> str | None:
        found = self._span.get_span_context()
        if not found.is_valid:
            return None
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"

    def say(self, **words: str | float | None) -> None:
        if self._span.is_recording():  # also told of what comes after its end: it would complain
            told = {f"outlive.{word}": value for word, value in words.items() if value is not None}
            self._span.set_attributes(told)

    def error(self, kind: str) -> None:
        if self._span.is_recording():
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, kind))

    def event(self, happening: signals.Happening, **words: str | float) -> None:
        if self._span.is_recording():
            about = {f"outlive.{word}": value for word, value in words.items()}
            self._span.add_event(type(happening).__name__, about)

    def failed(self, detail: str | None) -> None:
        if self._messages and detail is not None and self._span.is_recording():
            self._span.set_attribute("exception.stacktrace", detail)

    @contextmanager
    def here(self) -> Iterator[None]:
        token = contexts.attach(trace.set_span_in_context(self._span))
        ours = spans.CURRENT.set(self)
        try:
            yield
        finally:
            try:
                spans.CURRENT.reset(ours)
            except ValueError:  # closed from elsewhere, as the loop's end does: nothing of it is seen there
                pass
            else:
                contexts.detach(token)


def _attempt(opened: _Open, happening: signals.Happening) -> None:
    if isinstance(happening, signals.RunEnded):
        reason = happening.reason.value if happening.reason else None
        opened.say(state=happening.state.value, reason=reason)
        if happening.state is State.FAILED:
            opened.error(happening.error or "unknown")
    elif isinstance(happening, signals.RunHandedBack):
        opened.say(state=State.QUEUED.value, reason="handed_back")
    elif isinstance(happening, signals.StopRequested):
        opened.event(happening, reason=happening.reason.value)
    elif isinstance(happening, signals.StaleWriteRefused):
        opened.event(happening, write=happening.write.value)
        opened.say(state="lost")
    elif isinstance(happening, signals.LeaseLost):
        opened.say(state="lost")
    elif isinstance(happening, signals.RecordingFailed | signals.FinalisationFailed):
        opened.say(state="lost")
        opened.error(type(happening).__name__)


def _effect(happening: signals.EffectSettled | signals.EffectWaits) -> None:
    opened = spans.CURRENT.get()
    if not isinstance(opened, _Open):
        return
    if isinstance(happening, signals.EffectSettled):
        opened.say(effect_id=happening.effect_id, state=happening.state)
    else:
        opened.event(happening)


def _notification(happening: signals.Happening) -> None:
    opened = spans.CURRENT.get()
    if not isinstance(opened, _Open):
        return
    if isinstance(happening, signals.NotificationDelivered):
        opened.say(state="delivered")
    elif isinstance(happening, signals.NotificationFailed):
        opened.say(state="pending", again_in=happening.again_in)
        opened.error(type(happening).__name__)
    else:
        opened.say(state="dead")


def _within(traceparent: str | None, base: Context | None = None) -> Context:
    """The context of somebody else's span; without one a trace begins here."""
    base = Context() if base is None else base
    known = names.traceparent(traceparent)
    if known is None:
        return base
    _, trace_id, span_id, flags = known.split("-")
    parent = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), base)


def check_recorded() -> None:
    """Raise ``Misconfigured`` unless this process has something set that records spans."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        raise errors.Misconfigured(
            "Traces are to be made, and nothing is there that records them.",
            hint="Start it by opentelemetry-instrument, or set a tracer provider where your agents are.",
        )
