"""``outlive keys``: make, list and revoke API keys, straight in the database."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive import errors, keys, names
from outlive.cli import options
from outlive.cli.runs import with_store
from outlive.principal import EVERYTHING, Scope
from outlive.store import Store

app = typer.Typer(help="Make API keys, list them, revoke them.", no_args_is_help=True)
DAY = 86_400.0


@app.command()
def create(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: Annotated[str, typer.Option(help="Whose runs the key is for.")],
    name: Annotated[str, typer.Option(help="What the key is for, in your words.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it allows; everything if not given.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.001, help="Days after which it expires.")] = None,
    as_json: options.Json = False,
) -> None:
    """Make a key and print it: this once, for only its hash is kept."""
    for field, text in (("tenant", tenant), ("name", name)):
        names.check_name(field, text)
        if not text:
            raise errors.InvalidInput(f"{field} is empty.", field=field)
    minted = keys.mint()
    lifetime = None if days is None else days * DAY
    scopes = frozenset(scope or EVERYTHING)

    async def make(store: Store) -> keys.Key:
        step = keys.create(minted, tenant=tenant, name=name, scopes=scopes, lifetime=lifetime)
        return await store.write(step)

    made = with_store(database, make)
    if as_json:
        typer.echo(json.dumps(made.public() | {"key": minted.text}))
        return
    typer.echo(minted.text)
    typer.echo("This is shown once: only its hash is kept.", err=True)


@app.command("list")
def list_(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    as_json: options.Json = False,
) -> None:
    """List keys, those included that hold no more."""

    async def read(store: Store) -> list[keys.Key]:
        return await store.read(keys.every(tenant))

    found = with_store(database, read)
    if as_json:
        typer.echo(json.dumps([key.public() for key in found]))
        return
    if not found:
        typer.echo(f"No keys{options.of_tenant(tenant) if tenant else ''}.", err=True)
        return
    table = Table(Column("key", no_wrap=True), "tenant", "name", "scopes", "made", "used", "ends", box=None)
    for key in found:
        shown = (f"{keys.MARK}_{key.key_id}", key.tenant, key.name, " ".join(sorted(key.scopes)))
        table.add_row(*map(Text, shown), _when(key.created_at), _when(key.last_used_at), _end(key))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's visible part, as the list shows it.")],
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    as_json: options.Json = False,
) -> None:
    """End a key for good: it is refused, and its open streams end, within seconds."""
    key_id = key.removeprefix(f"{keys.MARK}_").partition("_")[0]
    names.check_name("KEY", key_id)

    async def end(store: Store) -> keys.Key:
        return await store.write(keys.revoke(key_id))

    ended = with_store(database, end)
    typer.echo(json.dumps(ended.public()) if as_json else f"revoked: {keys.MARK}_{ended.key_id}")


def _when(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _end(key: keys.Key) -> Text:
    if key.revoked_at is not None:
        return Text(f"revoked {_when(key.revoked_at)}", "red")
    return Text(_when(key.expires_at), "" if key.holds else "red")
