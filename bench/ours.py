"""The same graphs behind Outlive, in the five lines that an application needs."""

from __future__ import annotations

from fastapi import FastAPI

import outlive
from bench import graphs, insight


def app(database: str) -> FastAPI:
    """Return the application over a migrated database."""
    agents = [
        outlive.LangGraphAgent(name, graphs.graph(name), policy=outlive.chat()) for name in graphs.NAMES
    ]
    service = outlive.Outlive(database, agents)
    insight.count_commits(service.store)
    application = FastAPI(lifespan=service.lifespan)
    application.include_router(outlive.router(service))
    application.include_router(insight.routes())
    return application
