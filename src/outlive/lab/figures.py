"""Pictures for the report: timelines and trees are the probe's, bars of executed and recorded are ours."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from outlive.lab.experiment import Figure
from outlive.probe import page, timeline
from outlive.probe.findings import Finding

#: Pixels.
WIDTH, LABELS, ROW = 960, 260, 30


def of(finding: Finding, title: str) -> list[Figure]:
    """A finding's timeline, and its checkpoint tree if it has one."""
    found = [Figure(title=title, svg=timeline.draw(finding.trace))]
    tree = page.tree(finding.record.checkpoints) if finding.record else ""
    return [*found, Figure(title=f"{title}: checkpoints", svg=tree)] if tree else found


def bars(title: str, values: Sequence[tuple[str, Mapping[str, int]]]) -> Figure:
    """For each label, one bar per named number: `executed` and `recorded` have colours of their own."""
    top = max([number for _, numbers in values for number in numbers.values()] or [1]) or 1
    lines = [(label, name, number) for label, numbers in values for name, number in numbers.items()]
    parts = [
        f'<svg class="bars" viewBox="0 0 {WIDTH} {ROW * len(lines) + 4}" xmlns="http://www.w3.org/2000/svg">'
    ]
    for place, (label, name, number) in enumerate(lines):
        y, length = place * ROW, (WIDTH - LABELS - 60) * number / top
        parts.append(f'<text x="4" y="{y + 19}">{html.escape(f"{label} · {name}")}</text>')
        parts.append(
            f'<rect class="{name}" x="{LABELS}" y="{y + 6}" width="{length:.0f}" height="{ROW - 12}"/>'
        )
        parts.append(f'<text x="{LABELS + length + 6:.0f}" y="{y + 19}">{number}</text>')
    return Figure(title=title, svg="".join([*parts, "</svg>"]))
