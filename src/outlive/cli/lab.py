"""``outlive lab``: play the experiments, print their tables, write one report."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from outlive import lab
from outlive.lab import report

lab_app = typer.Typer(help="What a disconnect commits, as experiments.", pretty_exceptions_enable=False)


@lab_app.command("lab")
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; all when none is named.")] = None,
    *,
    quick: Annotated[bool, typer.Option(help="Few trials: about a minute for everything.")] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="So many trials in every experiment.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed leaves at the same times.")] = 0,
    postgres: Annotated[
        str | None, typer.Option(help="DSN of a PostgreSQL to use; default: one of our own, where installed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    html: Annotated[pathlib.Path, typer.Option(help="Where the report goes.")] = pathlib.Path("lab.html"),
    listed: Annotated[bool, typer.Option("--list", help="Only list the experiments.")] = False,
) -> None:
    """Show what a disconnect commits, as experiments.

    Exit codes: 0 all that was asserted held, 1 something did not, 3 there is no such experiment.
    """
    if listed:
        typer.echo("\n".join(lab.names()))
        return
    options = lab.Options(quick=quick, trials=trials, seed=seed, postgres=postgres)
    try:
        results = list(_played(names or [], options, as_json=as_json))
    except ValueError as exc:
        typer.echo(f"outlive lab: {exc}", err=True)
        raise typer.Exit(3) from exc
    html.write_text(lab.render(results), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([result.as_json() for result in results], indent=2, default=str))
    typer.echo(f"The report is in {html}.", err=True)
    raise typer.Exit(0 if all(result.ok is not False for result in results) else 1)


def _played(names: list[str], options: lab.Options, *, as_json: bool) -> Iterator[lab.Result]:
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    console, errors = Console(width=wide), Console(stderr=True)
    bars: dict[str, TaskID] = {}
    with Progress(console=errors, transient=True) as progress:

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=done, total=total)

        for result in lab.run(names, options, show):
            if not as_json:
                console.print(report.table(result))
            yield result
