"""Plans for the services in `services/`."""

from __future__ import annotations

import pathlib
from typing import Any

from outlive import probe

#: Seconds that clients stay after their last chunk, so that the checkpoint before it is written.
LINGER = 0.15

SERVICES = pathlib.Path(__file__).parent / "services"


def booking(directory: pathlib.Path, shape: str, *scenarios: str, **more: Any) -> probe.Plan:
    """A plan for one of the booking agent's handlers, with its checkpoints and its effects as evidence."""
    database = more.pop("database", str(directory / "checkpoints.db"))
    server = more.pop("server", probe.Server.UVICORN)
    kind, name = ("postgres", "dsn") if database.startswith("postgresql:") else ("sqlite", "path")
    effects = str(directory / "effects.log")
    return probe.Plan(
        target=probe.Target(
            app="booking:app",
            directory=SERVICES,
            server=server,
            environment={"EFFECTS": effects, "DATABASE": database},
        ),
        request=probe.Request(path=f"/{shape}?thread={{thread}}"),
        scenarios=probe.scenarios(scenarios, linger=LINGER),
        evidence=(
            probe.Source(kind=f"langgraph-{kind}", settings={name: database}),
            probe.Source(kind="effect-log", settings={"path": effects, "column": 1, "thread_column": 0}),
        ),
        effects=("charge",),
        **more,
    )


def counting(path: str, *scenarios: str, **more: Any) -> probe.Plan:
    """A plan for one of the plain services."""
    server = more.pop("server", probe.Server.UVICORN)
    app = more.pop("app", "counting:app")
    return probe.Plan(
        target=probe.Target(app=app, directory=SERVICES, server=server),
        request=probe.Request(method="GET", path=path),
        scenarios=probe.scenarios(scenarios),
        **more,
    )
