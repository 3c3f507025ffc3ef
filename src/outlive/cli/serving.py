"""``outlive serve``, ``outlive worker``, ``outlive migrate``."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import signal
from types import FrameType
from typing import Annotated, Any

import typer

from outlive import errors, lease, runtime
from outlive.agents import Agent
from outlive.cli import loading, options

Target = Annotated[
    str,
    typer.Argument(help="module:attribute of an agent, a list of agents, a compiled graph or a generator."),
]
Policy = Annotated[str | None, typer.Option(help="chat or job, for a target that declares none.")]
Slots = Annotated[int, typer.Option(min=0, help="Runs that this process drives at once; 0: only serve HTTP.")]
Drain = Annotated[float, typer.Option(min=0.1, help="Seconds that shutdown may take to hand work back.")]
LEASE = lease.Timing().lease
Lease = Annotated[
    float,
    typer.Option(
        "--lease",
        min=0.5,
        help="Seconds after which the runs of a frozen or cut-off process go to another one. More than the"
        " database may take for one write.",
    ),
]


def serve(
    target: Target,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    direct_database: options.DirectDatabase = None,
    policy: Policy = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    slots: Slots = 32,
    drain: Drain = 10.0,
    lease_seconds: Lease = LEASE,
) -> None:
    """Serve agents over HTTP and drive their runs."""
    uvicorn = _uvicorn()
    agents = loading.load(target, policy)
    timing = _timing(lease_seconds)
    outlive = _outlive(agents, database, direct_database, slots=slots, drain=drain, timing=timing)
    fastapi: Any = importlib.import_module("fastapi")
    native: Any = importlib.import_module("outlive.http.native")
    application = fastapi.FastAPI(title="Outlive", lifespan=None)
    application.include_router(native.router(outlive))
    config = uvicorn.Config(application, host=host, port=port, log_level="warning", lifespan="off")
    _run(_serve(outlive, _server(uvicorn, outlive)(config)))


def work(
    target: Target,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    direct_database: options.DirectDatabase = None,
    policy: Policy = None,
    slots: Annotated[int, typer.Option(min=1, help="Runs that this process drives at once.")] = 32,
    drain: Drain = 10.0,
    lease_seconds: Lease = LEASE,
) -> None:
    """Drive runs that other processes submit; no HTTP."""
    agents = loading.load(target, policy)
    timing = _timing(lease_seconds)
    _run(_work(_outlive(agents, database, direct_database, slots=slots, drain=drain, timing=timing)))


def migrate(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    pre_only: Annotated[bool, typer.Option(help="Only what may run while the old version serves.")] = False,
    as_json: options.Json = False,
) -> None:
    """Bring the database's schema up to date."""
    applied = runtime.migrate(database, include_post=not pre_only)
    if as_json:
        typer.echo(json.dumps({"applied": applied}))
    elif applied:
        typer.echo("Applied: " + ", ".join(applied))
    else:
        typer.echo("The schema is up to date.")


def _timing(seconds: float) -> lease.Timing:
    """Keep the usual proportions in a lease that is too short for the usual renewals and margin."""
    return lease.Timing(lease=seconds, renew_every=min(0.25, seconds / 8), margin=min(1.0, seconds / 4))


def _outlive(
    agents: list[Agent],
    database: str,
    direct: str | None,
    *,
    slots: int,
    drain: float,
    timing: lease.Timing,
) -> runtime.Outlive:
    for agent in agents:
        declared = " ".join(f"{name}={value}" for name, value in agent.policy.to_dict().items())
        typer.echo(f"agent {agent.name}: {declared}", err=True)
    return runtime.Outlive(database, agents, direct_database=direct, slots=slots, drain=drain, timing=timing)


def _uvicorn() -> Any:
    try:
        return importlib.import_module("uvicorn")
    except ImportError as missing:
        raise errors.Misconfigured(
            "HTTP support is not installed.", hint="Run: pip install 'outlive[http]'"
        ) from missing


def _server(uvicorn: Any, outlive: runtime.Outlive) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        """Says where it listens; tells open streams of its end before it waits for them."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            for listening in self.servers[0].sockets if self.started else ():
                address, number = listening.getsockname()[:2]
                typer.echo(f"listening on http://{address}:{number}", err=True)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            outlive.shutdown.set()
            super().handle_exit(sig, frame)

    return Server


async def _serve(outlive: runtime.Outlive, server: Any) -> None:
    # The server raises the signal that ended it once more when it is done; by default that would end the
    # process before the runs are handed back.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: outlive.shutdown.set())
    async with outlive:
        await server.serve()


async def _work(outlive: runtime.Outlive) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with outlive:
        typer.echo(f"working on {', '.join(outlive.registry.names)}", err=True)
        await told.wait()


def _run(work_: Any) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(work_)
