"""What an application does with whole threads: list and delete them.

Decides what is checked before the record is asked.  It is a part of ``runtime.Outlive``, which has the rest.
"""

from __future__ import annotations

from outlive import agents, artifacts, deletion, errors, names, observation, signals
from outlive.deletion import Deleted
from outlive.model import Thread
from outlive.store import reads

MOST = 1000
"""Threads that one look returns."""


class Threads(observation.Observation):
    """The part of an ``Outlive`` that is about threads."""

    registry: agents.Registry
    signals: signals.Signals
    artifact_root: artifacts.Root | None

    async def threads(self, *, tenant: str = "", limit: int = 50, before: str | None = None) -> list[Thread]:
        """Return up to ``limit`` threads (1 to 1000), newest first, older than the one named ``before``."""
        if not 1 <= limit <= MOST:
            raise errors.InvalidInput(f"limit must be between 1 and {MOST}.", field="limit")
        names.check_name("before", before)
        return await self.store.read(reads.threads(tenant, limit=limit, before=before))

    async def delete_thread(self, name: str, *, tenant: str = "", force: bool = False) -> Deleted:
        """Delete a thread: its runs, events, checkpoints, large bodies and files, and not its effects.

        Live runs are ended by it, as stopped, and what their executors send later is refused.  A message to
        the same name later makes a new thread.  Raises ``NotFound``, also the second time, and
        ``ThreadUnsettled`` while the outcome of an effect is open or one is still to be undone, unless
        ``force``.
        """
        found = await self.thread(name, tenant=tenant)
        return await self.deletion().delete(found.thread, found.thread_id, force=force)

    def deletion(self) -> deletion.Deletion:
        """Return what deletes threads here."""
        known = [self.registry[name] for name in self.registry.names]
        files = self.artifact_root
        return deletion.Deletion(self.store, happenings=self.signals, files=files, agents=known)
