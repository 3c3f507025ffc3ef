"""The files of a run over HTTP: listed and fetched, once its verdict has linked them.

Decides how a file is handed out.  An agent made it, perhaps of what a stranger said, so a browser must never
take it for a page of ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import anyio
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from outlive import errors
from outlive.http import body, problem
from outlive.runtime import Outlive

HARMLESS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-transform",
}


def add(scoped: APIRouter, outlive: Outlive) -> None:
    """Add the routes to a router whose requests are authenticated."""
    routes = _Routes(outlive)
    problem.readable(scoped, "/runs/{run_id}/artifacts", routes.index)
    problem.readable(scoped, "/runs/{run_id}/artifacts/{name}", routes.fetch)


@dataclass(frozen=True, slots=True)
class _Routes:
    outlive: Outlive

    async def index(self, request: Request, run_id: str) -> Response:
        """List the files that a run made; none before it has ended."""
        found = await self.outlive.artifacts(run_id, tenant=request.state.outlive_tenant)
        return body.Json({"run_id": run_id, "artifacts": [artifact.public() for artifact in found]})

    async def fetch(self, request: Request, run_id: str, name: str) -> Response:
        """Fetch one."""
        found = await self.outlive.artifacts(run_id, tenant=request.state.outlive_tenant)
        artifact = next((artifact for artifact in found if artifact.name == name), None)
        root = self.outlive.artifact_root
        if artifact is None or root is None:
            raise errors.NotFound(f"Run {run_id} has no such artifact.", run_id=run_id, field="name")
        path = root.find(run_id, artifact)
        try:
            found_there = await anyio.to_thread.run_sync(os.stat, path)
        except OSError:
            raise errors.NotFound(
                f"The file {name!r} of run {run_id} is not here.",
                hint="Every process must have the same artifacts directory.",
                run_id=run_id,
            ) from None
        return FileResponse(
            path,
            media_type="application/octet-stream",
            filename=artifact.name,
            headers=HARMLESS,
            stat_result=found_there,
        )
