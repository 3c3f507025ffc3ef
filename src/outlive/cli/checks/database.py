"""The database: can it be reached, has it the schema, do hints arrive, do the clocks agree."""

from __future__ import annotations

import asyncio
import time

from outlive import errors, keys, runtime, settings, signals
from outlive.cli import checks, told
from outlive.store import Store, migrate, outbox_moves, reads

CLOCKS_APART = 2.0
"""Seconds between two clocks that are worth a word: tokens and keys expire by this machine's."""

WAITS_LONG = 3600.0
"""Seconds for which a notification may wait without a word about it."""


def look(chosen: settings.Settings) -> list[checks.Finding]:
    """Look at the database that the settings name.  Changes nothing in it; blocks."""
    if chosen.database.startswith("sqlite:") and not runtime.exists(chosen.database):
        return [checks.skip("database", "There is no SQLite file yet; the first start makes it.")]
    return asyncio.run(_look(chosen))


async def _look(chosen: settings.Settings) -> list[checks.Finding]:
    heard_of = signals.Signals(listeners=())
    with heard_of.recording() as heard:
        began = time.monotonic()
        try:
            store = runtime.open_store(chosen.database, chosen.direct_database, heard_of)
            await store.open()
        except errors.OutliveError as failure:
            return [_refused(failure)]
        took = (time.monotonic() - began) * 1000
        try:
            return [
                checks.ok("database", f"It answers; opening it took {took:.0f} ms."),
                await _migrations(store),
                _hints(chosen, heard),
                await _clock(store),
                *await _keys(chosen, store),
                *await _webhooks(chosen, store),
            ]
        finally:
            await store.close()


def _refused(failure: errors.OutliveError) -> checks.Finding:
    schema = isinstance(failure, errors.SchemaMismatch)
    return checks.fail("migrations" if schema else "database", failure.message, failure.hint)


async def _migrations(store: Store) -> checks.Finding:
    done = await store.read(reads.migrations())
    waiting = [migration.name for migration in migrate.known() if migration.name not in done]
    if waiting:
        found = f"{', '.join(waiting)} may be applied once no older version serves."
        return checks.warn("migrations", found, "Run: outlive migrate")
    return checks.ok("migrations", f"All {len(done)} are applied.")


def _hints(chosen: settings.Settings, heard: list[signals.Happening]) -> checks.Finding:
    if chosen.database.startswith("sqlite:"):
        return checks.ok("LISTEN", "Not needed: processes on one file see each other's commits.")
    why = next((one.why for one in heard if isinstance(one, signals.WakeupsDegraded)), None)
    if why is not None:
        do = "Set direct_database to an address that does not go through a transaction pooler."
        return checks.warn("LISTEN", f"{why}: processes poll for one another's news.", do)
    return checks.ok("LISTEN", "A NOTIFY arrives.")


async def _clock(store: Store) -> checks.Finding:
    before = time.time()
    theirs = await store.read(reads.clock())
    apart = theirs - (before + time.time()) / 2
    if abs(apart) > CLOCKS_APART:
        found = f"The database's is {apart:+.1f} s from this machine's."
        do = "Synchronise both. Leases do not mind, but tokens and keys expire by this machine's clock."
        return checks.warn("clock", found, do)
    return checks.ok("clock", f"The database's is {apart:+.2f} s from this machine's.")


async def _webhooks(chosen: settings.Settings, store: Store) -> list[checks.Finding]:
    try:
        hooks = told.webhooks(chosen)
    except errors.Misconfigured as failure:
        return [checks.fail("webhooks", failure.message, failure.hint)]
    age = await store.read(outbox_moves.oldest())
    if age is None:
        return [checks.ok("webhooks", "Nothing waits to be sent.")] if hooks else []
    found = f"The oldest has been waiting to be sent for {age:.0f} s."
    if hooks is None:
        return [checks.warn("webhooks", found, "Set webhook_secrets, also where runs are only driven.")]
    if age > WAITS_LONG:
        return [checks.warn("webhooks", found, "Look at: outlive webhooks list --state pending")]
    return [checks.ok("webhooks", found)]


async def _keys(chosen: settings.Settings, store: Store) -> list[checks.Finding]:
    if chosen.auth != "keys":
        return []
    held = sum(key.holds for key in await store.read(keys.every(None)))
    if not held:
        return [checks.warn("keys", "No key holds: nobody can get in.", "Run: outlive keys create")]
    return [checks.ok("keys", f"{held} hold.")]
