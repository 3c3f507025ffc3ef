"""API keys: made once, shown once, kept as a hash, revoked for good.

Decides what a key looks like and how it is looked up.  A key holds 256 random bits, so its hash is a plain
SHA-256: a slow hash makes guessing a person's password dear, and here there is nothing that could be guessed.
It would only let anybody who sends nonsense keep the server's processors busy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Any

from outlive import errors
from outlive.model import Row, millis, seconds
from outlive.principal import EVERYTHING, Scope
from outlive.store.script import Steps, script, statement

MARK = "olv"
"""What every key begins with, so that scanners for leaked secrets can tell one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A key as it is kept.  ``key_id`` is its visible part; times are in seconds since the epoch."""

    key_id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    digest: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None
    holds: bool

    @classmethod
    def from_row(cls, row: Row) -> Key:
        """Build a key from a row of ``api_keys``; ``holds`` is by the database's clock."""
        return cls(
            key_id=row["key_id"],
            tenant=row["tenant"],
            name=row["name"],
            # Those that a newer version knows grant nothing here.
            scopes=frozenset(Scope) & frozenset(json.loads(row["scopes"])),
            digest=row["digest"],
            created_at=row["created_at"] / 1000,
            expires_at=seconds(row["expires_at"]),
            last_used_at=seconds(row["last_used_at"]),
            revoked_at=seconds(row["revoked_at"]),
            holds=bool(row["holds"]),
        )

    def public(self) -> dict[str, Any]:
        """Return what may be shown: everything but the hash."""
        return {
            "key_id": self.key_id,
            "tenant": self.tenant,
            "name": self.name,
            "scopes": sorted(self.scopes),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "last_used_at": self.last_used_at,
            "revoked_at": self.revoked_at,
            "holds": self.holds,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Minted:
    """A new key: ``text`` is the whole of it, and nobody can read it back later."""

    key_id: str
    text: str

    @property
    def digest(self) -> str:
        """What is kept of it."""
        return digest(self.text)


def mint() -> Minted:
    """Make a key of 256 random bits."""
    key_id = secrets.token_hex(6)
    return Minted(key_id=key_id, text=f"{MARK}_{key_id}_{secrets.token_urlsafe(32)}")


def digest(text: str) -> str:
    """Return the hash by which a key is kept."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def id_of(text: str) -> str | None:
    """Return the visible part of what looks like a key; None for anything else."""
    mark, _, rest = text.partition("_")
    key_id, _, secret = rest.partition("_")
    looks = mark == MARK and len(key_id) == 12 and len(secret) == 43 and text.isascii()
    return key_id if looks else None


def same(key: Key, text: str) -> bool:
    """Say whether ``text`` is this key, in a time that does not tell how much of it is right."""
    return hmac.compare_digest(key.digest, digest(text))


@script()
def create(
    minted: Minted,
    *,
    tenant: str,
    name: str,
    scopes: frozenset[Scope] = EVERYTHING,
    lifetime: float | None = None,
) -> Steps[Key]:
    """Keep a new key, which expires after ``lifetime`` seconds (None: never)."""
    yield statement(
        "create_key",
        key_id=minted.key_id,
        tenant=tenant,
        name=name,
        scopes=json.dumps(sorted(scopes)),
        digest=minted.digest,
        lifetime_ms=None if lifetime is None else millis(lifetime),
    )
    return Key.from_row((yield statement("key", key_id=minted.key_id))[0])


@script(reads=True)
def find(key_id: str) -> Steps[Key | None]:
    """Return the key with this visible part, whether it holds or not."""
    rows = yield statement("key", key_id=key_id)
    return Key.from_row(rows[0]) if rows else None


@script(reads=True)
def every(tenant: str | None) -> Steps[list[Key]]:
    """Return the keys of a tenant, or of all (None), oldest first."""
    rows = yield statement("list_keys", tenant=tenant)
    return [Key.from_row(row) for row in rows]


@script()
def revoke(key_id: str) -> Steps[Key]:
    """End a key for good; raises ``NotFound``.  A key that was revoked before stays as it is."""
    yield statement("revoke_key", key_id=key_id)
    rows = yield statement("key", key_id=key_id)
    if not rows:
        raise errors.NotFound(f"There is no key {MARK}_{key_id}.", hint="See: outlive keys list")
    return Key.from_row(rows[0])


@script(single=True)
def used(key_id: str) -> Steps[None]:
    """Note that a key was used now."""
    yield statement("use_key", key_id=key_id)
