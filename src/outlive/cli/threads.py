"""``outlive threads``: list, show, copy, delete and draw them, straight from the database."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive import artifacts, commands, deletion, seams, settings, signals, tree
from outlive.cli import options, runs
from outlive.effects.desk import Desk
from outlive.model import Run, Thread
from outlive.store import Store, checkpoints, reads

app = typer.Typer(help="Look at threads and their checkpoints, copy and delete them.", no_args_is_help=True)
SHOWN = ("thread", "created_at", "last_seq", "position", "left_by", "copied_from")


def _name(text: str) -> str:
    commands.check_name("THREAD", text)
    return text


Name = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's name.", callback=_name)]


@app.command("list")
def list_(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List threads, newest first."""

    async def read(store: Store) -> list[Thread]:
        return await store.read(reads.threads(tenant, limit=limit))

    found = runs.with_store(database, read)
    if as_json:
        typer.echo(json.dumps([_shown(thread) for thread in found]))
        return
    table = Table("thread", "position", "left by", "events", "created", box=None)
    for thread in found:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(thread.created_at))
        position = thread.position.value if thread.position else ""
        table.add_row(Text(thread.thread), position, thread.left_by or "", str(thread.last_seq), when)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command()
def show(
    name: Name,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Show a thread: where it stands, its newest runs, and its effects."""

    async def read(store: Store) -> dict[str, Any]:
        thread = await store.read(reads.thread(name, tenant))
        recent = await store.read(reads.runs(tenant, limit=50, thread=name))
        effects = await Desk(store).of_thread(thread.thread_id)
        return _shown(thread) | {
            "live": [run.run_id for run in recent if not run.state.terminal],
            "runs": [_of_run(run) for run in recent],
            "effects": [effect.public() for effect in effects],
        }

    found = runs.with_store(database, read)
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(show_header=False)
    for field, value in found.items():
        table.add_row(field, Text(value if isinstance(value, str) else json.dumps(value)))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command()
def history(
    name: Name,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List a thread's checkpoints, its subgraphs' too, newest first."""
    nodes = [node for graph in _tree(database, tenant, name, limit).graphs.items() for node in _named(*graph)]
    nodes.sort(key=lambda node: str(node["checkpoint_id"]), reverse=True)
    if as_json:
        typer.echo(json.dumps(nodes))
        return
    table = Table(Column("checkpoint", no_wrap=True), "step", "source", "run", "in", "", box=None)
    for node in nodes:
        marks = " ".join((*node["marks"], "newest") if node["head"] else node["marks"])
        words = (str(node["step"]), str(node["source"]), str(node["run_id"] or ""))
        table.add_row(node["checkpoint_id"], *words, Text(node["namespace"]), marks)
    Console(width=None if sys.stdout.isatty() else 180).print(table)


@app.command("tree")
def tree_(
    name: Name,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many checkpoints.")] = 1000,
    as_json: options.Json = False,
) -> None:
    """Draw a thread's checkpoints with their forks, and the runs that wrote them."""
    found = _tree(database, tenant, name, limit)
    typer.echo(json.dumps(found.public()) if as_json else "\n".join(found.lines()))


@app.command()
def copy(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new thread.", callback=_name)],
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Copy a thread's checkpoints to a new thread. Its runs and effects are not copied."""

    async def copied(store: Store) -> Thread:
        source = await store.read(reads.thread(name, tenant))
        return await store.write(checkpoints.copy(source, tenant, seams.new_id(), to))

    made = runs.with_store(database, copied)
    typer.echo(json.dumps(_shown(made)) if as_json else f"copied: {name} to {made.thread}")


@app.command()
@options.settable(("database", "artifacts"))
def delete(
    loaded: settings.Loaded,
    name: Name,
    *,
    tenant: options.Tenant = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also while the outcome of an effect is open.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Delete a thread: its runs, events, checkpoints and files. Its effects stay in the ledger.

    A run that is live is ended by it, and nothing that its executor sends later is taken.
    """
    kept = loaded.settings.artifacts

    async def deleted(store: Store) -> deletion.Deleted:
        found = await store.read(reads.thread(name, tenant))
        files = artifacts.Root(Path(kept)) if kept else None
        work = deletion.Deletion(store, happenings=signals.Signals(), files=files)
        return await work.delete(found.thread, found.thread_id, force=force)

    done = runs.with_store(loaded.settings.database, deleted)
    said = f"deleted: {name}, {len(done.runs)} runs; {done.effects} effects stay in the ledger"
    typer.echo(json.dumps(done.public()) if as_json else said)


def _tree(database: str, tenant: str, name: str, limit: int) -> tree.Tree:
    async def read(store: Store) -> tree.Tree:
        thread = await store.read(reads.thread(name, tenant))
        recent = await store.read(reads.runs(tenant, limit=1000, thread=name))
        return tree.grown(thread, recent, await store.read(checkpoints.marks(thread.thread_id, limit)))

    return runs.with_store(database, read)


def _named(namespace: str, nodes: Mapping[str, tree.Node]) -> list[dict[str, Any]]:
    return [node.public() | {"namespace": namespace} for node in nodes.values()]


def _shown(thread: Thread) -> dict[str, Any]:
    return {field: getattr(thread, field) for field in SHOWN}


def _of_run(run: Run) -> dict[str, Any]:
    return {"run_id": run.run_id, "agent": run.agent, "state": run.state.value, "position": run.position}
