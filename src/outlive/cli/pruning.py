"""``outlive prune``: take away the events of runs and the slots of schedules of long ago, once, now."""

from __future__ import annotations

import json

import typer

from outlive import errors, retention, settings, signals
from outlive.cli import options, runs
from outlive.store import Store


@options.settable(("database", "retention"))
def prune(loaded: settings.Loaded, *, as_json: options.Json = False) -> None:
    """Take away events of runs, and slots of schedules, that ended more than ``retention`` seconds ago.

    Their records, their end events and their last states stay.  Nobody waits: it is done in small pieces.
    """
    seconds = loaded.settings.retention
    if seconds is None:
        raise errors.Misconfigured(
            "Nothing says for how long events are kept.", hint="Give --retention, in seconds."
        )

    async def pruned(store: Store) -> tuple[int, int, int]:
        keeping = retention.Retention(store, seconds, happenings=signals.Signals())
        return (*await keeping.prune_once(), await keeping.prune_occurrences())

    count, events, slots = runs.with_store(loaded.settings.database, pruned)
    told = {"runs": count, "events": events, "slots": slots}
    said = f"{events} events of {count} runs are gone, and {slots} slots of schedules."
    typer.echo(json.dumps(told) if as_json else said)
