"""Outlive: agent runs that outlive the request on purpose, never by accident."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Chunk": "agents",
    "Context": "agents",
    "Event": "model",
    "EventStream": "http.sse",
    "LangGraphAgent": "agents.langgraph",
    "Limits": "limits",
    "Note": "agents",
    "Outcome": "agents",
    "Outlive": "runtime",
    "OutliveError": "errors",
    "Principal": "principal",
    "Reason": "states",
    "Run": "model",
    "RunPolicy": "policy",
    "State": "states",
    "Webhooks": "notifications",
    "agent": "agents.generator",
    "api_keys": "http.auth",
    "chat": "policy",
    "job": "policy",
    "problems": "http.problem",
    "router": "http.native",
    "stream": "http.streaming",
    "tokens": "http.tokens",
}
__all__ = [
    "Chunk",
    "Context",
    "Event",
    "EventStream",
    "LangGraphAgent",
    "Limits",
    "Note",
    "Outcome",
    "Outlive",
    "OutliveError",
    "Principal",
    "Reason",
    "Run",
    "RunPolicy",
    "State",
    "Webhooks",
    "agent",
    "api_keys",
    "chat",
    "job",
    "problems",
    "router",
    "stream",
    "tokens",
]

if TYPE_CHECKING:
    from outlive.agents import Chunk, Context, Note, Outcome
    from outlive.agents.generator import agent
    from outlive.agents.langgraph import LangGraphAgent
    from outlive.errors import OutliveError
    from outlive.http.auth import api_keys
    from outlive.http.native import router
    from outlive.http.problem import problems
    from outlive.http.sse import EventStream
    from outlive.http.streaming import stream
    from outlive.http.tokens import tokens
    from outlive.limits import Limits
    from outlive.model import Event, Run
    from outlive.notifications import Webhooks
    from outlive.policy import RunPolicy, chat, job
    from outlive.principal import Principal
    from outlive.runtime import Outlive
    from outlive.states import Reason, State


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the core must not need FastAPI or LangGraph."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"outlive.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'outlive' has no attribute {name!r}")
