"""``outlive import``: have the threads of an existing LangGraph checkpoint database here."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Annotated, Any

import typer

from outlive import errors, runtime, settings
from outlive.cli import loading, options


@options.settable(("database",))
def bring(
    loaded: settings.Loaded,
    target: Annotated[str, typer.Argument(help="module:attribute of the graph, or of its agent.")],
    *,
    checkpoints: Annotated[
        str, typer.Option(help="The checkpoint database: a SQLite file or postgresql://user@host/name.")
    ],
    tenant: options.Tenant = "",
    thread: Annotated[
        list[str] | None, typer.Option(help="Only this thread; several times for several.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Bring the threads of a LangGraph checkpoint database here, with every checkpoint they have.

    Nothing is changed there. A thread that is here already stays as it is, so it can be repeated. Let the
    service that writes there be stopped, or bring again what it has begun since under another name.
    """
    try:
        importing: Any = importlib.import_module("outlive.torn.importing")
    except ImportError as missing:
        raise errors.Misconfigured(
            "LangGraph, or its saver for SQLite, is not installed.",
            hint="Run: pip install 'outlive[langgraph]'",
        ) from missing
    agents = loading.load(target, None if loading.is_agents(target) else "job")
    if len(agents) != 1 or not hasattr(agents[0], "writing"):
        raise errors.Misconfigured(f"{target} is no graph.", hint="Name one compiled graph, or its agent.")

    async def brought() -> list[Any]:
        async with runtime.Outlive(loaded.settings.database, agents, slots=0) as service:
            found: list[Any] = await importing.bring(
                service, checkpoints, agents[0], tenant=tenant, threads=tuple(thread or ())
            )
            return found

    done = asyncio.run(brought())
    if as_json:
        typer.echo(json.dumps([one.public() for one in done]))
        return
    for one in done:
        typer.echo(f"{one.thread}: {one.said}" + (f", {one.position}" if one.position else ""))
    typer.echo(f"{sum(one.said == 'brought' for one in done)} of {len(done)} threads brought")
