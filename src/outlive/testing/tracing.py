"""Traces a process of ``processes`` and says each span as it ends, so that its death loses none that has.

Decides how a span is written down.  What is made of spans, an experiment or a test says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from outlive import runtime, traces
from outlive.testing.processes import say


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A span that has ended.  Ids as hexadecimal text; ``begun`` and ``ended`` in seconds since the epoch."""

    name: str
    trace: str
    span: str
    parent: str | None
    begun: float
    ended: float
    about: dict[str, Any]
    failed: bool


class Teller(SpanExporter):
    """Tells each span at its end, in the thread that ended it."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Tell them all."""
        for span in spans:
            self._tell(told(span))
        return SpanExportResult.SUCCESS


def told(span: ReadableSpan) -> Told:
    """Return what of a span is of interest here; its attributes without their prefix."""
    context = span.get_span_context()
    assert context is not None
    about = {name.removeprefix("outlive."): value for name, value in (span.attributes or {}).items()}
    return Told(
        name=span.name,
        trace=f"{context.trace_id:032x}",
        span=f"{context.span_id:016x}",
        parent=None if span.parent is None else f"{span.parent.span_id:016x}",
        begun=(span.start_time or 0) / 1e9,
        ended=(span.end_time or 0) / 1e9,
        about=about,
        failed=not span.status.is_ok,
    )


def provider(tell: Callable[[Told], None]) -> TracerProvider:
    """Return a provider of OpenTelemetry's SDK whose spans are told at once."""
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(Teller(tell)))
    return made


def tree(spans: Sequence[Told]) -> list[tuple[int, Told]]:
    """Return the spans in the order of their begin, children after their parents, with their depth."""
    known = {span.span for span in spans}

    def below(parent: str | None, depth: int) -> list[tuple[int, Told]]:
        found = []
        for span in sorted(spans, key=lambda one: one.begun):
            if span.parent == parent or (parent is None and span.parent not in known):
                found += [(depth, span), *below(span.span, depth + 1)]
        return found

    return below(None, 0)


async def observed(served: runtime.Outlive) -> None:
    """Trace a process and say its spans: for ``Process(also=...)``; what it runs before is not traced."""

    def tell(span: Told) -> None:
        say(span={name: getattr(span, name) for name in Told.__slots__})

    traces.observe(served, provider(tell))
    say(traced=True)
