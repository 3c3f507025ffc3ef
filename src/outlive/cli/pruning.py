"""``outlive prune``: take away the events of runs that ended long ago, once, now."""

from __future__ import annotations

import json

import typer

from outlive import errors, retention, settings, signals
from outlive.cli import options, runs
from outlive.store import Store


@options.settable(("database", "retention"))
def prune(loaded: settings.Loaded, *, as_json: options.Json = False) -> None:
    """Take away the events of runs that ended more than ``retention`` seconds ago.

    Their records, their end events and their last states stay.  Nobody waits: it is done in small pieces.
    """
    seconds = loaded.settings.retention
    if seconds is None:
        raise errors.Misconfigured(
            "Nothing says for how long events are kept.", hint="Give --retention, in seconds."
        )

    async def pruned(store: Store) -> tuple[int, int]:
        return await retention.Retention(store, seconds, happenings=signals.Signals()).prune_once()

    count, events = runs.with_store(loaded.settings.database, pruned)
    said = f"{events} events of {count} runs are gone."
    typer.echo(json.dumps({"runs": count, "events": events}) if as_json else said)
