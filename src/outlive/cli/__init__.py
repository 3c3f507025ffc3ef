"""The ``outlive`` command.

Decides how commands read and how failures look: one clear line with what to do, and an exit code.  2: wrong
use or configuration; 3: the database cannot be reached; 4: no such run; 1: anything else.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import outlive
from outlive import errors
from outlive.cli import runs, serving

app = typer.Typer(
    name="outlive",
    help="Agent runs that outlive the request: serve them, work on them, look at them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(runs.app, name="runs")
app.command("serve")(serving.serve)
app.command("worker")(serving.work)
app.command("migrate")(serving.migrate)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlive {outlive.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Nothing here: every command has its own options."""
    del version


def exit_code(failure: errors.OutliveError) -> int:
    """Return the exit code of a failure."""
    if isinstance(failure, errors.Unavailable):
        return 3
    if isinstance(failure, errors.NotFound):
        return 4
    return 2 if isinstance(failure, errors.Misconfigured | errors.InvalidInput) else 1


def main() -> None:
    """Run the command line."""
    try:
        app()
    except errors.OutliveError as failure:
        typer.echo(f"outlive: {failure}", err=True)
        sys.exit(exit_code(failure))
    except KeyboardInterrupt:
        sys.exit(130)
