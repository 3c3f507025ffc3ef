"""The same booking agent served by Outlive, where what leaving means is declared and not implied."""

from __future__ import annotations

import os

from fastapi import FastAPI

from outlive import policy
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import native
from outlive.lab.services import graphs
from outlive.runtime import Outlive

#: An URL as Outlive takes it: sqlite:///file or postgresql://...
DATABASE_VARIABLE = "OUTLIVE_LAB_URL"

# No grace, so that what a disconnect does is seen at once; each request says which policy it wants.
_agent = LangGraphAgent(
    "booking", graphs.chain().compile(), policy=policy.chat(grace=0), modes=["updates"], subgraphs=False
)
_outlive = Outlive(os.environ[DATABASE_VARIABLE], [_agent])

app = FastAPI(lifespan=_outlive.lifespan)
app.include_router(native.router(_outlive))
