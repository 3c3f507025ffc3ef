"""The routes of the ledger: look at effects, settle the open ones, approve those that need it.

Decides paths, bodies and status codes; what they do is ``effects.desk``'s.  Who settled or approved is the
request's principal, never a field of its body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Query, Request, Response

from outlive.http import body, problem
from outlive.model import Run, Thread
from outlive.runtime import Outlive

SETTLE_LIMIT = 256 * 1024
"""Bytes of a body that settles or approves."""
NEWEST = 50
"""Effects that a thread shows."""


class Settlement(pydantic.BaseModel):
    """What became of an effect."""

    model_config = pydantic.ConfigDict(extra="forbid")

    executed: pydantic.StrictBool
    result: Any = None


class Approval(pydantic.BaseModel):
    """What is allowed, and for how many seconds."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str
    key: pydantic.StrictStr | pydantic.StrictInt | list[pydantic.StrictStr | pydantic.StrictInt]
    inputs: Any = None
    lasts: float = pydantic.Field(default=3600.0, strict=True, gt=0, allow_inf_nan=False)


def add(scoped: APIRouter, outlive: Outlive) -> None:
    """Add the routes to a router whose requests are authenticated."""
    routes = _Routes(outlive)
    problem.readable(scoped, "/effects", routes.index)
    problem.readable(scoped, "/effects/{effect_id}", routes.read)
    problem.readable(scoped, "/runs/{run_id}/effects", routes.of_run)
    settle = {"requestBody": _content(Settlement)}
    scoped.post("/effects/{effect_id}/settle", openapi_extra=settle)(routes.settle)
    approve = {"requestBody": _content(Approval)}
    scoped.post("/approvals", status_code=201, openapi_extra=approve)(routes.approve)


async def of_run(outlive: Outlive, run: Run) -> dict[str, Any]:
    """What a run shows of its effects: nothing, if it had none."""
    summary = await outlive.effects.summary(run)
    return {} if summary is None else {"effects": summary}


async def of_thread(outlive: Outlive, thread: Thread) -> dict[str, Any]:
    """What a thread shows of its runs' effects: nothing, if they had none."""
    found = await outlive.effects.of_thread(thread.thread_id, limit=NEWEST)
    return {"effects": [effect.public() for effect in found]} if found else {}


@dataclass(frozen=True, slots=True)
class _Routes:
    """The handlers.  Each has the principal from the router's dependency."""

    outlive: Outlive

    async def index(
        self, *, request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 50, unsettled: bool = False
    ) -> Response:
        """List effects, newest first; with ``unsettled`` those whose outcome is open, oldest first."""
        found = await self.outlive.effects.newest(tenant=_tenant(request), limit=limit, unsettled=unsettled)
        return body.Json({"effects": [effect.public() for effect in found]})

    async def of_run(
        self, request: Request, run_id: str, limit: Annotated[int, Query(ge=1, le=1000)] = 1000
    ) -> Response:
        """List a run's effects, and those of the runs that it continues, in order."""
        run = await self.outlive.run(run_id, tenant=_tenant(request))
        found = await self.outlive.effects.of_run(run, limit=limit)
        return body.Json({"run_id": run_id, "effects": [effect.public() for effect in found]})

    async def read(self, request: Request, effect_id: str) -> Response:
        """Read one effect."""
        return body.Json((await self.outlive.effects.show(effect_id, tenant=_tenant(request))).public())

    async def settle(self, request: Request, effect_id: str) -> Response:
        """Say what became of an effect that was cut in flight."""
        said, _ = await body.read(request, Settlement, SETTLE_LIMIT)
        effect = await self.outlive.effects.settle(
            effect_id, executed=said.executed, result=said.result, by=_by(request), tenant=_tenant(request)
        )
        return body.Json(effect.public())

    async def approve(self, request: Request) -> Response:
        """Allow an effect to start once."""
        allowed, _ = await body.read(request, Approval, SETTLE_LIMIT)
        approval_id = await self.outlive.effects.approve(
            allowed.name,
            allowed.key,
            inputs=allowed.inputs,
            lasts=allowed.lasts,
            by=_by(request),
            tenant=_tenant(request),
        )
        return body.Json({"approval_id": approval_id}, 201)


def _tenant(request: Request) -> str:
    name: str = request.state.outlive_tenant
    return name


def _by(request: Request) -> str:
    who = request.state.outlive_principal
    return f"http:{who.id}" if who.id else "http"


def _content(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}
