"""What a disconnect commits, as experiments: run them here, on this machine, with these versions.

::

    results = lab.run(["shapes", "durability"], lab.Options(quick=True))

Every figure in a result was measured in that run. The lab needs LangGraph, FastAPI and uvicorn, and takes
PostgreSQL and nginx where they are.
"""

from __future__ import annotations

from outlive.lab.experiment import Experiment, Figure, Options, Result
from outlive.lab.report import render
from outlive.lab.run import names, run

__all__ = ["Experiment", "Figure", "Options", "Result", "names", "render", "run"]
