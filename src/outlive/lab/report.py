"""All results as one HTML file that needs nothing else, and as tables for a terminal."""

from __future__ import annotations

import html
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from outlive.lab.experiment import Result
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


def render(results: Sequence[Result]) -> str:
    """The report."""
    about = " · ".join(f"{name} {version}" for name, version in versions().items())
    body = ["<h1>What a disconnect commits: experiments</h1>", f'<p class="meta">{html.escape(about)}</p>']
    return page.document("outlive lab", [*body, *(_section(result) for result in results)])


def _section(result: Result) -> str:
    figures = "".join(
        f"<figure><figcaption>{html.escape(f.title)}</figcaption>{f.svg}</figure>" for f in result.figures
    )
    return (
        f'<h2 id="{result.name}">{html.escape(result.title)} {_tag(result)}</h2>'
        f"<p>{html.escape(result.asserts)}</p>{page.table(columns(result.rows), cells(result.rows))}{figures}"
    )


def _tag(result: Result) -> str:
    if result.ok is None:
        return f'<span class="tag">{html.escape(result.skipped or "skipped")}</span>'
    return (
        f'<span class="tag {"ok" if result.ok else "bad"}">{"held" if result.ok else "did not hold"}</span>'
    )


def columns(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Every column of any row, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def cells(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """The rows as text."""
    return [[str(row.get(name, "")) for name in columns(rows)] for row in rows]


def table(result: Result) -> Table:
    """One experiment for a terminal."""
    verdict = {True: "[green]held[/]", False: "[red]did not hold[/]", None: f"[dim]{result.skipped}[/]"}[
        result.ok
    ]
    shown = Table(
        title=f"{result.name}: {result.title}", caption=f"{result.asserts} {verdict} ({result.seconds:.0f} s)"
    )
    for name in columns(result.rows):
        shown.add_column(name, overflow="fold")
    for row in cells(result.rows):
        shown.add_row(*row)
    return shown
