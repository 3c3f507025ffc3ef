"""The same booking agent served by Outlive, where what leaving means is declared and not implied."""

from __future__ import annotations

import os

from fastapi import FastAPI, Request, Response
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from outlive import policy
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import native
from outlive.lab.services import graphs
from outlive.runtime import Outlive

#: An URL as Outlive takes it: sqlite:///file or postgresql://...
DATABASE_VARIABLE = "OUTLIVE_LAB_URL"

#: Set to put the middleware between server and application that is known to hide disconnects.
MIDDLEWARE_VARIABLE = "OUTLIVE_LAB_MIDDLEWARE"

# No grace, so that what a disconnect does is seen at once; each request says which policy it wants.
_agent = LangGraphAgent(
    "booking", graphs.chain().compile(), policy=policy.chat(grace=0), modes=["updates"], subgraphs=False
)
_outlive = Outlive(os.environ[DATABASE_VARIABLE], [_agent])

app = FastAPI(lifespan=_outlive.lifespan)
app.include_router(native.router(_outlive))


async def _passing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


if MIDDLEWARE_VARIABLE in os.environ:
    app.add_middleware(BaseHTTPMiddleware, dispatch=_passing)
