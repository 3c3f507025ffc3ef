"""``outlive sweep``: find threads that were left part-way and that nobody owns; see to them if told so.

Without ``--apply`` it only looks, and changes nothing anywhere.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlive import errors, runtime, settings
from outlive.cli import loading, options
from outlive.torn import Apply, Done, Report, Torn

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


@options.settable(("database",))
def sweep(
    loaded: settings.Loaded,
    target: Annotated[str, typer.Argument(help="module:attribute of the graph, or of an agent of one.")],
    *,
    checkpoints: Annotated[
        str | None,
        typer.Option(help="A checkpoint database: a SQLite file or postgresql://… Default: --database."),
    ] = None,
    older_than: Annotated[
        str, typer.Option(help="Only threads on which nothing moved for so long: 90s, 10m, 2h, 1d.")
    ] = "10m",
    apply: Annotated[Apply | None, typer.Option(help="Do it; else it is only reported.")] = None,
    thread: Annotated[
        list[str] | None, typer.Option(help="Only this thread; several times for several.")
    ] = None,
    effects: Annotated[
        list[str] | None, typer.Option(help="A module that declares effects, if the graph's does not.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="EFFECT=NODE, where a node is not called like its effect.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Find torn threads that nobody owns, with what their providers say was executed.

    Left out are threads that are finished, that wait for an answer or at a breakpoint, that have a live run,
    and that are too young. With --apply each is looked at again, under a claim, before anything is done.
    """
    for module in effects or ():
        loading.load_module(module)
    asked = _Asked(
        target=target,
        database=loaded.settings.database,
        checkpoints=checkpoints or loaded.settings.database,
        seconds=_seconds(older_than),
        apply=apply,
        threads=tuple(thread or ()),
        nodes=dict(map(_pair, node or ())),
    )
    report, done = asyncio.run(asked.run())
    if as_json:
        typer.echo(json.dumps(_public(report, done)))
    else:
        _show(report, done, apply)
    if any(not one.done for one in done):
        raise typer.Exit(1)


class _Asked:
    """One command, with its options read."""

    def __init__(self, **options_: Any) -> None:
        self.target: str = options_["target"]
        self.database: str = options_["database"]
        self.checkpoints: str = options_["checkpoints"]
        self.seconds: float = options_["seconds"]
        self.apply: Apply | None = options_["apply"]
        self.threads: tuple[str, ...] = options_["threads"]
        self.nodes: dict[str, str] = options_["nodes"]

    async def run(self) -> tuple[Report, list[Done]]:
        """Look, and do what was asked for."""
        foreign = _import("foreign")
        if await foreign.is_ours(self.checkpoints):
            return await self._own(foreign.as_url(self.checkpoints))
        return await self._foreign()

    async def _own(self, database: str) -> tuple[Report, list[Done]]:
        own = _import("own")
        agents = loading.load(self.target, None if loading.is_agents(self.target) else "job")
        slots = 1 if self.apply else 0
        async with runtime.Outlive(database, agents, slots=slots) as service:
            report = await own.look(service, older_than=self.seconds, threads=self.threads)
            done = [await own.see_to(service, one, self.apply) for one in report.torn] if self.apply else []
        return report, done

    async def _foreign(self) -> tuple[Report, list[Done]]:
        graph = loading.load_graph(self.target)
        report = await _import("looking").look(
            self.checkpoints, graph, older_than=self.seconds, nodes=self.nodes, threads=self.threads
        )
        return report, (await self._seen_to(graph, report) if self.apply else [])

    async def _seen_to(self, graph: Any, report: Report) -> list[Done]:
        agent = _import("applying").Sweep(self.checkpoints, graph, self.nodes)
        async with runtime.Outlive(self.database, [agent], slots=1) as service:
            return [await _see_to(service, agent, one, self.apply) for one in report.torn]


async def _see_to(service: runtime.Outlive, agent: Any, one: Torn, wanted: Apply | None) -> Done:
    assert wanted is not None
    if why := one.refusal(wanted):
        return Done(thread=one.thread, done=False, said=why)
    order = {"thread": one.thread, "head": one.head, "apply": wanted.value}
    try:
        submitted = await service.submit(agent.name, order, thread=agent.thread(one.thread))
    except errors.ThreadBusy as busy:
        return Done(thread=one.thread, done=False, said="somebody else is at it", run_id=busy.run_id)
    run = await service.result(submitted.run.run_id)
    if run.output is None:
        said = f"{run.state.value}: outlive runs show {run.run_id} --detail"
        return Done(thread=one.thread, done=False, said=said, run_id=run.run_id)
    return Done(**json.loads(run.output) | {"run_id": run.run_id})


def _import(name: str) -> Any:
    try:
        return importlib.import_module(f"outlive.torn.{name}")
    except ImportError as missing:
        raise errors.Misconfigured(
            "LangGraph, or its saver for SQLite, is not installed.",
            hint="Run: pip install 'outlive[langgraph]'",
        ) from missing


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if found is None:
        raise errors.InvalidInput(f"--older-than is {text!r}; write 90s, 10m, 2h or 1d.", field="older_than")
    return float(found[1]) * _UNITS[found[2]]


def _pair(text: str) -> tuple[str, str]:
    name, equals, node = text.partition("=")
    if not (name and equals and node):
        raise errors.InvalidInput(f"--node is {text!r}; write EFFECT=NODE.", field="node")
    return name, node


def _public(report: Report, done: list[Done]) -> dict[str, Any]:
    return {
        "torn": [one.public() for one in report.torn],
        "left_out": report.left_out,
        "unreadable": report.unreadable,
        "done": [one.public() for one in done],
    }


def _show(report: Report, done: list[Done], apply: Apply | None) -> None:
    console = Console(width=None if sys.stdout.isatty() else 180)
    if report.torn:
        table = Table("thread", "for", "next", "effects", box=None)
        for one in report.torn:
            said = "\n".join(f"{seen.name} {seen.key}: {seen.said}" for seen in one.seen)
            table.add_row(Text(one.thread), f"{one.age:.0f} s", Text(", ".join(one.next)), Text(said))
        console.print(table)
    words = [f"{count} {why}" for why, count in sorted(report.left_out.items())]
    typer.echo(f"{len(report.torn)} torn" + (f"; left out: {', '.join(words)}" if words else ""))
    for name, why in report.unreadable.items():
        typer.echo(f"cannot be read: {name}: {why}")
    for each in done:
        typer.echo(f"{'done' if each.done else 'left'}: {each.thread}: {each.said}")
    if report.torn and apply is None:
        typer.echo("Nothing was done. See to them with --apply resume, rollback or compensate.")
