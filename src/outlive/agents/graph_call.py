"""How a run becomes one call of its graph, the first time or taken up again.

Decides what a caller may set of the call and what is ours to say, and what must not happen twice when an
attempt follows another.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import All, Command, Send

from outlive import agents, errors
from outlive.agents import graph_end, users
from outlive.agents.position import Graph, Position, position_of

Make = Callable[[agents.Context], Any]
Nodes = All | Sequence[str]

KEPT_UNDER = "langgraph"
"""Where in a run's metadata the LangGraph protocol keeps its request, with how the graph is to be called."""
REFS = "checkpoint_refs"
"""A mode of our own: the addresses of checkpoints, without the states in them."""
_RESUME = "__resume__"
_ID = re.compile("[0-9a-f]{32}")
"""What an interrupt's id looks like; LangGraph tells answers by id from others by that."""
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
    """What a graph is called with; ``ignored`` names what the caller may not set.

    ``fork`` is the checkpoint that the call starts from (None: the thread's newest), ``before`` and ``after``
    are nodes at which this call stops although the graph does not, ``modes`` what is recorded beside what the
    agent records anyway.
    """

    input: Any
    config: RunnableConfig
    context: Any
    ignored: tuple[str, ...] = ()
    fork: str | None = None
    before: Nodes = ()
    after: Nodes = ()
    modes: frozenset[str] = frozenset()

    @property
    def begins(self) -> bool:
        """Whether it brings something new to its thread, rather than going on with what is there."""
        return self.input is not None and not isinstance(self.input, Command)


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
        asked = _asked(context)
        return Call(
            input=(self.input or _default_input)(context),
            config=config,
            context=make_context(context),
            ignored=ignored,
            fork=asked.get("checkpoint_id"),
            before=asked.get("interrupt_before") or (),
            after=asked.get("interrupt_after") or (),
            modes=frozenset(asked.get("modes") or ()),
        )


def asked_for(modes: frozenset[str]) -> frozenset[str]:
    """Return the modes to ask a graph for; values and updates always, for they tell how it ended."""
    wanted = modes | {"values", "updates"}
    return wanted - {REFS} | {"checkpoints"} if REFS in wanted else wanted


def reference(checkpoint: Any) -> dict[str, Any]:
    """Return the address of a checkpoint, and how it came about, without the state in it."""
    own, parent = (_checkpoint_id(checkpoint.get(name)) for name in ("config", "parent_config"))
    metadata = checkpoint.get("metadata") or {}
    shown = {"id": own, "step": metadata.get("step"), "source": metadata.get("source")}
    return {**shown, "parent_id": parent} if parent else shown


def _checkpoint_id(config: Any) -> str | None:
    found: str | None = ((config or {}).get("configurable") or {}).get("checkpoint_id")
    return found


def _asked(context: agents.Context) -> Mapping[str, Any]:
    """Return how the graph is to be called, as far as a request of the LangGraph protocol says."""
    kept = context.metadata.get(KEPT_UNDER)
    call = kept.get("call") if isinstance(kept, dict) else None
    return call if isinstance(call, dict) else {}


def _default_input(context: agents.Context) -> Any:
    given = context.input
    if not is_command(given):
        return given
    command = given["command"]
    if not command.keys() <= {"resume", "update", "goto"}:
        raise errors.InvalidInput("A command has the fields resume, update and goto.", field="input.command")
    goto = places(command.get("goto"))
    return Command(resume=command.get("resume"), update=command.get("update"), goto=goto)


def places(goto: Any) -> list[Any]:
    """Return where a command says to go on, one place or several; raises ``InvalidInput``."""
    return [_place(one) for one in (goto if isinstance(goto, list) else [goto]) if one is not None]


def _place(goto: Any) -> Any:
    """Return a node's name, or what is sent to one: ``{"node": name, "input": value}``."""
    if isinstance(goto, str):
        return goto
    if isinstance(goto, dict) and isinstance(goto.get("node"), str):
        return Send(goto["node"], goto.get("input", goto.get("arg")))
    raise errors.InvalidInput(
        "goto is a node's name, or an object with node and input.", field="input.command"
    )


def _default_config(context: agents.Context) -> Any:
    return _asked(context).get("config") or context.metadata.get("config")


def is_answer(given: Any) -> bool:
    """Say whether a run's input answers a question that an earlier run paused with."""
    return is_command(given) and "resume" in given["command"]


def check_answer(answer: Any, asked: Sequence[str]) -> None:
    """Raise ``InvalidInput`` for one answer to several questions, and for one to a question nobody asked.

    LangGraph fails the run for the first, and takes the second for an answer that never comes.
    """
    open_ = ", ".join(dict.fromkeys(asked))
    by_id = isinstance(answer, dict) and bool(answer) and all(_ID.fullmatch(str(key)) for key in answer)
    wrong = [key for key in answer if key not in asked] if by_id and asked else []
    if wrong:
        told = f"The thread does not ask {wrong[0]}."
    elif not by_id and len(set(asked)) > 1:
        told = "The thread asks several questions, and this answer does not say to which it belongs."
    else:
        return
    hint = f"Send {{id: answer}} as resume. The open questions are: {open_}."
    raise errors.InvalidInput(told, hint=hint, field="input.command.resume")


def is_command(given: Any) -> bool:
    """Say whether a run's input is a command to its graph."""
    return isinstance(given, dict) and given.keys() == {"command"} and isinstance(given["command"], dict)


def _default_context(context: agents.Context) -> Any:
    return _asked(context).get("context") or context.metadata.get("context")


def _config(context: agents.Context, asked: Any) -> tuple[RunnableConfig, tuple[str, ...]]:
    """Build the config of what was asked for, except what is ours to say."""
    if not isinstance(asked, Mapping):
        raise errors.InvalidInput("The graph's config must be an object.", field="metadata.config")
    run = context.run
    config = {key: value for key, value in asked.items() if key in _CONFIG}
    about = {
        key: value for key, value in context.metadata.items() if key not in ("config", "context", KEPT_UNDER)
    }
    kept = context.metadata.get(KEPT_UNDER)
    if isinstance(kept, dict):
        about.update(kept.get("metadata") or {}, assistant_id=kept.get("assistant_id"), graph_id=run.agent)
    about.update(config.get("metadata") or {})
    configurable = dict(config.get("configurable") or {})
    config["metadata"] = {
        **{key: value for key, value in about.items() if key not in _OUR_METADATA},
        "thread_id": run.thread,  # the caller's name for it; LangGraph would show our internal one
        "run_id": run.origin,
    }
    config["configurable"] = {
        **{key: value for key, value in users.in_config(configurable).items() if not _is_ours(key)},
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


async def forked(graph: Graph, context: agents.Context, call: Call) -> Call:
    """Have a call start from the checkpoint that it names, unless this run has begun it already."""
    if call.fork is None:
        return call
    config: RunnableConfig = {"configurable": {"thread_id": context.run.thread_id}}
    state = await graph.aget_state(config)
    if (state.metadata or {}).get("run_id") == context.run.origin:
        return call
    configurable = {**call.config.get("configurable", {}), "checkpoint_id": call.fork}
    return dataclasses.replace(
        call, config=cast("RunnableConfig", {**call.config, "configurable": configurable})
    )


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
