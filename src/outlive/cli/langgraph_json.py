"""A ``langgraph.json``: graphs, environment, and what else of it makes sense here.

Decides what each entry means without the platform that the file was written for.  What has no meaning here is
named, so that nothing is left out in silence.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from outlive import errors, policy
from outlive.agents import Agent

_USED = frozenset({"graphs", "env", "dependencies", "auth", "http", "store"})
_GUARDS = "enable_custom_route_auth"
_OF_A_BUILD = frozenset(
    {
        "$schema",
        "python_version",
        "node_version",
        "pip_config_file",
        "pip_installer",
        "dockerfile_lines",
        "base_image",
        "image_distro",
        "keep_pkg_tools",
        "api_version",
        "source",
    }
)
"""Entries that say how an image is built: nothing is built here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LangGraphJson:
    """What a file says.  ``app`` is imported, and ``auth`` has the handlers; ``ignored`` has no meaning here.

    ``protocol``: the graphs are served under the LangGraph protocol.
    """

    agents: list[Agent]
    protocol: bool = True
    app: Any = None
    auth: Any = None
    ignored: tuple[str, ...] = field(default=())


def is_one(target: str) -> bool:
    """Say whether a target of the command line is such a file."""
    return target.endswith(".json")


def load(file: str, preset: str | None) -> LangGraphJson:
    """Read a file and import what it names; raises ``Misconfigured``, which names the entry that is wrong."""
    path = Path(file)
    said = _read(path)
    home = path.resolve().parent
    _environment(said.get("env"), home)
    _importable(said.get("dependencies") or ["."], home)
    graphs = said.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise errors.Misconfigured(
            f"{file} names no graphs.", hint='Add "graphs": {"agent": "./agent.py:graph"}.'
        )
    declared = policy.PRESETS[_preset(preset)]()
    http = said.get("http") or {}
    ttl = _lifetimes(said.get("store") or {})
    return LangGraphJson(
        agents=[_agent(name, entry, home, declared, ttl) for name, entry in graphs.items()],
        app=_named(http["app"], home) if http.get("app") else None,
        auth=_auth(said.get("auth") or {}, http, home),
        ignored=_ignored(said, http),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        said = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise errors.Misconfigured(
            f"There is no file {path}.", hint="Name a langgraph.json, or module:graph."
        ) from None
    except (OSError, ValueError) as failure:
        raise errors.Misconfigured(
            f"{path} cannot be read: {failure}.", hint="It must be a JSON object."
        ) from None
    if not isinstance(said, dict):
        raise errors.Misconfigured(
            f"{path} is no JSON object.", hint="See the documentation of langgraph.json."
        )
    return said


def _preset(preset: str | None) -> str:
    chosen = preset or "server"
    if chosen not in policy.PRESETS:
        raise errors.Misconfigured(
            f"There is no policy {chosen!r}.", hint=f"Use one of: {', '.join(policy.PRESETS)}."
        )
    return chosen


def _ignored(said: Mapping[str, Any], http: Mapping[str, Any]) -> tuple[str, ...]:
    named = [name for name in said if name not in _USED | _OF_A_BUILD]
    inner = [f"store.{name}" for name in said.get("store") or {} if name not in ("ttl", "index")]
    auth = said.get("auth") or {}
    # Nobody comes in past the handlers here, Studio's users neither, so to disable that is granted.
    inner += [f"auth.{name}" for name in auth if name != "path" and auth[name] is not True]
    return (*named, *inner, *(f"http.{name}" for name in http if name not in ("app", _GUARDS)))


def _auth(auth: Mapping[str, Any], http: Mapping[str, Any], home: Path) -> Any:
    if http.get(_GUARDS):  # to leave it out would let everybody in
        raise errors.Misconfigured(
            f"http.{_GUARDS} is not supported: the routes of http.app see to who asks by themselves.",
            hint="Take the entry out, and guard those routes in the application.",
        )
    if not auth.get("path"):
        return None
    handlers = importlib.import_module("outlive.http.langgraph.handlers")
    return handlers.Handlers(_named(auth["path"], home))


def _lifetimes(store: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how long items of the graphs' memory live, in minutes; None: for ever, unless they say so."""
    if store.get("index"):  # to leave it out would answer every search by meaning with anything
        raise errors.Misconfigured(
            "store.index asks for a search by meaning, which there is not here.",
            hint="Take the entry out, or compile the graph with a store of its own.",
        )
    ttl = store.get("ttl")
    if ttl is None:
        return None
    numbers = {"default_ttl", "sweep_interval_minutes"}
    wrong = [
        name
        for name, value in (ttl.items() if isinstance(ttl, dict) else [("ttl", ttl)])
        if not (
            (name in numbers and isinstance(value, int | float) and not isinstance(value, bool) and value > 0)
            or (name == "refresh_on_read" and isinstance(value, bool))
        )
    ]
    if wrong:
        raise errors.Misconfigured(
            f"store.ttl cannot be used: {', '.join(wrong)}.",
            hint="It has default_ttl and sweep_interval_minutes, in minutes, and refresh_on_read.",
        )
    found: dict[str, Any] = ttl
    return {"refresh_on_read": True, **found}


# ------------------------------------------------------------ the environment


def _environment(entry: Any, home: Path) -> None:
    """Set what is not set already: what was started with a variable means it."""
    if entry is None:
        return
    given = entry if isinstance(entry, dict) else _env_file(home / str(entry))
    for name, value in given.items():
        if value is not None:
            os.environ.setdefault(name, str(value))


def _env_file(path: Path) -> Mapping[str, str | None]:
    if not path.is_file():
        raise errors.Misconfigured(
            f"There is no file {path}, which env names.", hint="Make it, or leave env out."
        )
    found: Mapping[str, str | None] = importlib.import_module("dotenv").dotenv_values(path)
    return found


def _importable(dependencies: Any, home: Path) -> None:
    for entry in reversed(dependencies if isinstance(dependencies, list) else []):
        folder = home / str(entry)
        if folder.is_dir() and str(folder.resolve()) not in sys.path:
            sys.path.insert(0, str(folder.resolve()))


# ------------------------------------------------------------ what is named


def _named(entry: Any, home: Path) -> Any:
    """Import ``./file.py:attribute`` or ``module:attribute``."""
    text = entry.get("path") if isinstance(entry, dict) else entry
    where, colon, attribute = str(text).rpartition(":")
    if not colon:
        raise errors.Misconfigured(f"{text!r} names no attribute.", hint="Write ./file.py:attribute.")
    module = _file(home / where) if where.endswith(".py") else _module(where)
    if not hasattr(module, attribute):
        raise errors.Misconfigured(
            f"{where} has no attribute {attribute!r}.", hint="Check what follows the colon."
        )
    return getattr(module, attribute)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise errors.Misconfigured(
            f"{name} cannot be imported: there is no module {missing.name!r}.",
            hint="Install it, or check the name.",
        ) from missing


def _file(path: Path) -> ModuleType:
    """Import a file once, under its own name if that is free: what imports it by name finds the same one."""
    resolved = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(resolved):
            return module
    spec = importlib.util.spec_from_file_location(resolved.stem, resolved)
    if spec is None or spec.loader is None or not resolved.is_file():
        raise errors.Misconfigured(
            f"There is no file {path}.", hint="Paths are relative to the langgraph.json."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(resolved.stem, module)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        raise errors.Misconfigured(
            f"{path} cannot be imported: there is no module {missing.name!r}.", hint="Install it."
        ) from missing
    return module


def _agent(
    name: str, entry: Any, home: Path, declared: policy.RunPolicy, ttl: Mapping[str, Any] | None
) -> Agent:
    graph = _graph(name, _named(entry, home))
    wrapped: Agent = importlib.import_module("outlive.agents.langgraph").LangGraphAgent(
        name, graph, policy=declared, store_ttl=ttl
    )
    return wrapped


def _graph(name: str, found: Any) -> Any:
    """Return a compiled graph: itself, a builder's, or what a function returns when it is called once."""
    if inspect.isroutine(found) and not hasattr(found, "astream"):
        found = _called(name, found)
    if hasattr(found, "astream") and hasattr(found, "get_graph"):
        return found
    if hasattr(found, "compile"):
        return found.compile()
    raise errors.Misconfigured(
        f"{name!r} is neither a graph nor a function that returns one.",
        hint="Name a compiled graph, or its builder.",
    )


def _called(name: str, make: Any) -> Any:
    """A function that makes a graph is called once, with an empty config if it wants one."""
    wants = [one for one in inspect.signature(make).parameters.values() if one.default is one.empty]
    if len(wants) > 1 or inspect.isasyncgenfunction(make):
        raise errors.Misconfigured(
            f"{name!r} is a function that cannot be called with a config alone.",
            hint="Name a compiled graph instead.",
        )
    made = make(*({"configurable": {}} for _ in wants))
    return asyncio.run(made) if inspect.iscoroutine(made) else made
