"""The seam to the database: one small protocol per job.

Decides what the rest of Outlive may ask of a store; ``sqlite`` and ``postgres`` answer.  What a transaction
does is in ``moves``, ``reads`` and ``watching``; how it reads in SQL is in ``queries.sql``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from outlive.model import Claim, Renewed
from outlive.store.script import Script
from outlive.store.wakeup import Hub

T = TypeVar("T")


class Transactions(Protocol):
    """Runs scripts, each in one transaction."""

    async def write(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run ``script`` until it commits, for up to ``budget`` seconds.

        Once begun it is never torn by the caller's cancellation: it commits or rolls back by itself.
        Raises ``StoreUnavailable`` when the budget is spent, and whatever the script raises.
        """
        ...

    async def read(self, script: Script[T], *, budget: float = 10.0) -> T:
        """Run a reading ``script`` outside the write path; same errors as ``write``."""
        ...


class Leases(Protocol):
    """Renews leases from a thread that is not the event loop's."""

    def renew(self, claims: Sequence[Claim], lease: float) -> list[Renewed]:
        """Extend exactly these claims by ``lease`` seconds; the missing ones were skipped or are lost.

        Blocks.  Raises ``StoreUnavailable``.
        """
        ...


class Liveness(Protocol):
    """A token that dies with the process that holds it: a hint for fast takeover, never safety."""

    async def hold_token(self, worker: str) -> None:
        """Hold ``worker``'s token for the life of this store."""
        ...

    async def dead(self, workers: Collection[str]) -> set[str]:
        """Return which of ``workers`` provably hold no token now (empty when that cannot be told)."""
        ...


class Wakeups(Protocol):
    """Hints that something changed: coalesced, off the write path, carrying topics only."""

    hub: Hub

    def announce(self, *topics: str) -> None:
        """Wake local waiters now and tell other processes soon.  A lost hint costs one poll interval."""
        ...


class Store(Transactions, Leases, Liveness, Wakeups, Protocol):
    """Everything together, with a lifetime."""

    async def open(self) -> None:
        """Connect and check the schema; raises ``Misconfigured`` or ``StoreUnavailable``."""
        ...

    async def close(self) -> None:
        """Let running transactions end and release every connection, thread and token."""
        ...
