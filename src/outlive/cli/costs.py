"""``outlive policy-cost``: what staying, leaving and stopping cost, from the record."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive.cli import options, runs
from outlive.store import Store, standing_reads
from outlive.store.standing_reads import Cost

_NUMBERS = ("runs", "after the last viewer", "s", "chunks", "in all: s", "chunks ")


def policy_cost(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    hours: Annotated[
        float, typer.Option(min=0.001, max=24 * 366, help="Of runs that ended so long ago.")
    ] = 24.0,
    as_json: options.Json = False,
) -> None:
    """Say what was worked after the last viewer had left, and what was thrown away by stops, per agent.

    A run that was stopped for `disconnect` is what the policy cancel threw away; what others worked after
    their last viewer is what the policy continue cost. All tenants together. Events that retention took
    away are not counted any more; seconds are.
    """

    async def read(store: Store) -> list[Cost]:
        return await store.read(standing_reads.costs(hours * 3600))

    found = runs.with_store(database, read)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(cost) for cost in found]))
        return
    Console(width=None if sys.stdout.isatty() else 160).print(_table(found))


def _table(costs: Sequence[Cost]) -> Table:
    numbers = [Column(name.strip(), justify="right") for name in _NUMBERS]
    table = Table("agent", "ended", *numbers, box=None)
    for cost in costs:
        table.add_row(
            Text(cost.agent),
            f"{cost.state} {cost.reason}".strip(),
            str(cost.runs),
            str(cost.unwatched_runs),
            f"{cost.unwatched_seconds:.1f}",
            str(cost.unwatched_chunks),
            f"{cost.spent_seconds:.1f}",
            str(cost.spent_chunks),
        )
    return table
