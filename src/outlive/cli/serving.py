"""``outlive serve``, ``outlive worker``, ``outlive migrate``."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
from types import FrameType
from typing import Annotated, Any, assert_never

import typer

from outlive import errors, lease, runtime, settings
from outlive.agents import Agent
from outlive.cli import checks, ending, langgraph_json, listening, loading, options, reloading, told, watched

Target = Annotated[
    str,
    typer.Argument(help="module:attribute of an agent, a list of agents, a compiled graph or a generator."),
]
Served = Annotated[
    str | None,
    typer.Argument(
        help="module:attribute of an agent, a list of agents, a compiled graph or a generator; "
        "or a langgraph.json."
    ),
]
Policy = Annotated[str | None, typer.Option(help="chat or job, for a target that declares none.")]
MIGRATING = ("database",)


@options.settable(options.FLAGS, graphs=True)
def serve(
    loaded: settings.Loaded, target: Served = None, *, policy: Policy = None, graphs: str | None = None
) -> None:
    """Serve agents over HTTP and drive their runs.

    Named with --config, a langgraph.json says which graphs; they are served under the LangGraph protocol.
    """
    _serve_found(_found(target, graphs, policy), loaded.settings)


@options.settable(options.FLAGS, graphs=True)
def dev(
    loaded: settings.Loaded,
    target: Served = None,
    *,
    policy: Policy = None,
    graphs: str | None = None,
    reload: Annotated[bool, typer.Option(help="Start again when a Python file here has changed.")] = True,
) -> None:
    """Serve graphs on this machine while you write them: the database is made, nobody is asked who they are.

    Without a target it serves the langgraph.json of this folder.
    """
    chosen = loaded.settings
    if chosen.auth != "none" or chosen.allow_anyone:
        raise errors.Misconfigured(
            "outlive dev asks nobody who they are, and answers this machine only.", hint="Use: outlive serve"
        )
    if reload and not os.environ.get(reloading.MARK):
        reloading.run()
        return
    runtime.migrate(chosen.database)
    if target is None and graphs is None:
        graphs = "langgraph.json"
    _serve_found(_found(target, graphs, policy), chosen)


def _found(target: str | None, graphs: str | None, preset: str | None) -> langgraph_json.LangGraphJson:
    """Find what is to be served: what a target or a langgraph.json names."""
    named = [one for one in (target, graphs) if one is not None]
    if len(named) != 1:
        raise errors.Misconfigured(
            "There must be one thing to serve." if named else "There is nothing to serve.",
            hint="Name module:attribute, or a file with --config langgraph.json.",
        )
    if langgraph_json.is_one(named[0]):
        found = langgraph_json.load(named[0], preset)
        for entry in found.ignored:
            typer.echo(f"{named[0]}: {entry} has no meaning here, and is ignored", err=True)
        return found
    return langgraph_json.LangGraphJson(agents=loading.load(named[0], preset), protocol=False)


def _asks(found: langgraph_json.LangGraphJson) -> bool:
    """Whether the file's own handlers say who asks."""
    return found.auth is not None


def _serve_found(found: langgraph_json.LangGraphJson, chosen: settings.Settings) -> None:
    uvicorn, application = _import("uvicorn"), _import("outlive.http.application")
    if _asks(found) and chosen.auth != "none":
        raise errors.Misconfigured(
            f"Who asks is said twice: by auth.path, and by --auth {chosen.auth}.",
            hint="Leave out one of them.",
        )
    for resource in found.auth.undecided if _asks(found) else ():
        typer.echo(
            f"auth: no handler decides about {resource}, so every user may do everything there", err=True
        )
    outlive = _outlive(found.agents, chosen, slots=chosen.slots)
    config = uvicorn.Config(
        application.application(
            outlive,
            principal=_principal(outlive, chosen),
            rotate=chosen.rotate,
            heartbeat=chosen.heartbeat,
            body_limit=chosen.request_bytes,
            langgraph=found.protocol or chosen.langgraph,
            custom=found.app,
            auth=found.auth,
        ),
        log_level="warning",
        lifespan="off",
        timeout_keep_alive=listening.KEPT,
        timeout_graceful_shutdown=chosen.drain / 2,  # else who reads nothing would be waited for without end
    )
    with listening.bound(
        chosen.host, chosen.port, anywhere=chosen.auth != "none" or chosen.allow_anyone or _asks(found)
    ) as listener:
        end = _ending(chosen)
        end.run(_serve(outlive, _server(uvicorn, outlive, end)(config), listener, end, chosen))


@options.settable(options.EXECUTING)
def work(loaded: settings.Loaded, target: Target, *, policy: Policy = None) -> None:
    """Drive runs that other processes submit; no HTTP."""
    chosen = loaded.settings
    if not chosen.slots:
        raise errors.Misconfigured(
            f"slots ({loaded.origins['slots']}): a worker without slots does nothing.",
            hint="Give it at least 1.",
        )
    outlive = _outlive(loading.load(target, policy), chosen, slots=chosen.slots)
    end = _ending(chosen)
    end.run(_work(outlive, end, chosen))


@options.settable(MIGRATING)
def migrate(
    loaded: settings.Loaded,
    *,
    pre_only: Annotated[bool, typer.Option(help="Only what may run while the old version serves.")] = False,
    as_json: options.Json = False,
) -> None:
    """Bring the database's schema up to date."""
    applied = runtime.migrate(loaded.settings.database, include_post=not pre_only)
    if as_json:
        typer.echo(json.dumps({"applied": applied}))
    elif applied:
        typer.echo("Applied: " + ", ".join(applied))
    else:
        typer.echo("The schema is up to date.")


def _timing(seconds: float) -> lease.Timing:
    """Keep the usual proportions in a lease that is too short for the usual renewals and margin."""
    return lease.Timing(lease=seconds, renew_every=min(0.25, seconds / 8), margin=min(1.0, seconds / 4))


def _outlive(agents: list[Agent], chosen: settings.Settings, *, slots: int) -> runtime.Outlive:
    for agent in agents:
        declared = " ".join(f"{name}={value}" for name, value in agent.policy.to_dict().items())
        typer.echo(f"agent {agent.name}: {declared}", err=True)
    for name in chosen.agent_limits.keys() - {agent.name for agent in agents}:
        typer.echo(f"agent {name}: has limits, and is not served here", err=True)
    outlive = runtime.Outlive(
        chosen.database,
        agents,
        direct_database=chosen.direct_database,
        slots=slots,
        drain=chosen.drain,
        timing=_timing(chosen.lease),
        viewer_lease=chosen.viewer_lease,
        limits=chosen.principal_limits,
        agent_limits=chosen.limits_by_agent,
        artifacts=chosen.artifacts,
        max_event_bytes=chosen.max_event_bytes,
        retention=chosen.retention,
        webhooks=told.webhooks(chosen),
    )
    watched.traces(outlive, chosen)
    outlive.signals.payloads = chosen.log_payloads
    return outlive


def who_may_come(chosen: settings.Settings) -> checks.Finding:
    """Say who is let in, for ``outlive doctor``."""
    try:
        if chosen.auth == "jwt":
            _tokens(chosen)
    except errors.Misconfigured as failure:
        return checks.fail("auth", failure.message, failure.hint)
    if chosen.auth != "none":
        return checks.ok("auth", f"By {chosen.auth}.")
    if chosen.allow_anyone:
        return checks.warn(
            "auth", "Whoever reaches the service may do everything.", "Set auth to keys or jwt."
        )
    return checks.ok("auth", "Nobody is authenticated, so only this machine is answered.")


def _principal(outlive: runtime.Outlive, chosen: settings.Settings) -> Any:
    """Return the dependency that says who asks; raises ``Misconfigured``."""
    auth = _import("outlive.http.auth")
    match chosen.auth:
        case "none":
            return auth.nobody if chosen.allow_anyone else auth.this_machine
        case "keys":
            return auth.api_keys(outlive)
        case "jwt":
            return _tokens(chosen)
        case _:
            assert_never(chosen.auth)


def _tokens(chosen: settings.Settings) -> Any:
    return _import("outlive.http.tokens", extra="jwt").tokens(
        key=chosen.jwt_key.get_secret_value() if chosen.jwt_key else None,
        key_set=chosen.jwt_key_set,
        algorithms=chosen.jwt_algorithms,
        issuer=chosen.jwt_issuer or "",
        audience=chosen.jwt_audience or "",
        tenant_claim=chosen.jwt_tenant_claim,
    )


def _import(module: str, *, extra: str = "http") -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise errors.Misconfigured(
            f"Serving over HTTP needs {missing.name}, which is not installed.",
            hint=f"Run: pip install 'outlive[{extra}]'",
        ) from missing


def _server(uvicorn: Any, outlive: runtime.Outlive, ending_: ending.Ending) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        """Says where it listens; tells streams and work under way of the end before it waits for them."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            address, port = sockets[0].getsockname()[:2]
            shown = f"[{address}]" if ":" in address else address
            typer.echo(f"listening on http://{shown}:{port}", err=True)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            ending_.begin()
            outlive.shutdown.set()
            super().handle_exit(sig, frame)

    return Server


async def _serve(
    outlive: runtime.Outlive,
    server: Any,
    listener: socket.socket,
    ending_: ending.Ending,
    chosen: settings.Settings,
) -> None:
    def end(*_: object) -> None:
        ending_.begin()
        outlive.shutdown.set()
        server.should_exit = True

    # For signals before the server's own handlers are in place, and after: it raises the signal that ended it
    # once more when it is done, which by default would end the process before the runs are handed back.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    async with outlive, watched.metrics(outlive, chosen):
        await server.serve(sockets=[listener])


async def _work(outlive: runtime.Outlive, ending_: ending.Ending, chosen: settings.Settings) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def end(*_: object) -> None:
        ending_.begin()  # here and not in the loop, which an agent may block
        loop.call_soon_threadsafe(told.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    async with outlive, watched.metrics(outlive, chosen):
        typer.echo(f"working on {', '.join(outlive.registry.names)}", err=True)
        await told.wait()


def _ending(chosen: settings.Settings) -> ending.Ending:
    watched.log(chosen)
    return ending.Ending(chosen.drain)
