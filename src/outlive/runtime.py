"""The composition root: the one object that an application holds.

It builds the parts, starts the background duties, and ends them
in the order in which nothing is lost: no more submits, hand back what runs, let viewers go, close the store.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import threading
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

from outlive import (
    commands,
    disconnect,
    errors,
    execution,
    large,
    lease,
    presence,
    retention,
    seams,
    shutdown,
    signals,
    subscription,
    sweeper,
    worker,
)
from outlive.agents import Agent, Binds, Registry
from outlive.artifacts import Artifact, Root, linked
from outlive.databases import exists as exists
from outlive.databases import installed
from outlive.databases import migrate as migrate
from outlive.databases import open_store as open_store
from outlive.effects import desk
from outlive.limits import ByWhom, Limits
from outlive.model import Event, EventKind, Run, Stop, Submitted, Thread
from outlive.policy import RunPolicy
from outlive.states import Reason, State
from outlive.store import bodies, pruning, reads, watching

T = TypeVar("T")
DRAIN_BUDGET = 10.0
"""Seconds that closing may take to hand work back."""


class Outlive:
    """Runs, their execution and their events, over one database.

    ``database`` is ``sqlite:///file`` or ``postgresql://…``; ``direct_database`` is for LISTEN where the
    first goes through a transaction pooler.  ``slots`` bounds how many runs this process drives; 0 makes it
    an API process that only submits and observes.  ``viewer_lease`` is for how many seconds a viewer counts
    as watching without a further word from its server.  ``limits`` hold for each principal, and
    ``agent_limits`` for the agents named there, over all processes on the database that were given them.
    ``artifacts`` is a directory, the same for all processes, for the files that agents make.
    ``max_event_bytes``: of what an agent yields that is larger only a placeholder is recorded.
    ``retention``: how many seconds after its end a run's events are taken away (None: never); its record, its
    end event and its last state stay.

    Use it as an async context manager, or as a FastAPI lifespan (``lifespan=outlive.lifespan``).
    """

    def __init__(
        self,
        database: str,
        agents: Iterable[Agent],
        *,
        direct_database: str | None = None,
        slots: int = 32,
        timing: lease.Timing | None = None,
        drain: float = DRAIN_BUDGET,
        viewer_lease: float = presence.LEASE,
        limits: Limits | None = None,
        agent_limits: Mapping[str, Limits] | None = None,
        artifacts: str | Path | None = None,
        max_event_bytes: int = large.MAX_EVENT_BYTES,
        retention: float | None = None,
    ) -> None:
        self.signals = signals.Signals()
        self.registry = Registry(agents, hidden=_hidden())
        self.timing = timing or lease.Timing()
        self.slots = slots
        self.store = open_store(database, direct_database, self.signals)
        self.effects = desk.Desk(self.store)
        self._drain = drain
        self._viewer_lease = viewer_lease
        self.artifact_root = Root(Path(artifacts)) if artifacts is not None else None
        self.limits = ByWhom(principals=limits, agents=agent_limits or {})
        self._max_event_bytes = max_event_bytes
        self._retention = retention
        self._database = database
        self._local = seams.REAL
        self._ready = False
        self._duties: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None
        self.shutdown = shutdown.Shutdown()

    # ------------------------------------------------------------ lifetime

    async def __aenter__(self) -> Self:
        """Connect and start working; raises ``Misconfigured`` or ``StoreUnavailable``."""
        await self.store.open()
        try:
            await self._begin()
        except BaseException:
            await self._keeper.close()
            await self.store.close()
            raise
        loop = asyncio.get_running_loop()
        self._draining = loop.create_task(self._drain_when_told())
        duties = {
            "sweeper": self._sweeper.run(),
            "presence": self.presence.run(),
            "disconnect": self._disconnect.run(),
        }
        if self._retention is not None:
            duties["retention"] = retention.Retention(
                self.store, self._retention, happenings=self.signals
            ).run()
        self._duties = [loop.create_task(self._watch_over(*duty)) for duty in duties.items()]
        self._ready = True
        return self

    async def _begin(self) -> None:
        self._compose()
        await self._bind_agents()
        await self._keeper.start()
        if self.slots:
            await self._worker.begin()

    async def _bind_agents(self) -> None:
        """Hand the store to every agent that keeps something in it."""
        for name in self.registry.names:
            agent = self.registry[name]
            if isinstance(agent, Binds):
                await agent.bind(self.store, self.signals)

    def _compose(self) -> None:
        store, told, local = self.store, self.signals, self._local
        self._keeper = lease.Keeper(store, timing=self.timing, happenings=told, local=local)
        around = execution.Surroundings(
            store=store,
            keeper=self._keeper,
            happenings=told,
            local=local,
            drain=self._drain / 4,
            artifacts=self.artifact_root,
            max_event_bytes=self._max_event_bytes,
        )
        self._worker = worker.Worker(self.registry, around, slots=self.slots)
        starter = self._worker if self.slots else None
        self._commands = commands.Commands(
            store,
            self.registry,
            starter=starter,
            happenings=told,
            local=local,
            viewer_lease=self._viewer_lease,
            limited=self.limits.quotas,
        )
        self.presence = presence.Presence(store, happenings=told, lease=self._viewer_lease)
        self._disconnect = disconnect.Disconnect(store, happenings=told)
        self._sweeper = sweeper.Sweeper(store, timing=self.timing, happenings=told, local=local)

    async def _watch_over(self, name: str, duty: Coroutine[Any, Any, None]) -> None:
        """A duty that dies must not die in silence: nobody would sweep, and nobody would know."""
        try:
            await duty
        except Exception as failure:
            self.signals.emit(signals.BackgroundFailed(duty=name, error=repr(failure)))
            raise

    async def __aexit__(self, *_: object) -> None:
        """Hand work back, let viewers go, close the store."""
        await self.close()

    async def close(self) -> None:
        """End within the drain budget; runs that were being driven are queued again, not lost."""
        draining, self._draining = self._draining, None
        if draining is None:
            return
        self.shutdown.set()
        await asyncio.wait({draining})  # not by itself: who is cancelled here must not cut it short
        await self.presence.close()
        for task in self._duties:
            task.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        await self._keeper.close()
        await self.store.close()
        draining.result()

    async def _drain_when_told(self) -> None:
        """Hand work back as soon as the end is told: a server may wait long for its last connection."""
        with self.shutdown.future() as told:
            await told
        self._ready = False
        await self._commands.close()
        await self._worker.shutdown(self._drain)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Live as long as an ASGI application does: ``FastAPI(lifespan=outlive.lifespan)``.

        At SIGTERM or SIGINT every stream ends at once, so that the server gets to its shutdown at all.
        """
        async with self:
            with self._told_by_signals():
                yield

    def _told_by_signals(self) -> AbstractContextManager[None]:
        # Only the main thread may handle signals; a server embedded in a thread has to tell us itself.
        in_main = threading.current_thread() is threading.main_thread()
        return self.shutdown.on_signals() if in_main else nullcontext()

    @property
    def ready(self) -> bool:
        """True between a successful start and the beginning of shutdown."""
        told = self.shutdown.is_set()
        return self._ready and not told and all(not task.done() for task in self._duties)

    def _check_ready(self) -> None:
        if not self._ready or self.shutdown.is_set():
            raise errors.NotReady()

    # ------------------------------------------------------------ command

    async def submit(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - the word that every caller looks for
        *,
        thread: str | None = None,
        key: str | None = None,
        tenant: str = "",
        policy: RunPolicy | None = None,
        not_before: float | None = None,
        metadata: dict[str, Any] | None = None,
        viewer: str | None = None,
        principal: str = "",
    ) -> Submitted:
        """Make a run, or find the one that answers this intent; see ``commands.Commands.submit``."""
        self._check_ready()
        return await self._commands.submit(
            agent,
            input,
            thread=thread,
            key=key,
            tenant=tenant,
            policy=policy,
            not_before=not_before,
            metadata=metadata,
            viewer=viewer,
            principal=principal,
        )

    async def stop(self, run_id: str, *, tenant: str | None = "", reason: Reason = Reason.REQUESTED) -> Stop:
        """Ask a run to stop; see ``commands.Commands.stop``."""
        self._check_ready()
        return await self._commands.stop(run_id, tenant=tenant, reason=reason)

    # ------------------------------------------------------------ observation

    async def run(self, run_id: str, *, tenant: str | None = "") -> Run:
        """Return the record of a run; raises ``NotFound``."""
        commands.check_name("run_id", run_id)
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
            commands.check_name(field, text)
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
        commands.check_name("thread", name)
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


def _hidden() -> list[Agent]:
    """The agents that every worker drives, for as far as what they need is installed."""
    if not installed("tenacity"):
        return []
    agent: Agent = importlib.import_module("outlive.effects.aftermath").AGENT
    return [agent]
