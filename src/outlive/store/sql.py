"""Loads ``queries.sql``: named blocks, one spelling for both dialects, a handful of dialect words.

A block is ``-- name: word`` or ``-- name: word [sqlite|postgresql]`` for an override.  ``:name`` is a
parameter.  The words: ``{now}`` the database's clock in milliseconds, ``{in:list}`` membership in a list
parameter, ``{skip_locked}`` and ``{lock}`` row locks, ``{fence}`` what every holder's write must prove,
``{keep}`` a lock that lets the holder's own writes pass but nobody take its run, ``{take}`` its opposite,
``{contains:column:object}`` whether a column's JSON has the members of an object parameter,
``{holds:column:object}`` whether its lists hold all items of the parameter's,
``{effect}`` an effect's columns and whether its holder stands, ``{started}`` those of one just started,
``{notification}`` those of a row of the outbox, ``{schedule}`` and ``{occurrence}`` those of their tables.
A SQLite block may hold several statements: each must return a row, or the block ends without one; their
rows are merged.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from outlive.model import Claim, NewEvent


class Dialect(StrEnum):
    """The two databases."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One named query, rendered for a dialect: one or more statements."""

    name: str
    statements: tuple[str, ...]


_FENCE = """run_id = :run_id AND epoch = :epoch AND claim_token = :claim_token
        AND state = 'running' AND lease_until > {now}"""
_STARTED = """effects.effect_id, effects.tenant, effects.name, effects.key, effects.generation,
    effects.provider_key, effects.fingerprint, effects.kind, effects.resource, effects.state, effects.due,
    effects.compensates, effects.run_id, effects.origin, effects.thread_id, effects.epoch,
    effects.claim_token, effects.key_ttl_ms, effects.calls, effects.inputs, effects.result, effects.error,
    effects.evidence, effects.settled_by, effects.created_at, effects.first_started_at, effects.ended_at,
    {now} AS now_ms, 1 AS held, NULL AS live_policy"""
_EFFECT = _STARTED.replace(
    "1 AS held",
    """CASE WHEN r.state = 'running' AND r.epoch = effects.epoch AND r.claim_token = effects.claim_token
        THEN 1 ELSE 0 END AS held""",
).replace(
    "NULL AS live_policy", "CASE WHEN r.state IN ('queued', 'running') THEN r.policy END AS live_policy"
)
_NOTIFICATION = ", ".join(
    f"outbox.{column}"
    for column in (
        *("notification_id", "tenant", "run_id", "kind", "receiver", "url", "audience", "state", "body"),
        *("attempts", "next_at", "claim_token", "status", "error", "created_at", "attempted_at", "ended_at"),
        "traceparent",
    )
)
_SCHEDULE = """schedules.schedule_id, schedules.tenant, schedules.name, schedules.cron, schedules.timezone,
    schedules.agent, schedules.thread, schedules.input, schedules.metadata, schedules.policy,
    schedules.webhook, schedules.principal, schedules.missed, schedules.grace_ms, schedules.ends_at,
    schedules.state, schedules.seen_until, schedules.next_at, schedules.version, schedules.passes_after_ms,
    schedules.created_at, schedules.updated_at, {now} AS now_ms"""
_OCCURRENCE = """occurrences.schedule_id, occurrences.slot, occurrences.run_id, occurrences.slots,
    occurrences.tenant, occurrences.agent, occurrences.thread, occurrences.input, occurrences.metadata,
    occurrences.policy, occurrences.webhook, occurrences.principal, occurrences.state, occurrences.reason,
    occurrences.error, occurrences.created_at, occurrences.ended_at, occurrences.passes_after_ms"""
_WORDS: dict[Dialect, dict[str, str]] = {
    Dialect.SQLITE: {
        "now": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
        "skip_locked": "",
        "lock": "",
        "keep": "",
        "take": "",
    },
    Dialect.POSTGRESQL: {
        "now": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        "skip_locked": "FOR NO KEY UPDATE SKIP LOCKED",
        "lock": "FOR NO KEY UPDATE",
        "keep": "FOR KEY SHARE",
        "take": "FOR UPDATE",
    },
}
_MEMBER = {
    Dialect.SQLITE: r"IN (SELECT value FROM json_each(:\1))",
    Dialect.POSTGRESQL: r"= ANY (ARRAY(SELECT json_array_elements_text(CAST(:\1 AS json))))",
}
_CONTAINS = {
    # Members that are objects themselves are compared as texts here, which are written in one canonical form.
    Dialect.SQLITE: r"""NOT EXISTS (
        SELECT 1 FROM json_each(:\2) w WHERE NOT EXISTS (
            SELECT 1 FROM json_each(\1) h WHERE h.key = w.key AND h.type = w.type AND h.value IS w.value))""",
    Dialect.POSTGRESQL: r"CAST(\1 AS jsonb) @> CAST(:\2 AS jsonb)",
}
_HOLDS = {
    Dialect.SQLITE: r"""NOT EXISTS (
        SELECT 1 FROM json_each(:\2) w, json_each(w.value) v WHERE NOT EXISTS (
            SELECT 1 FROM json_each(\1) h, json_each(CASE h.type WHEN 'array' THEN h.value ELSE '[]' END) e
            WHERE h.key = w.key AND e.type = v.type AND e.value IS v.value))""",
    Dialect.POSTGRESQL: r"CAST(\1 AS jsonb) @> CAST(:\2 AS jsonb)",
}
_NAME = re.compile(r"^-- name: (\w+)(?: \[(\w+)\])?\s*$", re.MULTILINE)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
BOUND_CLOCK = "CAST(:now AS BIGINT)"


@functools.cache
def load(dialect: Dialect, *, bound_clock: bool = False) -> Mapping[str, Block]:
    """Return every block of ``queries.sql`` for ``dialect``.

    ``bound_clock`` renders ``{now}`` to a parameter, so that a simulation owns time.
    """
    text = resources.files("outlive.store").joinpath("queries.sql").read_text("utf-8")
    pieces = _NAME.split(text)[1:]
    blocks: dict[str, Block] = {}
    overridden: set[str] = set()
    for name, only, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if only not in (None, *Dialect):
            raise ValueError(f"queries.sql overrides {name} for {only}, which is no dialect")
        if (only is not None and only != dialect) or (only is None and name in overridden):
            continue
        if name in blocks and (only is None or name in overridden):
            raise ValueError(f"queries.sql names {name} twice")
        if only is not None:
            overridden.add(name)
        blocks[name] = Block(name=name, statements=_render(body, dialect, bound_clock))
    if dialect is Dialect.POSTGRESQL and (
        many := [b.name for b in blocks.values() if len(b.statements) != 1]
    ):
        raise ValueError(f"queries.sql gives {many} several statements, which PostgreSQL cannot run as one")
    return blocks


def _render(body: str, dialect: Dialect, bound_clock: bool) -> tuple[str, ...]:
    body = _COMMENT.sub("", body).replace("{fence}", _FENCE)
    body = body.replace("{effect}", _EFFECT).replace("{started}", _STARTED)
    body = body.replace("{notification}", _NOTIFICATION)
    body = body.replace("{schedule}", _SCHEDULE).replace("{occurrence}", _OCCURRENCE)
    words = dict(_WORDS[dialect])
    if bound_clock:
        words["now"] = BOUND_CLOCK
    for word, meaning in words.items():
        body = body.replace("{" + word + "}", meaning)
    body = re.sub(r"\{in:(\w+)\}", _MEMBER[dialect], body)
    body = re.sub(r"\{contains:([\w.]+):(\w+)\}", _CONTAINS[dialect], body)
    body = re.sub(r"\{holds:([\w.]+):(\w+)\}", _HOLDS[dialect], body)
    if dialect is Dialect.POSTGRESQL:
        body = re.sub(r"(?<!:):(?!:)(\w+)", r"%(\1)s", body.replace("%", "%%"))
    return tuple(part.strip() for part in body.split(";") if part.strip())


def bind(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a statement's parameters into what either driver takes: lists travel as JSON text.

    One text is cheaper to send than arrays, column by column, and both dialects unfold it.
    """
    return {
        name: json.dumps([_row(item) for item in value]) if isinstance(value, list | tuple) else value
        for name, value in params.items()
    }


def _row(item: Any) -> Any:
    if isinstance(item, NewEvent):
        return item.kind, item.mode, item.payload
    if isinstance(item, Claim):
        return item.run_id, item.epoch, item.claim_token
    return item
