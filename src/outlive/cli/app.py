"""The commands by name, and how they end.

Decides how failures look: one clear line with what to do, and an exit code.  2: wrong use or configuration;
3: the database cannot be reached; 4: no such run; 130: interrupted; 1: anything else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import outlive
from outlive import errors
from outlive.cli import (
    costs,
    doctor,
    effects,
    importing,
    keys,
    pruning,
    runs,
    schedules,
    serving,
    settings,
    sweep,
    threads,
    told,
)

LATER = ("probe", "lab")
"""Commands that are imported when they are asked for: they are large, and each needs an extra of its name."""


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *filter(_present, LATER)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in LATER and _present(cmd_name):
            return _later(cmd_name)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="outlive",
    cls=_Commands,
    help="Agent runs that outlive the request: serve them, work on them, look at them.",
    epilog="Exit codes: 0 done; 2 wrong use or configuration; 3 the database cannot be reached;"
    " 4 no such run; 130 interrupted; 1 anything else.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(runs.app, name="runs")
app.add_typer(threads.app, name="threads")
app.add_typer(effects.app, name="effects")
app.add_typer(keys.app, name="keys")
app.add_typer(schedules.app, name="schedules")
app.add_typer(told.app, name="webhooks")
app.command("serve")(serving.serve)
app.command("dev")(serving.dev)
app.command("worker")(serving.work)
app.command("migrate")(serving.migrate)
app.command("prune")(pruning.prune)
app.command("sweep")(sweep.sweep)
app.command("import")(importing.bring)
app.command("policy-cost")(costs.policy_cost)
app.command("settings")(settings.show)
app.command("doctor")(doctor.look)


def _present(name: str) -> bool:
    return importlib.util.find_spec(f"outlive.cli.{name}") is not None


def _later(name: str) -> Any:
    try:
        module = importlib.import_module(f"outlive.cli.{name}")
    except ModuleNotFoundError as missing:
        return _missing_command(name, missing)
    return typer.main.get_command(getattr(module, f"{name}_app"))


def _missing_command(name: str, missing: ModuleNotFoundError) -> Any:
    """Stand for a command in the list, and say what it lacks when it is run."""

    def refuse() -> None:
        raise errors.Misconfigured(
            f"outlive {name} needs {missing.name}, which is not installed.",
            hint=f"Run: pip install 'outlive[{name}]'",
        )

    stand_in = typer.Typer()
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    stand_in.command(name, help=f"Not installed: {missing.name} is missing.", context_settings=anything)(
        refuse
    )
    return typer.main.get_command(stand_in)


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
    if isinstance(failure, errors.NotFound | errors.Deleted):
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
