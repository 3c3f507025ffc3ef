"""The composition root: the one object that an application holds.

It builds the parts, starts the background duties, and ends them
in the order in which nothing is lost: no more submits, hand back what runs, let viewers go, close the store.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

from outlive import (
    commands,
    cron,
    disconnect,
    errors,
    execution,
    executor,
    firing,
    large,
    lease,
    notifications,
    outbox,
    presence,
    retention,
    schedules,
    seams,
    shutdown,
    signals,
    sweeper,
    threads,
    worker,
)
from outlive.agents import Agent, Binds, Registry
from outlive.artifacts import Root
from outlive.databases import exists as exists
from outlive.databases import installed
from outlive.databases import migrate as migrate
from outlive.databases import open_store as open_store
from outlive.effects import desk
from outlive.limits import ByWhom, Limits
from outlive.model import Stop, Submitted
from outlive.policy import RunPolicy
from outlive.states import Reason
from outlive.store import Store
from outlive.store.schedules import Schedule

T = TypeVar("T")
DRAIN_BUDGET = 10.0
"""Seconds that closing may take to hand work back."""


class Outlive(threads.Threads):
    """Runs, their execution and their events, over one database.

    ``database`` is ``sqlite:///file`` or ``postgresql://…``; ``direct_database`` is for LISTEN where the
    first goes through a transaction pooler.  ``slots`` bounds how many runs this process drives; 0 makes it
    an API process that only submits and observes.  ``viewer_lease`` is for how many seconds a viewer counts
    as watching without a further word from its server.  ``limits`` hold for each principal, and
    ``agent_limits`` for the agents named there, over all processes on the database that were given them.
    ``artifacts`` is a directory, the same for all processes, for the files that agents make.
    ``max_event_bytes``: of what an agent yields that is larger only a placeholder is recorded.
    ``retention``: how many seconds after its end a run's events are taken away (None: never); its record, its
    end event and its last state stay.  ``webhooks``: how the ends of runs are told to web servers (None: they
    are not).

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
        webhooks: notifications.Webhooks | None = None,
    ) -> None:
        self.signals = signals.Signals()
        self.registry = Registry(agents, hidden=_hidden())
        self.timing = timing or lease.Timing()
        self.slots = slots
        self.store = open_store(database, direct_database, self.signals)
        self.effects = desk.Desk(self.store)
        self.notifications = outbox.Desk(self.store)
        self._drain = drain
        self._viewer_lease = viewer_lease
        self.artifact_root = Root(Path(artifacts)) if artifacts is not None else None
        self.limits = ByWhom(principals=limits, agents=agent_limits or {})
        self._max_event_bytes = max_event_bytes
        self._retention = retention
        self.webhooks = webhooks
        told = webhooks.notify if webhooks else notifications.refuse
        self.schedules = schedules.Desk(self.store, self.registry, happenings=self.signals, told=told)
        self._dispatcher = _dispatcher(self.store, webhooks, self.signals)
        self._scheduling = cron.installed()
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
        duties: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "sweeper": self._sweeper.run,
            "presence": self.presence.run,
            "disconnect": self._disconnect.run,
            "deletion": self.deletion().run,
        }
        if self._retention is not None:
            duties["retention"] = retention.Retention(
                self.store, self._retention, happenings=self.signals
            ).run
        if self._scheduling:
            timetable = firing.Timetable(
                self.store, self._commands, self.registry, happenings=self.signals, local=self._local
            )
            duties["schedules"] = timetable.run
        if self._dispatcher is not None:
            duties["outbox"] = self._dispatcher.run
        self._duties = [loop.create_task(self._watch_over(*duty)) for duty in duties.items()]
        self._ready = True
        return self

    async def _begin(self) -> None:
        self._compose()
        await self._bind_agents()
        await self._keeper.start()
        if self.slots:
            executor.watch()
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
            told=self.webhooks.notify if self.webhooks else notifications.refuse,
        )
        self.presence = presence.Presence(store, happenings=told, lease=self._viewer_lease)
        self._disconnect = disconnect.Disconnect(store, happenings=told)
        self._sweeper = sweeper.Sweeper(store, timing=self.timing, happenings=told, local=local)

    async def _watch_over(self, name: str, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A duty that dies must not die in silence: nobody would sweep, and nobody would know."""
        try:
            await duty()
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
        if self._dispatcher is not None:
            await self._dispatcher.close()
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

    def slots_now(self) -> worker.Slots:
        """Return how many slots there are, are used, and are lost to agents that never returned."""
        return self._worker.counted()

    def loop_lag(self) -> float:
        """Return for how many seconds the event loop let a question wait, at most, since the last call."""
        return self._keeper.take_lag()

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
        webhook: str | None = None,
        traceparent: str | None = None,
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
            webhook=webhook,
            traceparent=traceparent,
        )

    async def schedule(
        self,
        cron: str,
        agent: str,
        input: Any = None,  # noqa: A002 - the word that every caller looks for
        **options: Any,
    ) -> Schedule:
        """Have a run made at each slot of a cron expression; see ``schedules.Desk.create``.

        ``outlive.schedules`` has the rest: look, change, pause, resume, delete.
        """
        self._check_ready()
        return await self.schedules.create(cron, agent, input, **options)

    async def stop(self, run_id: str, *, tenant: str | None = "", reason: Reason = Reason.REQUESTED) -> Stop:
        """Ask a run to stop; see ``commands.Commands.stop``."""
        self._check_ready()
        return await self._commands.stop(run_id, tenant=tenant, reason=reason)


def _dispatcher(
    store: Store, webhooks: notifications.Webhooks | None, told: signals.Signals
) -> outbox.Dispatcher | None:
    if webhooks is None:
        return None
    if not (installed("httpcore") and installed("standardwebhooks") and installed("tenacity")):
        raise errors.Misconfigured(
            "What sends webhooks is not installed.", hint="Run: pip install 'outlive[webhooks]'"
        )
    http = importlib.import_module("outlive.webhooks")
    return outbox.Dispatcher(
        store,
        webhooks,
        http.Sender(webhooks),
        happenings=told,
        waits=http.waits(webhooks.delay, webhooks.longest_delay),
        circuit=http.waits(webhooks.delay, http.LONGEST_CIRCUIT),
    )


def _hidden() -> list[Agent]:
    """The agents that every worker drives, for as far as what they need is installed."""
    if not installed("tenacity"):
        return []
    agent: Agent = importlib.import_module("outlive.effects.aftermath").AGENT
    return [agent]
