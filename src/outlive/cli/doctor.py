"""``outlive doctor``: what is wrong here, or will be, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outlive import settings
from outlive.cli import checks, options, serving
from outlive.cli.checks import database, host
from outlive.cli.checks import serving as served
from outlive.probe.plan import Server

STYLE = {
    checks.Level.OK: "green",
    checks.Level.WARN: "yellow",
    checks.Level.FAIL: "bold red",
    checks.Level.SKIP: "dim",
}


@options.settable(options.FLAGS)
def look(
    loaded: settings.Loaded,
    *,
    url: Annotated[
        str | None,
        typer.Option(help="Where clients reach a running service: is there a proxy that buffers?"),
    ] = None,
    server: Annotated[
        list[Server] | None, typer.Option(help="ASGI servers to try; uvicorn, which outlive serve uses.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Look at the settings, the database, this machine, the server and the proxies in front of it.

    Takes the same flags as the other commands.  Changes nothing.  Exit codes: 0 nothing fails, 1 something
    does.
    """
    found = []
    for finding in _findings(loaded, url, server or [Server.UVICORN]):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in found]))
    raise typer.Exit(1 if any(finding.level is checks.Level.FAIL for finding in found) else 0)


def _findings(loaded: settings.Loaded, url: str | None, which: list[Server]) -> Iterator[checks.Finding]:
    yield from host.look(loaded)
    yield serving.who_may_come(loaded.settings)
    yield from database.look(loaded.settings)
    for server in which:
        yield served.server(server)
    yield served.proxy(url)


def _print(finding: checks.Finding) -> None:
    line = Text.assemble(
        (f"{finding.level.value:<5}", STYLE[finding.level]), (f"{finding.check:<13} ", "bold"), finding.found
    )
    if finding.do:
        line.append(f"  {finding.do}", "italic")
    Console(soft_wrap=True).print(line)
