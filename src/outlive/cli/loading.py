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
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise errors.Misconfigured(
            f"{target!r} names no attribute.", hint="Write module:attribute, for example app:agent."
        )
    found = _attribute(_module(module_name), attribute)
    if isinstance(found, Iterable) and not hasattr(found, "stream"):
        return [_agent(item, attribute, preset) for item in found]
    return [_agent(found, attribute, preset)]


def _module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise errors.Misconfigured(
            f"There is no module {missing.name!r}.", hint="Run the command where the module can be imported."
        ) from missing


def _attribute(module: Any, dotted: str) -> Any:
    found = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            raise errors.Misconfigured(f"{module.__name__} has no attribute {dotted!r}.")
        found = getattr(found, name)
    return found


def _agent(found: Any, name: str, preset: str | None) -> Agent:
    if hasattr(found, "policy") and hasattr(found, "stream") and hasattr(found, "name"):
        agent: Agent = found
        return agent
    declared = _preset(name, preset)
    if hasattr(found, "astream") and hasattr(found, "get_graph"):
        langgraph = importlib.import_module("outlive.agents.langgraph")
        wrapped: Agent = langgraph.LangGraphAgent(name, found, policy=declared)
        return wrapped
    if inspect.isasyncgenfunction(found):
        return GeneratorAgent(name, found, policy=declared)
    raise errors.Misconfigured(
        f"{name!r} is neither an agent, nor a compiled graph, nor an async generator function."
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
