"""All results as one HTML file that needs nothing else, and as tables for a terminal."""

from __future__ import annotations

import datetime
import html
import importlib.metadata
import platform
import re
from collections.abc import Iterable, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from outlive.lab.experiment import Options, Result
from outlive.probe import page

#: Distributions whose versions decide what is seen.
NAMED = (
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "fastapi",
    "starlette",
    "uvicorn",
)


def versions() -> dict[str, str]:
    """What was measured with."""
    found = {"python": platform.python_version(), "system": platform.system()}
    for name in NAMED:
        found[name] = importlib.metadata.version(name)
    return found


def render(results: Sequence[Result], options: Options | None = None) -> str:
    """The report."""
    about = " · ".join(f"{name} {version}" for name, version in versions().items())
    body = [
        "<h1>What a disconnect commits: experiments</h1>",
        f'<p class="meta">{html.escape(about)}<br>{html.escape(_run(results, options or Options()))}</p>',
        page.table(("experiment", "asserted", "", "seconds"), (_line(result) for result in results)),
        page.legend(),
        *(_section(result) for result in results),
    ]
    return page.document("outlive lab", body)


def _run(results: Sequence[Result], options: Options) -> str:
    amount = f"{options.trials} trials" if options.trials else "few trials" if options.quick else "all trials"
    day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{day} · {amount} · seed {options.seed} · {sum(r.seconds for r in results):.0f} s"


def _line(result: Result) -> tuple[str, ...]:
    held = {True: "held", False: "did not hold", None: "not played"}[result.ok]
    return (result.name, result.asserts.replace("`", ""), held, f"{result.seconds:.0f}")


def _section(result: Result) -> str:
    figures = "".join(
        f"<figure><figcaption>{html.escape(f.title)}</figcaption>{page.scrolled(f.svg)}</figure>"
        for f in result.figures
    )
    rows = page.scrolled(page.table(columns(result.rows), cells(result.rows)))
    return (
        f'<h2 id="{result.name}">{result.name}: {html.escape(result.title)} {_tag(result)}</h2>'
        f"<p>{_said(result.asserts)}</p>{_why(result)}{rows}{figures}"
    )


def _said(text: str) -> str:
    """With the words between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _why(result: Result) -> str:
    return f'<p class="note bad">{html.escape(result.skipped)}</p>' if result.skipped else ""


def _tag(result: Result) -> str:
    if result.ok is None:
        return '<span class="tag">not played</span>'
    return (
        f'<span class="tag {"ok" if result.ok else "bad"}">{"held" if result.ok else "did not hold"}</span>'
    )


def columns(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Every column of any row, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def cells(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """The rows as text."""
    return [[_cell(row.get(name, "")) for name in columns(rows)] for row in rows]


def _cell(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def table(result: Result) -> Table:
    """One experiment for a terminal."""
    skipped = f"[dim]{escape(result.skipped or '')}[/]"
    verdict = {True: "[green]held[/]", False: f"[red]did not hold[/] {skipped}", None: skipped}[result.ok]
    shown = Table(
        title=f"{result.name}: {escape(result.title)}",
        caption=f"{escape(result.asserts)} {verdict} ({result.seconds:.0f} s)",
    )
    for name in columns(result.rows):
        shown.add_column(name, overflow="fold")
    for row in cells(result.rows):
        shown.add_row(*map(escape, row))
    return shown
