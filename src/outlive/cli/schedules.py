"""``outlive schedules``: make, look at, pause and delete them, straight from the database."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlive import errors, names, schedules, signals
from outlive.cli import options, runs
from outlive.store import Store
from outlive.store.schedules import Missed, Occurrence, Schedule

T = TypeVar("T")
app = typer.Typer(help="Make runs at given times; look at them, pause and delete them.", no_args_is_help=True)


def _id(text: str) -> str:
    names.check_name("SCHEDULE_ID", text)
    return text


Id = Annotated[str, typer.Argument(metavar="SCHEDULE_ID", help="The schedule's id.", callback=_id)]


@app.command("list")
def list_(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List schedules, newest first."""
    found = _at_desk(database, lambda desk: desk.newest(tenant=tenant, limit=limit))
    if as_json:
        typer.echo(json.dumps([each.public() for each in found]))
        return
    table = Table("schedule", "name", "cron", "zone", "agent", "state", "next", box=None)
    for each in found:
        words = (each.name, each.cron, each.timezone, each.agent, each.state.value)
        table.add_row(each.schedule_id, *map(Text, words), _time(each, each.next_at))
    _print(table)


@app.command()
def create(
    cron: Annotated[str, typer.Argument(help="As in '30 2 * * mon-fri'; with six fields, seconds first.")],
    agent: Annotated[str, typer.Argument(help="Whose runs are made.")],
    given: Annotated[str, typer.Argument(metavar="INPUT", help="The runs' input, as JSON.")] = "null",
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    timezone: Annotated[str, typer.Option("--timezone", "-z", help="As in Europe/Berlin.")] = "UTC",
    thread: Annotated[str | None, typer.Option(help="Their thread; without it each has its own.")] = None,
    name: Annotated[str, typer.Option(help="What people call it.")] = "",
    missed: Annotated[Missed, typer.Option(help="What becomes of slots noticed late.")] = Missed.SKIP,
    grace: Annotated[float, typer.Option(help="From how many seconds on that is late.")] = schedules.GRACE,
    as_json: options.Json = False,
) -> None:
    """Make a schedule. Its agent is not looked for: it may live in another process."""
    try:
        value = json.loads(given)
    except ValueError as failure:
        raise errors.InvalidInput(f"INPUT is not JSON: {failure}.", field="INPUT") from None
    made = _at_desk(
        database,
        lambda desk: desk.create(
            cron,
            agent,
            value,
            timezone=timezone,
            thread=thread,
            name=name,
            missed=missed,
            grace=grace,
            tenant=tenant,
        ),
    )
    said = f"created: {made.schedule_id}, first at {_time(made, made.next_at)}"
    typer.echo(json.dumps(made.public()) if as_json else said)


@app.command()
def show(
    schedule_id: Id,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many slots, newest first.")] = 10,
    as_json: options.Json = False,
) -> None:
    """Show a schedule, and what became of its newest slots."""

    async def read(desk: schedules.Desk) -> tuple[Schedule, list[Occurrence]]:
        one = await desk.show(schedule_id, tenant=tenant)
        return one, await desk.occurrences(schedule_id, tenant=tenant, limit=limit)

    found, slots = _at_desk(database, read)
    if as_json:
        typer.echo(json.dumps(found.public() | {"occurrences": [each.public() for each in slots]}))
        return
    table = Table(show_header=False)
    for field, value in found.public().items():
        shown = _time(found, value) if field.endswith("_at") else value
        table.add_row(field, Text(shown if isinstance(shown, str) else json.dumps(shown)))
    _print(table)
    table = Table("slot", "slots", "state", "reason", "run", box=None)
    for each in slots:
        words = (str(each.slots), each.state.value, each.reason or "", each.public()["run_id"] or "")
        table.add_row(_time(found, each.slot), *words)
    _print(table)


@app.command()
def pause(
    schedule_id: Id,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Skip the slots that come from now on."""
    _say(_at_desk(database, lambda desk: desk.pause(schedule_id, tenant=tenant)), as_json=as_json)


@app.command()
def resume(
    schedule_id: Id,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Let the slots that come from now on become runs again."""
    _say(_at_desk(database, lambda desk: desk.resume(schedule_id, tenant=tenant)), as_json=as_json)


@app.command()
def delete(
    schedule_id: Id,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Take a schedule away, with the record of its slots. Its runs stay."""
    _at_desk(database, lambda desk: desk.delete(schedule_id, tenant=tenant))
    said = {"schedule_id": schedule_id, "deleted": True}
    typer.echo(json.dumps(said) if as_json else f"deleted: {schedule_id}")


@app.command("next")
def next_(
    schedule_id: Id,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 5,
    as_json: options.Json = False,
) -> None:
    """Say when the next slots are, in the schedule's time zone."""
    found = _at_desk(database, lambda desk: desk.show(schedule_id, tenant=tenant))
    slots = schedules.following(found, count)
    lines = [_time(found, slot) for slot in slots]
    typer.echo(json.dumps({"schedule_id": schedule_id, "next": slots}) if as_json else "\n".join(lines))


def _at_desk(database: str, use: Callable[[schedules.Desk], Awaitable[T]]) -> T:
    async def seated(store: Store) -> T:
        return await use(schedules.Desk(store, happenings=signals.Signals()))

    return runs.with_store(database, seated)


def _say(found: Schedule, *, as_json: bool) -> None:
    said = f"{found.state.value}: {found.schedule_id}, next at {_time(found, found.next_at)}"
    typer.echo(json.dumps(found.public()) if as_json else said)


def _time(found: Schedule, moment: Any) -> str:
    """A time as a person reads it where the schedule lives."""
    if moment is None:
        return "never"
    return datetime.fromtimestamp(moment, ZoneInfo(found.timezone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table)
