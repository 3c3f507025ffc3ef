"""``outlive settings``: every setting, its value and where that came from."""

from __future__ import annotations

import dataclasses
import json
import sys

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive import settings
from outlive.cli import options


@options.settable(options.FLAGS)
def show(loaded: settings.Loaded, *, as_json: options.Json = False) -> None:
    """Show every setting, its value and where that came from.

    Takes the same flags as the other commands, so that it shows what they would do.  Secrets are masked.
    """
    shown = loaded.shown()
    for name in loaded.ignored:
        typer.echo(f"outlive: {name} looks like a setting and is none; it is ignored.", err=True)
    if as_json:
        typed = loaded.settings.model_dump(mode="json")
        plain = [dataclasses.asdict(one) for one in shown]
        typer.echo(
            json.dumps([one if _is_masked(one) else one | {"value": typed[one["name"]]} for one in plain])
        )
        return
    table = Table(Column("setting", no_wrap=True), "value", Column("from", no_wrap=True), box=None)
    for one in shown:
        style = "dim" if one.origin == "default" else "bold"
        table.add_row(one.name, Text(one.value), Text(one.origin, style))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _is_masked(shown: dict[str, str]) -> bool:
    return settings.MASK in shown["value"]
