"""How a run becomes one call of its graph, the first time or taken up again.

Decides what a caller may set of the call and what is ours to say, and what must not happen twice when an
attempt follows another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from outlive import agents, errors
from outlive.agents import graph_end
from outlive.agents.position import Graph, Position, position_of

Make = Callable[[agents.Context], Any]

_RESUME = "__resume__"
_CONFIG = frozenset({"configurable", "max_concurrency", "metadata", "recursion_limit", "tags"})
# Addresses of checkpoints are ours to choose: a client that set them would write into, or read from, another
# thread.  Keys with two underscores steer LangGraph itself.
_OUR_CONFIGURABLE = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "run_id"})
# What LangGraph keeps in a checkpoint's metadata, and trusts when it reads it back.
_OUR_METADATA = frozenset(
    {"source", "step", "parents", "writes", "counters_since_delta_snapshot", "thread_id", "run_id"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What a graph is called with; ``ignored`` names what the caller may not set."""

    input: Any
    config: RunnableConfig
    context: Any
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Maker:
    """Makes the call of a run; each part may be an application's own function."""

    input: Make | None = None
    config: Make | None = None
    context: Make | None = None

    def call(self, context: agents.Context, *callbacks: Any) -> Call:
        """Return the call; raises ``InvalidInput`` if the run's input or metadata cannot be used."""
        make_config = self.config or _default_config
        make_context = self.context or _default_context
        config, ignored = _config(context, make_config(context) or {})
        config["callbacks"] = list(callbacks)
        return Call(
            input=(self.input or _default_input)(context),
            config=config,
            context=make_context(context),
            ignored=ignored,
        )


def _default_input(context: agents.Context) -> Any:
    given = context.input
    if not (isinstance(given, dict) and given.keys() == {"command"} and isinstance(given["command"], dict)):
        return given
    command = given["command"]
    if command.keys() != {"resume"}:
        raise errors.InvalidInput("A command must have the one field resume.", field="input.command")
    return Command(resume=command["resume"])


def _default_config(context: agents.Context) -> Any:
    return context.metadata.get("config")


def is_answer(given: Any) -> bool:
    """Say whether a run's input answers a question that an earlier run paused with."""
    command = given.get("command") if isinstance(given, dict) and given.keys() == {"command"} else None
    return isinstance(command, dict) and command.keys() == {"resume"}


def _default_context(context: agents.Context) -> Any:
    return context.metadata.get("context")


def _config(context: agents.Context, asked: Any) -> tuple[RunnableConfig, tuple[str, ...]]:
    """Build the config of what was asked for, except what is ours to say."""
    if not isinstance(asked, Mapping):
        raise errors.InvalidInput("The graph's config must be an object.", field="metadata.config")
    run = context.run
    config = {key: value for key, value in asked.items() if key in _CONFIG}
    about = {key: value for key, value in context.metadata.items() if key not in ("config", "context")}
    about.update(config.get("metadata") or {})
    configurable = dict(config.get("configurable") or {})
    config["metadata"] = {
        **{key: value for key, value in about.items() if key not in _OUR_METADATA},
        "thread_id": run.thread,  # the caller's name for it; LangGraph would show our internal one
        "run_id": run.origin,
    }
    config["configurable"] = {
        **{key: value for key, value in configurable.items() if not _is_ours(key)},
        "thread_id": run.thread_id,
    }
    ignored = (
        *(f"config.{key}" for key in asked if key not in _CONFIG),
        *(f"metadata.{key}" for key in about if key in _OUR_METADATA),
        *(f"config.configurable.{key}" for key in configurable if _is_ours(key)),
    )
    return cast("RunnableConfig", config), ignored


def _is_ours(key: str) -> bool:
    return key in _OUR_CONFIGURABLE or key.startswith("__")


# ---------------------------------------------------------------- taken up again


async def taken_up(graph: Graph, context: agents.Context, call: Call) -> Call | agents.Outcome:
    """Decide how a run goes on that an earlier attempt, or an earlier run of its chain, may have begun.

    LangGraph resumes it by its run id.  Two things must not happen then: passing a breakpoint that the run
    had come to, which any resume does, and giving an answer a second time, to whatever asks next.
    """
    config: RunnableConfig = {"configurable": {"thread_id": context.run.thread_id}}
    state = await graph.aget_state(config, subgraphs=True)
    waits = await position_of(graph, state) is Position.WAITING
    ours = (state.metadata or {}).get("run_id") == context.run.origin
    if waits and (ours or await _was_heard(graph, config, call.input)):
        return graph_end.waiting(graph, state.values, state.interrupts)
    if ours and isinstance(call.input, Command):
        return dataclasses.replace(call, input=None)
    return call


async def _was_heard(graph: Graph, config: RunnableConfig, given: Any) -> bool:
    """Tell whether a task that waits has already taken this answer, to an earlier question of its own.

    A person who answers two questions of one task alike may be asked once more: better than an answer to a
    question that nobody was shown.
    """
    if not isinstance(given, Command):
        return False
    found = await cast("BaseCheckpointSaver[Any]", graph.checkpointer).aget_tuple(config)
    answers = [given.resume, *(given.resume.values() if isinstance(given.resume, dict) else ())]
    return any(
        channel == _RESUME and isinstance(value, list) and value[-1:] and value[-1] in answers
        for _, channel, value in (found.pending_writes if found else None) or ()
    )
