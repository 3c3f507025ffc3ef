"""Who asks: the tenant whose runs they see, and how far their credentials reach.

Decides what the rest of Outlive knows about a caller.  Does not decide how anybody proves who they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What credentials allow: to look, or to make and stop as well."""

    READ = "read"
    WRITE = "write"


EVERYTHING = frozenset(Scope)


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """A caller.  ``tenant`` is whose runs they see; ``id`` tells callers of one tenant apart, for limits.

    ``expires_at`` (seconds since the epoch) and ``still_valid`` are looked at while a stream is open: one
    that outlived its credentials is ended within seconds.  ``still_valid`` is asked about once a second for
    each open stream; it must be cheap, and it must not block.
    """

    tenant: str
    id: str
    scopes: frozenset[Scope] = EVERYTHING
    expires_at: float | None = None
    still_valid: Callable[[], Awaitable[bool]] | None = None

    @property
    def lasting(self) -> bool:
        """True if nothing ends these credentials."""
        return self.expires_at is None and self.still_valid is None


NOBODY = Principal(tenant="", id="")
"""Everybody, where nobody is authenticated."""
