"""The application that ``outlive serve`` serves: the router, and problems for everything else."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

import outlive as package
from outlive.http import native, problem
from outlive.runtime import Outlive


def application(outlive: Outlive, **options: Any) -> FastAPI:
    """Return an application over an ``Outlive`` that somebody else opens and closes.

    ``options`` are those of ``native.router``.  Without a ``principal`` nobody is authenticated: whoever
    reaches it may do everything.
    """
    app = FastAPI(title="Outlive", version=package.__version__)
    app.include_router(native.router(outlive, **options))
    problem.everywhere(app)
    return app
