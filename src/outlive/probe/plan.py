"""What to do to a service: the target, the request, the scenarios, where evidence is, and what is expected.

The nouns of a probe, and how they are read from a TOML file. Nothing here touches a service.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import pathlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class PlanError(ValueError):
    """The plan cannot be carried out as it stands; the message says what to change."""


class Server(enum.StrEnum):
    """The ASGI servers that the probe can start."""

    UVICORN = "uvicorn"
    GRANIAN = "granian"
    HYPERCORN = "hypercorn"
    GUNICORN = "gunicorn"


class Leaving(enum.StrEnum):
    """How a client's connection ends."""

    FIN = "fin"
    RST = "rst"
    HALF_CLOSE = "half-close"
    VANISH = "vanish"


class Behaviour(enum.StrEnum):
    """What the client does, beyond sending its request."""

    STAY = "stay"
    LEAVE = "leave"
    SLOW = "slow"
    RETURN = "return"
    RECONNECT = "reconnect"
    DOUBLE_CLICK = "double-click"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"


class Outcome(enum.StrEnum):
    """What a run does when its client leaves."""

    STOPS = "stops"
    COMPLETES = "completes"
    PARTIAL = "partial"
    UNCLEAR = "unclear"


class Failure(enum.StrEnum):
    """What a build may be failed on."""

    DUPLICATE_EFFECTS = "duplicate-effects"
    FORKS = "forks"
    LEAKS = "leaks"


@dataclass(frozen=True, kw_only=True)
class Target:
    """An application that the probe starts (`app`), or a service that runs already (`url`).

    `start_within` is how many seconds the application may take until it serves.
    """

    app: str | None = None
    url: str | None = None
    server: Server = Server.UVICORN
    directory: pathlib.Path = pathlib.Path()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    start_within: float = 60.0

    def __post_init__(self) -> None:
        if (self.app is None) == (self.url is None):
            raise PlanError("A target is either an app (module:attribute) or a URL: give exactly one.")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise PlanError(f"{self.url!r} is no address: it begins with http:// or https://.")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sent. `{thread}`, `{message}` and `{nonce}` are filled in wherever they stand."""

    method: str = "POST"
    path: str = "/"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    messages: tuple[str, str] = ("first message", "second message")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One behaviour with its details. `after_seconds` wins over `after_chunks` when given.

    `linger` is how many seconds to stay on after the last chunk: without it, leaving races with whatever the
    service does right after that chunk, such as writing a checkpoint.
    """

    name: str
    behaviour: Behaviour
    leaving: Leaving = Leaving.FIN
    after_chunks: int = 2
    after_seconds: float | None = None
    linger: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one piece of evidence is: its kind and the settings of that kind (see docs/probe.md)."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole probe. Times are seconds.

    `patience` bounds the wait for a run to come to rest, `quiet` is how long nothing may happen for it to
    count as at rest, `pause` how long a slow reader does not read, `grace` how long a server may take to go.
    """

    target: Target
    request: Request = Request()
    scenarios: tuple[Scenario, ...] = ()
    evidence: tuple[Source, ...] = ()
    effects: tuple[str, ...] = ()
    expect: Outcome | None = None
    fail_on: tuple[Failure, ...] = ()
    patience: float = 20.0
    quiet: float = 0.7
    pause: float = 3.0
    grace: float = 5.0
    platform: bool = False
    nginx: bool = False


def scenarios(
    names: tuple[str, ...], *, chunks: int = 2, seconds: float | None = None, linger: float = 0.0
) -> tuple[Scenario, ...]:
    """The scenarios of these names. Raises `PlanError` for an unknown one.

    `leave` may carry how: `leave-rst`, `leave-half-close`, `leave-vanish`; `leave-early`: before a chunk.
    """
    made = (_scenario(name, chunks, seconds) for name in names)
    return tuple(dataclasses.replace(scenario, linger=linger) for scenario in made)


def _scenario(name: str, chunks: int, seconds: float | None) -> Scenario:
    if name == "leave-early":
        return Scenario(name=name, behaviour=Behaviour.LEAVE, after_chunks=0)
    word, _, how = name.partition("-") if name.startswith("leave-") else (name, "", "")
    try:
        behaviour = Behaviour(word)
        leaving = Leaving(how) if how else Leaving.FIN
    except ValueError as exc:
        known = ", ".join(
            [*(b.value for b in Behaviour), *(f"leave-{way.value}" for way in Leaving), "leave-early"]
        )
        raise PlanError(f"There is no scenario {name!r}. Known: {known}.") from exc
    return Scenario(
        name=name, behaviour=behaviour, leaving=leaving, after_chunks=chunks, after_seconds=seconds
    )


def from_toml(path: pathlib.Path) -> Plan:
    """Read a plan. Raises `PlanError` naming the table or the key that is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise PlanError(f"{path} cannot be read as TOML: {exc}") from exc
    unknown = set(document) - {"target", "request", "evidence", "probe"}
    if unknown:
        raise PlanError(f"{path}: unknown table {sorted(unknown)[0]!r}.")
    try:
        return _plan(document, path.parent)
    except (TypeError, KeyError, ValueError) as exc:
        raise PlanError(f"{path}: {exc}") from exc


def _plan(document: Mapping[str, Any], directory: pathlib.Path) -> Plan:
    probe = dict(document.get("probe", {}))
    names = tuple(probe.pop("scenarios", ("stay", "leave", "return")))
    chunks, seconds = probe.pop("after_chunks", 2), probe.pop("after_seconds", None)
    linger = probe.pop("linger", 0.0)
    if "expect" in probe:
        probe["expect"] = Outcome(probe["expect"])
    probe["fail_on"] = tuple(Failure(word) for word in probe.pop("fail_on", ()))
    probe["effects"] = tuple(probe.pop("effects", ()))
    return Plan(
        target=_target(dict(document.get("target", {})), directory),
        request=_request(dict(document.get("request", {}))),
        scenarios=scenarios(names, chunks=chunks, seconds=seconds, linger=linger),
        evidence=tuple(
            Source(kind=table["kind"], settings={k: v for k, v in table.items() if k != "kind"})
            for table in document.get("evidence", ())
        ),
        **probe,
    )


def _target(table: dict[str, Any], directory: pathlib.Path) -> Target:
    table["directory"] = directory / table.get("directory", ".")
    table["server"] = Server(table.get("server", "uvicorn"))
    table["arguments"] = tuple(table.get("arguments", ()))
    return Target(**table)


def _request(table: dict[str, Any]) -> Request:
    if "json" in table:
        table["body"] = json.dumps(table.pop("json"))
    if "messages" in table:
        first, second = table["messages"]
        table["messages"] = (first, second)
    return Request(**table)
