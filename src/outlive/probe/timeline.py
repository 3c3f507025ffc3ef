"""A scenario as a picture: one inline SVG with a lane per client and per node, and the moment of leaving.

Drawn from what was recorded only; no script and nothing fetched, so that the file can be kept and mailed.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outlive.probe.inject.nodes import PAUSED
from outlive.probe.scenario import Trace
from outlive.probe.tape import Happening, of_kind

#: Pixels: the drawing's width, the lanes' labels, one lane's height.
WIDTH, LABELS, LANE = 960, 170, 26

#: More chunks than this are not drawn one by one.
DOTS = 120


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that took time, in a lane. Seconds since the scenario began."""

    lane: str
    begin: float
    end: float
    kind: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a moment. Without a lane it crosses all of them."""

    at: float
    kind: str
    title: str
    lane: str | None = None


def draw(trace: Trace) -> str:
    """The SVG of one scenario."""
    return picture(list(_spans(trace)), list(_marks(trace)), max(trace.ended - trace.started, 0.1))


def picture(spans: Sequence[Span], marks: Sequence[Mark], length: float) -> str:
    """An SVG with these spans and marks on a scale of `length` seconds."""
    lanes = list(dict.fromkeys([*(s.lane for s in spans), *(m.lane for m in marks if m.lane is not None)]))
    height = LANE * len(lanes) + 30

    def x(seconds: float) -> float:
        return round(LABELS + (WIDTH - LABELS - 10) * min(max(seconds, 0.0), length) / length, 1)

    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
    ]
    for number, lane in enumerate(lanes):
        top = number * LANE
        parts.append(f'<text class="lane" x="4" y="{top + 18}">{html.escape(shown(lane))}</text>')
        parts.append(f'<line class="rule" x1="{LABELS}" x2="{WIDTH}" y1="{top + LANE}" y2="{top + LANE}"/>')
        parts += [_bar(span, x(span.begin), x(span.end), top) for span in spans if span.lane == lane]
        parts += [_dot(mark, x(mark.at), top) for mark in marks if mark.lane == lane]
    parts += [_line(mark, x(mark.at), LANE * len(lanes)) for mark in marks if mark.lane is None]
    parts += [_tick(at, x(at), height) for at in _ticks(length)]
    return "".join([*parts, "</svg>"])


def shown(text: str) -> str:
    """The text without what no document may contain: a service may send anything."""
    return "".join(c if c.isprintable() else " " for c in text)


def _bar(span: Span, left: float, right: float, top: int) -> str:
    title = html.escape(shown(f"{span.title} ({span.end - span.begin:.2f} s)"))
    width = max(right - left, 2)
    place = f'x="{left}" y="{top + 5}" width="{width:.1f}" height="{LANE - 9}" rx="2"'
    return f'<rect class="{span.kind}" {place}><title>{title}</title></rect>'


def _dot(mark: Mark, x: float, top: int) -> str:
    title = html.escape(shown(f"{mark.title} at {mark.at:.2f} s"))
    return (
        f'<circle class="{mark.kind}" cx="{x}" cy="{top + LANE // 2}" r="4"><title>{title}</title></circle>'
    )


def _line(mark: Mark, x: float, height: int) -> str:
    title = html.escape(f"{mark.title} at {mark.at:.2f} s")
    return (
        f'<line class="{mark.kind}" x1="{x}" x2="{x}" y1="0" y2="{height}"><title>{title}</title></line>'
        f'<text class="when" x="{x + 3}" y="{height + 12}">{html.escape(mark.title)}</text>'
    )


def _ticks(length: float) -> list[float]:
    """Round moments, about eight of them."""
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 600, 1e9) if length / s <= 9)
    return [round(number * step, 2) for number in range(int(length / step) + 1)]


def _tick(at: float, x: float, height: int) -> str:
    place = f'<line class="rule" x1="{x}" x2="{x}" y1="{height - 30}" y2="{height - 25}"/>'
    return f'{place}<text class="scale" x="{x}" y="{height - 2}" text-anchor="middle">{at:g} s</text>'


def _spans(trace: Trace) -> Iterator[Span]:
    for number, view in enumerate(trace.views, 1):
        end = view.left or view.newest or view.started
        yield Span(
            lane=f"client {number}",
            begin=view.started - trace.started,
            end=end - trace.started,
            kind="client",
            title=view.how,
        )
    for start, over in (
        ("request.start", "request.end"),
        ("node.start", "node.end"),
        ("background.start", "background.end"),
    ):
        yield from sorted(_between(trace, start, over), key=lambda span: span.begin)


def _requests(trace: Trace) -> dict[str | None, str]:
    """A lane for each request, numbered when there are several."""
    begun = [happening.request for happening in of_kind(trace.happenings, "request.start")]
    several = len(begun) > 1
    return {name: f"request {number}" if several else "request" for number, name in enumerate(begun, 1)}


def _between(trace: Trace, start: str, end: str) -> Iterator[Span]:
    lanes = _requests(trace)
    open_ones: dict[tuple[object, ...], Happening] = {}
    for happening in of_kind(trace.happenings, start, end):
        key = (happening.pid, happening.fields.get("task") or happening.request)
        if happening.kind == start:
            open_ones[key] = happening
        elif key in open_ones:
            yield _span(trace, lanes, open_ones.pop(key), happening.t, happening.fields.get("error"))
    for happening in open_ones.values():
        yield _span(trace, lanes, happening, _death(trace, happening), "never ended")


def _death(trace: Trace, begun: Happening) -> float:
    """When what never ended was over: with the process that did it, if that was ended."""
    gone = (trace.left or 0.0) + (trace.exit_seconds or 0.0)
    return gone if trace.exited is not None and begun.t < gone else trace.ended


def _span(trace: Trace, lanes: Mapping[str | None, str], begun: Happening, end: float, error: object) -> Span:
    what = begun.kind.partition(".")[0]
    other = lanes.get(begun.request, what) if what == "request" else what
    lane = str(begun.fields.get("label") or other)
    return Span(
        lane=f"node {lane}" if what == "node" else lane,
        begin=begun.t - trace.started,
        end=end - trace.started,
        kind=f"{what} cut" if error and error != PAUSED else what,
        title=f"{lane}: {error or 'done'}",
    )


def _cuts(trace: Trace, happening: Happening) -> bool:
    """A server says "disconnect" after a whole answer as well."""
    left = trace.left
    return (
        left is not None and happening.t >= left and (trace.returned is None or happening.t < trace.returned)
    )


def _marks(trace: Trace) -> Iterator[Mark]:
    for number, view in enumerate(trace.views, 1):
        every = len(view.chunks) // DOTS + 1
        for at, text in view.chunks[::every]:
            yield Mark(lane=f"client {number}", at=at - trace.started, kind="chunk", title=text[:80])
    lanes = _requests(trace)
    for happening in of_kind(trace.happenings, "stream.throw", "request.disconnect"):
        if happening.request not in lanes or not _cuts(trace, happening):
            continue
        what = str(happening.fields.get("error", "http.disconnect"))
        yield Mark(lane=lanes[happening.request], at=happening.t - trace.started, kind="cutting", title=what)
    if trace.left is not None:
        title = "signal" if trace.exited is not None else "client leaves"
        yield Mark(at=trace.left - trace.started, kind="leaving", title=title)
    if trace.returned is not None:
        yield Mark(at=trace.returned - trace.started, kind="returning", title="comes back")
