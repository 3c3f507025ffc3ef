"""What an application sees of its runs: records, events as they come, threads, files.

Decides nothing about how a run is made or driven, and changes none; ``runtime`` adds that.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncGenerator
from contextlib import aclosing

from outlive import errors, names, presence, seams, subscription
from outlive.artifacts import Artifact, linked
from outlive.model import Event, EventKind, Run, Thread
from outlive.states import State
from outlive.store import Store, bodies, pruning, reads, watching


class Observation:
    """The reading half of ``Outlive``."""

    store: Store
    presence: presence.Presence
    _local: seams.Seams

    async def run(self, run_id: str, *, tenant: str | None = "") -> Run:
        """Return the record of a run; raises ``NotFound``."""
        names.check_name("run_id", run_id)
        return await self.store.read(reads.run(run_id, tenant))

    async def evidence(self, run_id: str) -> watching.Evidence:
        """Return who watched a run, and how far; whether the caller may know is for the caller to check."""
        return await self.store.read(watching.evidence(run_id))

    async def runs(
        self,
        *,
        tenant: str = "",
        limit: int = 50,
        before: str | None = None,
        agent: str | None = None,
        state: State | None = None,
        thread: str | None = None,
    ) -> list[Run]:
        """Return up to ``limit`` runs (1 to 1000), newest first, older than the run ``before``."""
        if not 1 <= limit <= 1000:
            raise errors.InvalidInput("limit must be between 1 and 1000.", field="limit")
        for field, text in (("before", before), ("agent", agent), ("thread", thread)):
            names.check_name(field, text)
        return await self.store.read(
            reads.runs(tenant, limit=limit, before=before, agent=agent, state=state, thread=thread)
        )

    async def follow(
        self, run_id: str, *, after: int = 0, tenant: str | None = ""
    ) -> AsyncGenerator[Event, None]:
        """Yield a run's events after ``after`` until its end, without counting as a viewer."""
        subscription.check_cursor(await self.run(run_id, tenant=tenant), after)
        async with aclosing(subscription.follow(self.store, run_id, after=after)) as events:
            async for event in events:
                yield event

    async def watch(
        self, run_id: str, *, after: int = 0, tenant: str | None = "", viewer: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Like ``follow``, but present: while this is open, the run counts as watched.

        ``viewer`` continues the presence that a submit began.  Close it (``aclosing``) to leave.
        """
        present = presence.Viewer(name=viewer or self._local.new_id(), run_id=run_id, seen=0)
        left: presence.Left | None = presence.Left.DISCONNECT
        try:
            subscription.check_cursor(await self.run(run_id, tenant=tenant), after)
            present.seen = after
            await self.presence.join(present)
            async with aclosing(subscription.follow(self.store, run_id, after=after)) as events:
                async for event in events:
                    if event.kind is EventKind.END:
                        left = presence.Left.END
                    yield event
                    present.seen = event.seq
        except errors.NotFound:
            left = None  # it was never this viewer's to watch, so not theirs to leave either
            raise
        finally:
            if left is not None:
                self.presence.leave(present, left)

    async def check_kept(self, run: Run, after: int) -> None:
        """Raise ``Pruned`` if retention took what follows ``after``; 0 is the start of whatever is kept."""
        if after and run.state.terminal and after < run.last_seq:
            oldest = await self.store.read(pruning.oldest(run.run_id))
            if after < oldest - 1:
                where = f"/runs/{run.run_id}"
                raise errors.Pruned(oldest=oldest, latest=run.last_seq, snapshot=where, run_id=run.run_id)

    async def check_thread_kept(self, thread: Thread, after: int) -> None:
        """The same of a thread, in its own sequence."""
        oldest = await self.store.read(pruning.oldest_of_thread(thread.thread_id)) if after else 1
        if after and after < oldest - 1:
            where = f"/threads/{urllib.parse.quote(thread.thread, safe='')}"
            raise errors.Pruned(oldest=oldest, latest=thread.last_seq, snapshot=where)

    async def events(
        self, run_id: str, *, after: int = 0, limit: int = 1000, tenant: str | None = ""
    ) -> list[Event]:
        """Return up to ``limit`` committed events after ``after``, without waiting.

        There may be more although these are fewer: together they have a few MiB at most.
        """
        run = await self.run(run_id, tenant=tenant)
        subscription.check_cursor(run, after)
        await self.check_kept(run, after)
        return await subscription.page(self.store, run_id, after, limit)

    async def event(self, run_id: str, seq: int, *, tenant: str | None = "") -> Event:
        """Return one event, whole, also where a reference stands for it elsewhere; raises ``NotFound``."""
        await self.run(run_id, tenant=tenant)
        return await self.store.read(bodies.event(run_id, seq))

    async def artifacts(self, run_id: str, *, tenant: str | None = "") -> list[Artifact]:
        """Return the files that a run made: none before it has ended; raises ``NotFound``."""
        run = await self.run(run_id, tenant=tenant)
        if not run.state.terminal:
            return []
        ends = await self.store.read(reads.events(run_id, run.last_seq - 1, 1))
        return linked(ends[0].data) if ends else []

    async def thread(self, name: str, *, tenant: str = "") -> Thread:
        """Return a thread by its external name; raises ``NotFound``."""
        names.check_name("thread", name)
        return await self.store.read(reads.thread(name, tenant))

    async def thread_events(self, thread: Thread, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return up to ``limit`` committed events of a thread's runs after ``after`` in its own sequence."""
        await self.check_thread_kept(thread, after)
        return await subscription.thread_page(self.store, thread.thread_id, after, limit)

    async def result(self, run_id: str, *, tenant: str | None = "") -> Run:
        """Wait, watching, until the run ends, and return its record."""
        async with aclosing(self.watch(run_id, tenant=tenant)) as events:
            async for _ in events:
                pass
        return await self.run(run_id, tenant=tenant)
