"""Finding what somebody named as ``module:attribute`` on the command line."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable
from typing import Any

from outlive import errors, policy
from outlive.agents import Agent
from outlive.agents.generator import GeneratorAgent


def load(target: str, preset: str | None) -> list[Agent]:
    """Import the agent, or the agents, that ``target`` names.

    A bare graph or async generator function has no policy of its own and takes the ``preset``; its name is
    the attribute's.  Raises ``Misconfigured``.
    """
    attribute = target.partition(":")[2]
    found = _found(target)
    several = isinstance(found, Iterable) and not isinstance(found, str) and not hasattr(found, "stream")
    items = list(found) if several else [found]
    if not items:
        raise errors.Misconfigured(
            f"{target} is an empty list: there is nothing to serve.", hint="Put agents into it."
        )
    if preset is not None and all(_is_agent(item) for item in items):
        raise errors.Misconfigured(
            f"{target} declares a policy of its own.", hint="Leave --policy out, or change the agent."
        )
    return [_agent(item, attribute, preset) for item in items]


def load_graph(target: str) -> Any:
    """Import a compiled graph, or that of an agent; raises ``Misconfigured``."""
    found = _found(target)
    found = getattr(found, "graph", found) if _is_agent(found) else found
    if not (hasattr(found, "astream") and hasattr(found, "get_graph")):
        raise errors.Misconfigured(
            f"{target} is no compiled graph.", hint="Name the result of .compile(), or an agent of one."
        )
    return found


def load_module(name: str) -> Any:
    """Import a module, from here as well; raises ``Misconfigured``."""
    return _module(name)


def is_agents(target: str) -> bool:
    """Say whether what is named declares policies of its own."""
    found = _found(target)
    several = isinstance(found, Iterable) and not isinstance(found, str) and not hasattr(found, "stream")
    return all(map(_is_agent, found if several else [found]))


def _found(target: str) -> Any:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise errors.Misconfigured(
            f"{target!r} names no attribute.", hint="Write module:attribute, for example app:agent."
        )
    return _attribute(_module(module_name), attribute)


def _module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (name == missing.name or name.startswith(f"{missing.name}.")):
            raise errors.Misconfigured(
                f"{name} cannot be imported: it needs {missing.name!r}, which is not installed.",
                hint="Install it into this environment.",
            ) from missing
        raise errors.Misconfigured(
            f"There is no module {missing.name!r}.", hint="Run the command where the module can be imported."
        ) from missing


def _attribute(module: Any, dotted: str) -> Any:
    found = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            raise errors.Misconfigured(
                f"{module.__name__} has no attribute {dotted!r}.", hint="Check what follows the colon."
            )
        found = getattr(found, name)
    return found


def _is_agent(found: Any) -> bool:
    return all(hasattr(found, name) for name in ("name", "policy", "drains", "stream"))


def _agent(found: Any, name: str, preset: str | None) -> Agent:
    if _is_agent(found):
        agent: Agent = found
        return agent
    declared = _preset(name, preset)
    if hasattr(found, "astream") and hasattr(found, "get_graph"):
        langgraph = importlib.import_module("outlive.agents.langgraph")
        wrapped: Agent = langgraph.LangGraphAgent(name, found, policy=declared)
        return wrapped
    if inspect.isasyncgenfunction(found):
        return GeneratorAgent(name, found, policy=declared)
    hint = "Name a compiled graph: the result of .compile()." if hasattr(found, "compile") else None
    raise errors.Misconfigured(
        f"{name!r} is neither an agent, nor a compiled graph, nor an async generator function.",
        hint=hint or "Name one of these, or a list of them.",
    )


def _preset(name: str, preset: str | None) -> policy.RunPolicy:
    if preset is None:
        raise errors.Misconfigured(
            f"{name!r} declares no policy.", hint="Add --policy chat or --policy job, or wrap it in an agent."
        )
    if preset not in policy.PRESETS:
        known = ", ".join(policy.PRESETS)
        raise errors.Misconfigured(f"There is no policy {preset!r}.", hint=f"Use one of: {known}.")
    return policy.PRESETS[preset]()
