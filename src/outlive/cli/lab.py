"""``outlive lab``: play the experiments, print their tables, write one report."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from outlive import lab
from outlive.lab import report
from outlive.probe import interrupted

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
    """Play the experiments: what handlers, durability, locks and kills commit, measured here.

    Prints a table per experiment and writes one HTML report of them all.

    Exit codes: 0 all that was asserted held, 1 something did not, 3 it cannot be done.
    """
    if listed:
        typer.echo("\n".join(lab.names()))
        return
    options = lab.Options(quick=quick, trials=trials, seed=seed, postgres=postgres)
    try:
        with interrupted.as_interrupt():
            results = _reported(names or [], options, html, as_json=as_json)
    except (ValueError, OSError) as exc:
        typer.echo(f"outlive lab: {exc}", err=True)
        raise typer.Exit(3) from exc
    if as_json:
        typer.echo(json.dumps([result.as_json() for result in results], indent=2, default=str))
    typer.echo(f"The report is in {html}.", err=True)
    raise typer.Exit(0 if all(result.ok is not False for result in results) else 1)


def _reported(
    names: list[str], options: lab.Options, html: pathlib.Path, *, as_json: bool
) -> list[lab.Result]:
    """Play, and write the report anew after each experiment: one that is interrupted keeps the others'."""
    results: list[lab.Result] = []
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    console = Console(width=wide)
    bars: dict[str, TaskID] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=done, total=total)

        playing = lab.run(names, options, show)
        html.write_text(lab.render(results, options), encoding="utf-8")  # before a long wait, not after it
        for result in playing:
            results.append(result)
            html.write_text(lab.render(results, options), encoding="utf-8")
            if not as_json:
                console.print(report.table(result))
    return results
