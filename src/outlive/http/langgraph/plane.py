"""What every route of the LangGraph protocol has at hand, and how a request finds its graph.

Each graph is an assistant by itself, under an id that follows from its name; it is kept like any other as
soon as its tenant asks for one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from outlive import errors
from outlive.agents.langgraph import LangGraphAgent
from outlive.http.langgraph import filters, shapes, wire
from outlive.http.langgraph.filters import Filter
from outlive.model import Run
from outlive.runtime import Outlive
from outlive.store import assistants, searching
from outlive.store.assistants import Assistant
from outlive.store.searching import FoundThread

_NAMES = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace in which clients compute the id of a graph's own assistant."""
_MOST_GREETED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Plane:
    """One service.  ``body_limit`` is in bytes; ``heartbeat`` in seconds.

    ``kept`` is for how many seconds after its end a run without a thread can still be read.
    """

    outlive: Outlive
    graphs: Mapping[str, LangGraphAgent]
    body_limit: int
    heartbeat: float
    kept: float
    _greeted: set[str] = field(default_factory=set)

    def own_id(self, graph_id: str) -> str:
        """Return the id of a graph's own assistant."""
        return str(uuid.uuid5(_NAMES, graph_id))

    async def greet(self, tenant: str) -> None:
        """See to it that a tenant has the assistants of all graphs."""
        if tenant in self._greeted:
            return
        for name in sorted(self.graphs):
            own = Assistant(
                tenant=tenant,
                assistant_id=self.own_id(name),
                agent=name,
                name=name,
                metadata={"created_by": "system"},
            )
            if await self.outlive.store.read(assistants.find(tenant, own.assistant_id)) is None:
                await self.outlive.store.write(assistants.create(own))
        if len(self._greeted) >= _MOST_GREETED:
            self._greeted.clear()
        self._greeted.add(tenant)

    async def assistant(self, tenant: str, named: str) -> Assistant:
        """Return an assistant by its id, or a graph's own by the graph's name.

        Raises ``InvalidInput`` for what is neither a graph nor an id, ``NotFound`` for an id of none.
        """
        await self.greet(tenant)
        if named in self.graphs:
            named = self.own_id(named)
        try:
            assistant_id = str(uuid.UUID(named))
        except ValueError:
            known = ", ".join(sorted(self.graphs)) or "none"
            raise errors.InvalidInput(
                f"Invalid assistant: {named[:200]!r}. Must be an assistant's id, or one of: {known}.",
                field="assistant_id",
            ) from None
        found = await self.outlive.store.read(assistants.find(tenant, assistant_id))
        if found is None:
            raise errors.NotFound(f"Assistant {assistant_id} not found.", field="assistant_id")
        return found

    def graph(self, found: Assistant) -> LangGraphAgent:
        """Return an assistant's graph; raises ``NotFound`` if it is not served any more."""
        if found.agent not in self.graphs:
            raise errors.NotFound(f"Graph {found.agent!r} is not served here.", field="graph_id")
        return self.graphs[found.agent]

    async def thread(self, request: Request, thread_id: str) -> FoundThread:
        """Return the thread that a path names; raises ``NotFound``, ``InvalidInput``."""
        name = wire.thread_name(thread_id)
        try:
            return await self.outlive.store.read(searching.find(wire.tenant(request), name))
        except errors.NotFound:
            raise errors.NotFound(f"Thread with ID {name} not found.", field="thread_id") from None

    async def run(self, request: Request, run_id: str, thread_id: str | None) -> Run:
        """Return the run of a path; raises ``NotFound`` also if it is on another thread, or set aside."""
        try:
            found = await self.outlive.run(wire.run_id(run_id), tenant=wire.tenant(request))
        except errors.NotFound:
            raise errors.NotFound("Run not found.", field="run_id") from None
        elsewhere = thread_id is not None and wire.thread_name(thread_id) != found.thread
        if elsewhere or not self.shows(found):
            raise errors.NotFound("Run not found.", field="run_id")
        return found

    def shows(self, run: Run) -> bool:
        """Whether these clients know of a run: not of those that change states, nor of one set aside."""
        return run.agent in self.graphs and shapes.ASIDE not in shapes.kept(run)

    def allowed(self, request: Request) -> Filter:
        """Return what a search is narrowed to by an application's handlers."""
        found: Filter = getattr(request.state, "outlive_filter", filters.NOTHING)
        return found

    def of_new_thread(self, request: Request) -> Mapping[str, Any]:
        """Return what is said of a thread that a request makes by the way."""
        found: Mapping[str, Any] = getattr(request.state, "outlive_of_new", {})
        return found

    def said_by_maker(self, request: Request, metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return what a thread has of the run that makes it: where handlers decide, it says whose it is."""
        return (metadata or {}) if hasattr(request.state, "outlive_user") else {}

    async def read(self, request: Any, kind: Any, *, empty: Any = None) -> Any:
        """Read a body; see ``wire.read``."""
        return await wire.read(request, kind, self.body_limit, empty=empty)
