"""The report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence

from outlive.probe import platform as platforms
from outlive.probe import terminal, timeline
from outlive.probe.evidence.found import Checkpoint
from outlive.probe.findings import Finding
from outlive.probe.plan import Outcome
from outlive.probe.report import Report

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --soft: #667; --rule: #dde; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --paper: #14181f; --soft: #99a; --rule: #2c3440; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.meta, caption, .scale, .when { color: var(--soft); }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--rule); }
ul { padding-left: 1.1rem; }
.tag { border-radius: .3rem; padding: .05rem .45rem; font-size: .85em; color: #fff; background: #667;
  white-space: nowrap; }
.stops { background: #a86a00; } .completes { background: #0a7a8a; } .partial { background: #b3261e; }
.ok { background: #2b7a3d; } .bad { background: #b3261e; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .scale, svg .when { fill: var(--soft); font-size: 10px; }
svg .rule { stroke: var(--rule); }
rect.client { fill: #8aa4c8; } rect.request { fill: #b9c4d2; } rect.node { fill: #4b9b6a; }
rect.background { fill: #9a7cc0; } rect.cut { fill: #d4776c; } circle.chunk { fill: #23528a; }
circle.cutting { fill: #b3261e; } line.leaving { stroke: #b3261e; stroke-width: 2; }
line.returning { stroke: #0a7a8a; stroke-width: 2; } circle.point { fill: #4b9b6a; }
circle.head { fill: #23528a; }
line.edge { stroke: var(--soft); } rect.executed { fill: #c98a2b; } rect.recorded { fill: #4b9b6a; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); margin-bottom: .2rem; }
.scroll { overflow-x: auto; } .scroll svg.tree { width: auto; max-width: none; }
.legend span { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin: 0 .3rem 0 .9rem; vertical-align: -.08rem; }
.note { border-left: .2rem solid #9a7cc0; padding-left: .7rem; }
.note.bad { border-color: #b3261e; background: none; white-space: pre-wrap; font-family: monospace; }
td { overflow-wrap: break-word; }
"""

#: What the colours of a timeline mean.
COLOURS = {
    "client": "#8aa4c8",
    "request": "#b9c4d2",
    "node": "#4b9b6a",
    "background task": "#9a7cc0",
    "cut or failed": "#d4776c",
    "a chunk": "#23528a",
    "the handler learns of it": "#b3261e",
}

OUTCOMES = {outcome.value for outcome in Outcome}


def render(report: Report) -> str:
    """The whole page."""
    versions = " · ".join(f"{name} {version}" for name, version in report.versions.items())
    body = [
        f"<h1>What a disconnect commits: {html.escape(report.target)}</h1>",
        f'<p class="meta">{html.escape(_about(report))}<br>{html.escape(versions)}</p>',
        *_notes(report),
        _summary(report),
        legend(),
        *(_finding(finding) for finding in report.findings),
        *(f"<p>{html.escape(name)}: skipped. {html.escape(why)}</p>" for name, why in report.skipped.items()),
        _facts("What server and framework do with the probe's own handler", report.platform),
        _behind_nginx(report),
    ]
    return document(f"outlive probe: {report.target}", body)


def _about(report: Report) -> str:
    spec = report.asgi.get("spec_version", "not announced") if report.asgi else "not seen"
    return f"{report.server} · ASGI spec version {spec} · {report.seconds:.0f} s"


def _notes(report: Report) -> Iterator[str]:
    if report.unusable is not None:
        yield f'<p class="note bad">{html.escape(timeline.shown(report.unusable))}</p>'
    for note in report.notes:
        yield f'<p class="note">{html.escape(timeline.shown(note))}</p>'


def _summary(report: Report) -> str:
    headings = ("scenario", "outcome", "client saw", "executed", "on record", "failures")
    rows = (
        (
            finding.trace.scenario.name,
            finding.outcome.value if finding.outcome else "",
            terminal.clients(finding),
            terminal.counted(finding),
            terminal.on_record(finding),
            ", ".join(failure.value for failure in finding.failures),
        )
        for finding in report.findings
    )
    return table(headings, rows)


def legend() -> str:
    """What the colours of the timelines mean."""
    parts = (f'<span style="background:{colour}"></span>{name}' for name, colour in COLOURS.items())
    return f'<p class="meta legend">{"".join(parts)}</p>'


def document(title: str, body: Iterable[str]) -> str:
    """A page with our style around some HTML."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of escaped cells."""
    top = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    lines = ("".join(f"<td>{_cell(str(cell))}</td>" for cell in row) for row in rows)
    rest = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{rest}</tbody></table>"


def _cell(text: str) -> str:
    escaped = html.escape(timeline.shown(text))
    return f'<span class="tag {text}">{text}</span>' if text in OUTCOMES else escaped


def _finding(finding: Finding) -> str:
    outcome = finding.outcome.value if finding.outcome else ""
    tag = f' <span class="tag {outcome}">{outcome}</span>' if outcome else ""
    failures = "".join(f' <span class="tag bad">{failure.value}</span>' for failure in finding.failures)
    said = (html.escape(timeline.shown(sentence)) for sentence in finding.verdict)
    sentences = "".join(f"<li>{sentence}</li>" for sentence in said)
    platform = dict(terminal.platform_rows([finding])).get(finding.trace.scenario.name, {})
    rows = [
        ("clients", terminal.clients(finding)),
        ("executed", terminal.counted(finding)),
        ("on record", terminal.on_record(finding)),
        *platform.items(),
    ]
    checkpoints = finding.record.checkpoints if finding.record else ()
    return (
        f"<h2>{html.escape(finding.trace.scenario.name)}{tag}{failures}</h2><ul>{sentences}</ul>"
        f"{timeline.draw(finding.trace)}{table(('', ''), rows)}{scrolled(tree(checkpoints))}"
    )


def scrolled(picture: str) -> str:
    """A picture that may be wider than the page."""
    return f'<div class="scroll">{picture}</div>' if picture else ""


def tree(checkpoints: Sequence[Checkpoint]) -> str:
    """The checkpoints of a thread as a picture, one row per line of descent: a fork is seen as one."""
    own = [checkpoint for checkpoint in checkpoints if not checkpoint.namespace]
    if not own:
        return ""
    places = _places(own)
    height = 44 * (max(y for _, y in places.values()) + 1) + 16
    step = max(min(110, 900 // len(own)), 56)
    width = max(960, 20 + step * len(own))
    box = f'width="{width}" viewBox="0 0 {width} {height}"'
    parts = [f'<svg class="tree" {box} role="img" xmlns="http://www.w3.org/2000/svg">']
    for number, checkpoint in enumerate(own):
        column, row = places[checkpoint.id]
        x, y = 20 + column * step, 16 + row * 44
        if checkpoint.parent in places:
            px, py = places[checkpoint.parent]
            parts.append(f'<line class="edge" x1="{20 + px * step}" y1="{16 + py * 44}" x2="{x}" y2="{y}"/>')
        label = html.escape(", ".join(checkpoint.nodes) or checkpoint.source)
        kind = "head" if number == len(own) - 1 else "point"
        parts.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"><title>{checkpoint.id}</title></circle>'
        )
        # The first one's label would be cut off on its left.
        anchor, at = ("start", x - 8) if number == 0 else ("middle", x)
        parts.append(f'<text x="{at}" y="{y + 20}" text-anchor="{anchor}">{label}</text>')
    return "".join([*parts, "</svg>"])


def _places(own: Sequence[Checkpoint]) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    taken: set[str | None] = set()
    rows = 0
    for column, checkpoint in enumerate(own):
        if checkpoint.parent in places and checkpoint.parent not in taken:
            row = places[checkpoint.parent][1]
        else:
            row, rows = rows, rows + 1
        taken.add(checkpoint.parent)
        places[checkpoint.id] = (column, row)
    return places


def _behind_nginx(report: Report) -> str:
    headings, rows = platforms.matrix(report.behind_nginx)
    if not rows:
        return _facts("Behind nginx", report.behind_nginx)
    return f"<h2>Behind nginx</h2>{table(headings, rows)}"


def _facts(title: str, facts: Mapping[str, object]) -> str:
    if not facts:
        return ""
    return f"<h2>{html.escape(title)}</h2>{table(('question', 'answer'), platforms.rows(facts))}"
