"""``outlive effects``: list, show, settle and approve, straight from the database."""

from __future__ import annotations

import getpass
import json
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive import errors
from outlive.cli import options, runs
from outlive.effects.desk import Desk
from outlive.ledger import Effect, EffectState
from outlive.store import Store

app = typer.Typer(help="Look at what runs did to the world, and say what became of it.", no_args_is_help=True)
EffectId = Annotated[str, typer.Argument(help="The effect's id.")]
By = Annotated[str, typer.Option(help="Who says so; kept in the ledger. Default: your user name.")]
STYLE = {
    EffectState.INTENDED: "dim",
    EffectState.STARTED: "cyan",
    EffectState.DONE: "green",
    EffectState.FAILED: "red",
    EffectState.UNKNOWN: "bold yellow",
    EffectState.RECONCILED: "green",
    EffectState.COMPENSATED: "magenta",
}


@app.command("list")
def list_(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 50,
    open_: Annotated[bool, typer.Option("--open", help="Only those whose outcome is open.")] = False,
    as_json: options.Json = False,
) -> None:
    """List effects, newest first; with --open those whose outcome is open, oldest first."""

    async def read(store: Store) -> list[Effect]:
        return await Desk(store).newest(tenant=tenant, limit=limit, unsettled=open_)

    found = runs.with_store(database, read)
    if as_json:
        typer.echo(json.dumps([effect.public() for effect in found]))
        return
    names = ("name", "key", "gen.", "state", "calls", "run", "wished")
    table = Table(Column("effect", no_wrap=True, min_width=32), *names, box=None)
    for effect in found:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(effect.created_at))
        state = Text(effect.known.value, STYLE[effect.known])
        words = (Text(effect.name), Text(effect.key), str(effect.generation), state, str(effect.calls))
        table.add_row(effect.effect_id, *words, effect.run_id, when)
    Console(width=None if sys.stdout.isatty() else 180).print(table)


@app.command()
def show(
    effect_id: EffectId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Show one effect: its key, its inputs, and what is known of it."""

    async def read(store: Store) -> Effect:
        return await Desk(store).show(effect_id, tenant=tenant)

    _print(runs.with_store(database, read), as_json)


@app.command()
def settle(
    effect_id: EffectId,
    *,
    executed: Annotated[
        bool,
        typer.Option("--executed/--not-executed", help="Whether the provider did it.", show_default=False),
    ],
    result: Annotated[str, typer.Option(help="Its result, as JSON: what the agent will get.")] = "null",
    by: By = "",
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Say what became of an effect that was cut in flight.

    What was executed is never called again; what was not is called by the run that waits for it, or by the
    next one that wants it. Ask the provider first: nobody checks what you say.
    """
    try:
        parsed: Any = json.loads(result)
    except ValueError as wrong:
        raise errors.InvalidInput(f"--result is no JSON: {wrong}", field="result") from None

    async def say(store: Store) -> Effect:
        return await Desk(store).settle(
            effect_id, executed=executed, result=parsed, by=by or getpass.getuser(), tenant=tenant
        )

    _print(runs.with_store(database, say), as_json)


@app.command()
def retry(
    effect_id: EffectId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Have what a run's end released or has to undo tried again, once what was wrong is mended."""

    async def ask(store: Store) -> str:
        return await Desk(store).retry(effect_id, tenant=tenant)

    run_id = runs.with_store(database, ask)
    typer.echo(json.dumps({"run_id": run_id}) if as_json else f"queued: {run_id}")


@app.command()
def approve(
    name: Annotated[str, typer.Argument(help="The effect's name.")],
    key: Annotated[str, typer.Argument(help="Its business key.")],
    *,
    lasts: Annotated[float, typer.Option(help="Seconds within which it may start.")] = 3600.0,
    by: By = "",
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Allow one effect of this name and key to start, once."""

    async def allow(store: Store) -> str:
        return await Desk(store).approve(name, key, by=by or getpass.getuser(), lasts=lasts, tenant=tenant)

    approval = runs.with_store(database, allow)
    typer.echo(json.dumps({"approval_id": approval}) if as_json else f"approved: {approval}")


def _print(effect: Effect, as_json: bool) -> None:
    shown = effect.public()
    if as_json:
        typer.echo(json.dumps(shown))
        return
    table = Table(show_header=False)
    for name, value in shown.items():
        table.add_row(name, Text(value if isinstance(value, str) else json.dumps(value)))
    Console().print(table)
