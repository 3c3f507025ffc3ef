"""Runs stopped, taken back, and taken out of sight.

Decides what ``rollback`` comes to: the run is stopped, what it left part-way on its thread is taken back with
its effects, and these clients do not find it any more.  Outlive's own routes do, with what it executed.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from outlive import errors
from outlive.http import body
from outlive.http.langgraph import bodies, shapes, wire
from outlive.http.langgraph.plane import Plane
from outlive.model import Run
from outlive.states import Position, State
from outlive.store import searching

_LIVE = {
    "pending": (State.QUEUED,),
    "running": (State.RUNNING,),
    "all": (State.QUEUED, State.RUNNING),
}


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the routes; before those that take any word for a run's id."""
    here = _Stopping(plane)
    routes.post("/runs/cancel", status_code=204)(here.cancel_many)
    for prefix in ("/threads/{thread_id}/runs", "/runs"):
        routes.post(prefix + "/{run_id}/cancel")(here.cancel)
    routes.delete("/threads/{thread_id}/runs/{run_id}", status_code=204)(here.delete)


class _Stopping:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._outlive = plane.outlive

    async def cancel(self, request: Request, run_id: str, thread_id: str | None = None) -> Response:
        """Ask a run to stop; with ``wait`` the answer comes once it has, and with ``rollback`` always."""
        run, back = await self._plane.run(request, run_id, thread_id), _takes_back(request)
        if run.state.terminal and not (back and _left_part_way(run)):
            raise errors.NotFound("The run has ended: there is nothing to cancel.", run_id=run.run_id)
        await self._outlive.stop(run.run_id, tenant=run.tenant)
        wait = wire.flag(request, "wait")
        if wait or back:
            ended = await self._outlive.result(run.run_id, tenant=run.tenant)
            if back:
                await self._take_back(ended)
        return body.Json({}) if wait else Response(status_code=202)

    async def cancel_many(self, request: Request) -> Response:
        """Ask several runs to stop: those of a thread that are named, or all with a status."""
        wanted = await self._plane.read(request, bodies.CancelMany)
        back = _takes_back(request)
        live = [run for run in await self._named(request, wanted) if not run.state.terminal]
        if not live:
            raise errors.NotFound("No runs found to cancel.")
        # Those that wait first: else the end of one that runs would let the next begin.
        for run in sorted(live, key=lambda run: run.state is State.RUNNING):
            await self._outlive.stop(run.run_id, tenant=run.tenant)
        for run in live if back else ():
            ended = await self._outlive.result(run.run_id, tenant=run.tenant)
            if ended.state is State.STOPPED:
                await self._take_back(ended)
        return Response(status_code=204)

    async def _named(self, request: Request, wanted: bodies.CancelMany) -> list[Run]:
        by_id = wanted.thread_id is not None and wanted.run_ids is not None
        if by_id == (wanted.status is not None):
            raise errors.InvalidInput("Name either a thread and its runs, or a status.", field="body")
        if by_id:
            return [await self._plane.run(request, one, wanted.thread_id) for one in wanted.run_ids or ()]
        tenant, found = wire.tenant(request), list[Run]()
        for state in _LIVE[str(wanted.status)]:
            page = await self._outlive.runs(tenant=tenant, state=state, limit=1000)
            found += filter(self._plane.shows, page)
        return [run for run in found if await self._is_allowed(request, run)]

    async def _is_allowed(self, request: Request, run: Run) -> bool:
        allowed = self._plane.allowed(request)
        if not allowed:
            return True
        thread = await self._outlive.store.read(searching.find(run.tenant, run.thread))
        return allowed.passes(thread.metadata)

    async def _take_back(self, ended: Run) -> None:
        """Take back what a stopped run left part-way, and let these clients find the run no more."""
        if ended.state is not State.STOPPED:
            raise errors.NotFound("The run had ended by itself: nothing is taken back.", run_id=ended.run_id)
        if _left_part_way(ended):
            try:
                await self._outlive.rollback_thread(ended.thread, tenant=ended.tenant, agent=ended.agent)
            except errors.ThreadBusy:
                raise errors.Conflict(
                    "The run was stopped, and not taken back: the next one is on its thread already.",
                    hint="Ask again once no run is live on the thread.",
                ) from None
        await self._set_aside(ended, shapes.ROLLED_BACK)

    async def delete(self, request: Request, thread_id: str, run_id: str) -> Response:
        """Take a run that has ended out of sight; what it did stays done, and recorded."""
        run = await self._plane.run(request, run_id, thread_id)
        if not run.state.terminal:
            raise errors.Conflict("The run is live.", hint="Cancel it first, or wait for its end.")
        await self._set_aside(run, shapes.DELETED)
        return Response(status_code=204)

    async def _set_aside(self, run: Run, why: str) -> None:
        await self._outlive.store.write(searching.mark(run.run_id, shapes.KEPT_UNDER, {shapes.ASIDE: why}))


def _takes_back(request: Request) -> bool:
    action = request.query_params.get("action", "interrupt")
    if action not in ("interrupt", "rollback"):
        raise errors.InvalidInput("action is interrupt or rollback.", field="action")
    return action == "rollback"


def _left_part_way(run: Run) -> bool:
    part_way = run.thread_position not in (None, Position.CLEAN)
    return run.state is State.STOPPED and run.left_by == run.run_id and part_way
