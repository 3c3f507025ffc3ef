"""``outlive runs``: list, show, follow and stop, straight from the database."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive import commands, errors, runtime, settings, signals, subscription
from outlive.agents import Registry
from outlive.cli import options
from outlive.effects.desk import Desk
from outlive.model import Event, EventKind, Run
from outlive.states import State
from outlive.store import Store, reads, watching

T = TypeVar("T")
app = typer.Typer(help="Look at runs, follow them, stop them.", no_args_is_help=True)


def _run_id(text: str) -> str:
    commands.check_name("RUN_ID", text)
    return text


RunId = Annotated[str, typer.Argument(help="The run's id.", callback=_run_id)]
STYLE = {
    State.QUEUED: "yellow",
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.WAITING: "magenta",
    State.FAILED: "red",
    State.STOPPED: "dim",
    State.ABANDONED: "red",
}


@app.command("list")
def list_(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    state: Annotated[State | None, typer.Option(help="Only runs in this state.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    thread: Annotated[str | None, typer.Option(help="Only runs of this thread.")] = None,
    as_json: options.Json = False,
) -> None:
    """List runs, newest first."""

    async def read(store: Store) -> list[Run]:
        step = reads.runs(tenant, limit=limit, agent=agent, state=state, thread=thread)
        return await store.read(step)

    found = with_store(database, read)
    if as_json:
        typer.echo(json.dumps([run.public() for run in found]))
        return
    if not found:
        typer.echo(f"No runs{options.of_tenant(tenant)}.", err=True)
        return
    names = ("thread", "agent", "state", "reason", "epoch", "events", "created")
    table = Table(Column("run", no_wrap=True, min_width=32), *names, box=None)
    for run in found:
        word = Text(run.state.value, STYLE[run.state])
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(run.created_at))
        reason = run.reason.value if run.reason else ""
        cells = (reason, str(run.epoch), str(run.last_seq), when)
        # As text: in a plain string a name with brackets would be taken for markup.
        table.add_row(run.run_id, Text(_short(run)), Text(run.agent), word, *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command()
def show(
    run_id: RunId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    detail: Annotated[bool, typer.Option(help="With the private error text.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show the record of a run."""

    async def read(store: Store) -> tuple[Run, dict[str, Any]]:
        run = await store.read(reads.run(run_id, tenant))
        summary = await Desk(store).summary(run)
        watched = (await store.read(watching.evidence(run_id))).public(run)
        return run, ({} if summary is None else {"effects": summary}) | {"watched": watched}

    run, more = with_store(database, read)
    shown = run.public() | more
    if as_json:
        private = {"error_detail": run.error_detail} if detail else {}
        typer.echo(json.dumps(shown | private))
        return
    table = Table(show_header=False)
    for name, value in shown.items():
        table.add_row(name, Text(value if isinstance(value, str) else _cell(name, value)))
    Console().print(table)
    if detail and run.error_detail:
        typer.echo(run.error_detail)  # as it is: a table would wrap it and cut its paths


@app.command()
def follow(
    run_id: RunId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    after: Annotated[str, typer.Option(help="The cursor to start after.")] = "0",
    as_json: options.Json = False,
) -> None:
    """Print a run's events until it ends, whoever drives it.  Following does not count as watching.

    A database that goes away meanwhile is waited for; Ctrl-C ends the following, not the run.
    """

    async def read(store: Store) -> None:
        run = await store.read(reads.run(run_id, tenant))
        cursor = subscription.parse_cursor(after, run_id)
        subscription.check_cursor(run, cursor)
        while True:
            async with aclosing(subscription.follow(store, run_id, after=cursor)) as events:
                try:
                    async for event in events:
                        typer.echo(_line(event, as_json))
                        cursor = event.seq
                except errors.StoreUnavailable as failure:
                    typer.echo(f"outlive: {failure.message} Waiting for it.", err=True)
                else:
                    return

    with_store(database, read)


@app.command()
def stop(
    run_id: RunId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Ask a run to stop; says whether it has stopped, was told, or had ended already."""

    async def ask(store: Store) -> dict[str, Any]:
        told = commands.Commands(store, Registry(()), starter=None, happenings=signals.Signals())
        answer = await told.stop(run_id, tenant=tenant)
        return {"run_id": run_id, "outcome": answer.outcome.value, "state": answer.run.state.value}

    answer = with_store(database, ask)
    typer.echo(json.dumps(answer) if as_json else f"{answer['outcome']}: {run_id} is {answer['state']}")


def _cell(name: str, value: Any) -> str:
    """A time as people read one, UTC; anything else as JSON."""
    is_time = (name.endswith("_at") or name == "not_before") and isinstance(value, int | float)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value)) if is_time else json.dumps(value)


def _short(run: Run) -> str:
    """A thread that exists for one run only says nothing."""
    return "" if run.thread == run.run_id else run.thread


def _line(event: Event, as_json: bool) -> str:
    if as_json:
        return json.dumps(
            {
                "id": event.cursor,
                "epoch": event.epoch,
                "kind": event.kind.value,
                "mode": event.mode,
                "data": event.data,
            }
        )
    mode = f" {event.mode}" if event.mode else ""
    mark = {EventKind.ATTEMPT: "»", EventKind.CHUNK: " ", EventKind.NOTE: "!", EventKind.END: "■"}
    return f"{event.seq:>6} {mark[event.kind]} {event.kind.value}{mode} {event.payload}"


def with_store(database: str, use: Callable[[Store], Awaitable[T]]) -> T:
    """Use the store of a database that is there; raises ``Misconfigured`` where none is."""

    async def opened() -> T:
        async with _open(database) as store:
            return await use(store)

    return asyncio.run(opened())


@asynccontextmanager
async def _open(database: str) -> AsyncIterator[Store]:
    if database.startswith("sqlite:") and not runtime.exists(database):
        raise errors.Misconfigured(
            f"There is no database at {settings.masked(database)}.",
            hint="Check --database, OUTLIVE_DATABASE and outlive.toml, or start a server that makes one.",
        )
    store = runtime.open_store(database, None, signals.Signals())
    await store.open()
    try:
        yield store
    finally:
        await store.close()
