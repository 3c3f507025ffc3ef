"""The application that ``outlive serve`` serves: the router, and problems for everything else."""

from __future__ import annotations

from fastapi import FastAPI

import outlive as package
from outlive.http import native, problem
from outlive.runtime import Outlive


def application(outlive: Outlive) -> FastAPI:
    """Return an application over an ``Outlive`` that somebody else opens and closes.

    Nobody is authenticated: whoever reaches it may do everything.
    """
    app = FastAPI(title="Outlive", version=package.__version__)
    app.include_router(native.router(outlive))
    problem.everywhere(app)
    return app
