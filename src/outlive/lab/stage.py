"""The booking service in processes of its own, with the probe's client, recorder and evidence around it.

One start serves many scenarios; each is judged against the undisturbed run of the same path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping

from outlive.lab.services import booking, graphs, savers
from outlive.probe import evidence, findings, plan, scenario, target
from outlive.probe.findings import Finding
from outlive.probe.scenario import Trace
from outlive.probe.target import Started

APP = "outlive.lab.services.booking:app"
OUTLIVE_APP = "outlive.lab.services.with_outlive:app"
OUTLIVE_VARIABLE = "OUTLIVE_LAB_URL"
MIDDLEWARE_VARIABLE = "OUTLIVE_LAB_MIDDLEWARE"

#: Seconds without a happening that count as rest.
QUIET = 0.3

#: Clients stay so many seconds after their last chunk. Cuts in the middle of a checkpoint's write have an
#: experiment of their own; here the write shall be over, however busy the machine.
LINGER = 0.1


class Service:
    """A running booking service."""

    def __init__(
        self,
        running: Started,
        sources: tuple[plan.Source, ...],
        request: Callable[[str], plan.Request] = lambda path: plan.Request(path=_with_thread(path)),
    ) -> None:
        self.running = running
        self._sources = sources
        self._request = request
        self._undisturbed: dict[str, Trace] = {}

    def stage(self, path: str, url: str | None = None) -> scenario.Stage:
        """Where scenarios of one path are played; `url` is of what stands before the service, if anything."""
        sources = [evidence.build(source) for source in self._sources]
        return scenario.Stage(self.plan(path), self.running, sources, url=url)

    def plan(self, path: str) -> plan.Plan:
        """The plan of one path; the thread is added to it."""
        return plan.Plan(
            target=plan.Target(app=APP),
            request=self._request(path),
            evidence=self._sources,
            quiet=QUIET,
            patience=15.0,
        )

    def play(
        self, path: str, name: str, *, chunks: int = 2, like: str | None = None, url: str | None = None
    ) -> Finding:
        """One scenario, judged against the undisturbed run of `like` (default: the same path)."""
        base = like or path
        if base not in self._undisturbed:
            (stay,) = plan.scenarios(("stay",))
            self._undisturbed[base] = self.stage(base).play(stay)
        (wanted,) = plan.scenarios((name,), chunks=chunks, linger=LINGER)
        trace = self.stage(path, url).play(wanted)
        return findings.judge(self.plan(path), trace, self._undisturbed[base])

    def rest(self, mark: int) -> None:
        """Wait until nothing happens any more that began after this mark of the tape."""
        self.running.recorder.settle(mark, quiet=QUIET, patience=20, alive=self.running.alive)

    def judge(self, path: str, trace: Trace) -> Finding:
        """A trace that an experiment made by itself, judged against the undisturbed run of its path."""
        if path not in self._undisturbed:
            (stay,) = plan.scenarios(("stay",))
            self._undisturbed[path] = self.stage(path).play(stay)
        return findings.judge(self.plan(path), trace, self._undisturbed[path])


@contextlib.contextmanager
def service(
    directory: pathlib.Path,
    database: str,
    *,
    workers: int = 1,
    worker: bool = False,
    server: plan.Server = plan.Server.UVICORN,
    slow: float = 0.0,
) -> Iterator[Service]:
    """Start the service on a database, with its tables made beforehand.

    `worker` adds the separate worker; `slow` is how many seconds each checkpoint's write takes on top.
    """
    directory.mkdir(parents=True, exist_ok=True)
    savers.set_up(database)
    effects = str(directory / "effects.log")
    environment = {graphs.EFFECTS_VARIABLE: effects, booking.DATABASE_VARIABLE: database, **_quiet_tracing()}
    environment[savers.SLOW_VARIABLE] = str(slow)
    if worker:
        environment[booking.WORKER_VARIABLE] = str(directory / "orders.db")
    aim = plan.Target(
        app=APP,
        server=server,
        directory=directory,
        environment=environment,
        arguments=("--workers", str(workers)) if workers > 1 else (),
    )
    kind, name = ("postgres", "dsn") if savers.is_postgres(database) else ("sqlite", "path")
    sources = (
        plan.Source(kind=f"langgraph-{kind}", settings={name: database}),
        plan.Source(kind="effect-log", settings={"path": effects, "column": 2, "thread_column": 1}),
    )
    with target.opened(aim) as running:
        assert isinstance(running, Started)
        yield Service(running, sources)


def has_outlive() -> bool:
    """Whether this installation can serve agents, and not only look at them."""
    return all(importlib.util.find_spec(name) for name in ("outlive.runtime", "outlive.http.native"))


@contextlib.contextmanager
def outlive(
    directory: pathlib.Path,
    *,
    server: plan.Server = plan.Server.UVICORN,
    arguments: tuple[str, ...] = (),
    middleware: bool = False,
) -> Iterator[Service]:
    """The same agent served by Outlive on SQLite; a path is the `on_disconnect` that the request asks for.

    `arguments` are the server's own; `middleware` puts a `BaseHTTPMiddleware` around the application.
    """
    directory.mkdir(parents=True, exist_ok=True)
    effects = str(directory / "effects.log")
    url = f"sqlite:///{directory / 'outlive.db'}"
    environment = {graphs.EFFECTS_VARIABLE: effects, OUTLIVE_VARIABLE: url, **_quiet_tracing()}
    if middleware:
        environment[MIDDLEWARE_VARIABLE] = "1"
    aim = plan.Target(
        app=OUTLIVE_APP, server=server, directory=directory, environment=environment, arguments=arguments
    )
    with target.opened(aim) as running:
        assert isinstance(running, Started)
        sources = (
            plan.Source(kind="effect-log", settings={"path": effects, "column": 2}),
            plan.Source(kind="outlive", settings={"url": running.url}),
        )
        yield Service(running, sources, _run_of_outlive)


def _run_of_outlive(on_disconnect: str) -> plan.Request:
    body = {
        "agent": "booking",
        "input": {"steps": []},
        "thread": "{thread}",
        "on_disconnect": on_disconnect,
    }
    headers = {"accept": "text/event-stream", "idempotency-key": "{nonce}"}
    return plan.Request(path="/runs", headers=headers, body=json.dumps(body))


def _with_thread(path: str) -> str:
    return f"/{path}{'&' if '?' in path else '?'}thread={{thread}}"


def _quiet_tracing() -> Mapping[str, str]:
    # A developer's own tracing settings must not send what an experiment does to a server.
    return {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
