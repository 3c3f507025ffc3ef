"""Assistants as scripts: a graph under an id, with a configuration of its own, in versions that are kept.

A change never touches what a version was: it makes a new one, and which is current can be set back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlive import errors
from outlive.model import Row
from outlive.store.script import Steps, script, statement


@dataclass(frozen=True, kw_only=True, slots=True)
class Assistant:
    """One assistant as it stands, or as one of its versions had it.  Times are seconds since the epoch."""

    tenant: str
    assistant_id: str
    agent: str
    name: str
    description: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    created_at: float = 0.0
    updated_at: float = 0.0

    @classmethod
    def from_row(cls, row: Row) -> Assistant:
        """Build one from a row of ``assistants`` or ``assistant_versions``."""
        plain = {
            name: row[name] for name in ("tenant", "assistant_id", "agent", "name", "description", "version")
        }
        parsed = {name: json.loads(row[name]) for name in ("config", "context", "metadata")}
        return cls(
            **plain, **parsed, created_at=row["created_at"] / 1000, updated_at=row["updated_at"] / 1000
        )

    def columns(self) -> dict[str, Any]:
        """Return what a statement writes of it."""
        return {
            "tenant": self.tenant,
            "assistant_id": self.assistant_id,
            "agent": self.agent,
            "name": self.name,
            "description": self.description,
            "config": canonical(self.config),
            "context": canonical(self.context),
            "metadata": canonical(self.metadata),
        }


def canonical(value: Any) -> str:
    """Return JSON in the one form by which members are compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@script()
def create(new: Assistant) -> Steps[Assistant | None]:
    """Keep a new assistant; None if there is one of that id."""
    rows = yield statement("insert_assistant", **new.columns())
    if not rows:
        return None
    yield statement("keep_version", tenant=new.tenant, assistant_id=new.assistant_id)
    return Assistant.from_row(rows[0])


@script(reads=True)
def find(tenant: str, assistant_id: str) -> Steps[Assistant | None]:
    """Return an assistant as it stands."""
    rows = yield statement("assistant", tenant=tenant, assistant_id=assistant_id)
    return Assistant.from_row(rows[0]) if rows else None


@script()
def change(tenant: str, assistant_id: str, changes: Mapping[str, Any]) -> Steps[Assistant]:
    """Make a new version with ``changes`` (``metadata`` is merged); raises ``NotFound``."""
    now = yield from _locked(tenant, assistant_id)
    merged = {**now.metadata, **changes.get("metadata", {})}
    newest = yield statement("newest_version", tenant=tenant, assistant_id=assistant_id)
    changed = dataclasses.replace(now, **{**changes, "metadata": merged})
    rows = yield statement("change_assistant", **changed.columns(), version=newest[0]["version"] + 1)
    yield statement("keep_version", tenant=tenant, assistant_id=assistant_id)
    return Assistant.from_row(rows[0])


@script()
def set_version(tenant: str, assistant_id: str, version: int) -> Steps[Assistant]:
    """Make a kept version the current one; raises ``NotFound``."""
    yield from _locked(tenant, assistant_id)
    found = yield _versions(tenant, assistant_id, version=version)
    if not found:
        raise errors.NotFound(f"The assistant has no version {version}.", field="version")
    kept = Assistant.from_row(found[0])
    rows = yield statement("change_assistant", **kept.columns(), version=version)
    return Assistant.from_row(rows[0])


@script(reads=True)
def versions(
    tenant: str, assistant_id: str, *, metadata: Mapping[str, Any], limit: int, offset: int
) -> Steps[list[Assistant]]:
    """Return the versions of an assistant, newest first."""
    rows = yield _versions(tenant, assistant_id, metadata=canonical(metadata), limit=limit, offset=offset)
    return [Assistant.from_row(row) for row in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What assistants are looked for by; ``name`` is any part of one, whatever its case.

    ``allowed`` and ``holding`` narrow it beside ``metadata``: members, and lists that hold some items.
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    agent: str | None = None
    name: str | None = None
    limit: int = 10
    offset: int = 0
    by: str = "created_at"
    ascending: bool = False
    allowed: Mapping[str, Any] = field(default_factory=dict)
    holding: Mapping[str, list[Any]] = field(default_factory=dict)


@script(reads=True)
def search(tenant: str, wanted: Search) -> Steps[tuple[list[Assistant], int]]:
    """Return one page, and how many there are in all as far as that page can tell."""
    rows = yield statement(
        "search_assistants",
        tenant=tenant,
        agent=wanted.agent,
        name=None if wanted.name is None else _part(wanted.name),
        metadata=canonical(wanted.metadata),
        allowed=canonical(wanted.allowed),
        holding=canonical(wanted.holding),
        by=wanted.by,
        sign=1 if wanted.ascending else -1,
        limit=wanted.limit,
        offset=wanted.offset,
    )
    total = rows[0]["total"] if rows else wanted.offset
    return [Assistant.from_row(row) for row in rows], int(total)


@script()
def drop(tenant: str, assistant_id: str) -> Steps[bool]:
    """Take an assistant and its versions away; False if there is none."""
    yield statement("drop_versions", tenant=tenant, assistant_id=assistant_id)
    rows = yield statement("drop_assistant", tenant=tenant, assistant_id=assistant_id)
    return bool(rows)


def _locked(tenant: str, assistant_id: str) -> Steps[Assistant]:
    yield statement("lock_assistant", tenant=tenant, assistant_id=assistant_id)
    rows = yield statement("assistant", tenant=tenant, assistant_id=assistant_id)
    if not rows:
        raise errors.NotFound(f"There is no assistant {assistant_id}.", field="assistant_id")
    return Assistant.from_row(rows[0])


def _versions(
    tenant: str,
    assistant_id: str,
    *,
    version: int | None = None,
    metadata: str = "{}",
    limit: int = 1,
    offset: int = 0,
) -> Any:
    return statement(
        "list_versions",
        tenant=tenant,
        assistant_id=assistant_id,
        version=version,
        metadata=metadata,
        limit=limit,
        offset=offset,
    )


def _part(name: str) -> str:
    escaped = name.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
