"""How a request for a run becomes a submit: which agent, which policy, what is kept of the request.

What only this protocol knows of is kept in the run's metadata, under one name, where the graph's call is made
from it too.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import Request

from outlive import errors, seams
from outlive.agents import users
from outlive.agents.langgraph import LangGraphAgent
from outlive.http.langgraph import shapes, wire
from outlive.http.langgraph.bodies import NewRun
from outlive.http.langgraph.frames import Wanted
from outlive.http.langgraph.plane import Plane
from outlive.model import Submitted
from outlive.policy import Durability, OnBusy, RunPolicy
from outlive.store import deleting, searching
from outlive.store.assistants import Assistant

ON_TORN, GRACE, KEY = "Outlive-On-Torn", "Outlive-Grace", "Idempotency-Key"
"""What these clients can say only by a header, or by a query parameter of that name in small letters."""
_ON_TORN: Mapping[str | None, str] = {"interrupt": "restart"}
"""A message that interrupts is not to wait for what it interrupted."""


async def submit(
    plane: Plane,
    request: Request,
    new: NewRun,
    *,
    thread: str | None,
    viewer: str | None = None,
    modes: frozenset[str] | None = None,
) -> Submitted:
    """Make the run that a request asks for, on the thread of that name, or on one of its own.

    ``modes`` are those that are recorded, if not those of the request.

    Raises ``NotFound`` for a thread that is not there, unless the request says to make it.
    """
    tenant, principal = wire.tenant(request), wire.who(request).id
    assistant = await plane.assistant(tenant, new.assistant_id)
    agent = plane.graph(assistant)
    _check_place(new, thread)
    if thread is not None and new.on_completion is not None:
        raise errors.InvalidInput("on_completion is for runs without a thread.", field="on_completion")
    about = {"graph_id": assistant.agent, "assistant_id": assistant.assistant_id}
    if thread is not None:
        more = plane.said_by_maker(request, new.metadata)
        await _thread(plane, tenant, thread, about, make=new.if_not_exists == "create", more=more)
    made = await plane.outlive.submit(
        agent.name,
        _input(new),
        thread=thread,
        key=_key(request),
        tenant=tenant,
        principal=principal,
        policy=_policy(request, new, agent),
        not_before=time.time() + new.after_seconds if new.after_seconds else None,
        metadata={shapes.KEPT_UNDER: _kept(request, new, assistant, agent, modes)},
        viewer=viewer,
        webhook=new.webhook,
        traceparent=request.headers.get("traceparent"),
    )
    if thread is None and (more := plane.said_by_maker(request, new.metadata)):
        await plane.outlive.store.write(searching.say(tenant, made.run.thread, {**more, **about}))
    if thread is None and new.on_completion != "keep":
        await plane.outlive.store.write(deleting.pass_after(tenant, made.run.thread, plane.kept))
    if made.run.policy.on_busy is OnBusy.ROLLBACK:
        for displaced in made.displaced:
            aside = {shapes.ASIDE: shapes.ROLLED_BACK}
            await plane.outlive.store.write(searching.mark(displaced.run_id, shapes.KEPT_UNDER, aside))
    return made


def _check_place(new: NewRun, thread: str | None) -> None:
    """A checkpoint of another thread would be looked for on this one."""
    named = new.checkpoint.thread_id if new.checkpoint is not None and new.fork else None
    if named is not None and (thread is None or wire.thread_name(named) != thread):
        raise errors.InvalidInput("The checkpoint is of another thread.", field="checkpoint.thread_id")


async def _thread(
    plane: Plane,
    tenant: str,
    thread: str,
    about: dict[str, str],
    *,
    make: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    store = plane.outlive.store
    try:
        found = await store.read(searching.find(tenant, thread))
    except errors.NotFound:
        if not make:
            raise errors.NotFound(f"Thread {thread} not found.", field="thread_id") from None
        await store.write(searching.make(seams.new_id(), tenant, thread, {**more, **about}))
        return
    if any(found.metadata.get(name) != value for name, value in about.items()):
        await store.write(searching.say(tenant, thread, about))


def _key(request: Request) -> str | None:
    """Users of one tenant do not know each other: the same key of two is two."""
    key, user = said(request, KEY), getattr(request.state, "outlive_user", None)
    if key is None or user is None:
        return key
    return hashlib.sha256(json.dumps([user.identity, key]).encode("ascii")).hexdigest()


def _input(new: NewRun) -> Any:
    if new.command is None:
        return new.input
    return {"command": new.command.given()}


async def scheduled(plane: Plane, request: Request, new: NewRun, *, thread: str | None) -> dict[str, Any]:
    """Return what a schedule has of a request for its runs: agent, input, policy, and what is kept.

    Raises ``NotFound`` for a thread that is not there.
    """
    tenant = wire.tenant(request)
    assistant = await plane.assistant(tenant, new.assistant_id)
    agent = plane.graph(assistant)
    if thread is not None:
        about = {"graph_id": assistant.agent, "assistant_id": assistant.assistant_id}
        await _thread(plane, tenant, thread, about, make=False)
    return {
        "agent": agent.name,
        "input": _input(new),
        "policy": _changes(request, new),
        "metadata": _kept(request, new, assistant, agent, None),
    }


def _policy(request: Request, new: NewRun, agent: LangGraphAgent) -> RunPolicy:
    return agent.policy.but(**_changes(request, new))


def _changes(request: Request, new: NewRun) -> dict[str, Any]:
    durability = new.durability
    if durability is None and new.checkpoint_during is not None:
        durability = Durability.ASYNC if new.checkpoint_during else Durability.EXIT
    asked: dict[str, Any] = {
        "on_disconnect": new.on_disconnect,
        "on_busy": new.multitask_strategy,
        "on_torn": said(request, ON_TORN) or _ON_TORN.get(new.multitask_strategy),
        "grace": _seconds(said(request, GRACE)),
        "durability": durability,
    }
    return {name: value for name, value in asked.items() if value is not None}


def said(request: Request, header: str) -> str | None:
    """Return what a header says, or the query parameter of its name in small letters with underscores."""
    return request.headers.get(header) or request.query_params.get(header.lower().replace("-", "_"))


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise errors.InvalidInput(f"{GRACE} is a number of seconds.", field=GRACE) from None


def _kept(
    request: Request,
    new: NewRun,
    assistant: Assistant,
    agent: LangGraphAgent,
    modes: frozenset[str] | None,
) -> dict[str, Any]:
    """Return what is kept of the request: how the graph is to be called, and what a reader is shown of it."""
    wanted = Wanted(modes=frozenset(new.modes), subgraphs=new.stream_subgraphs)
    call = {
        "config": _with_user(request, merged(assistant.config, new.config)),
        "context": _context(assistant.context, new.context),
        "interrupt_before": new.interrupt_before,
        "interrupt_after": new.interrupt_after,
        "checkpoint_id": new.fork,
        "modes": sorted((wanted.recorded() if modes is None else modes) - agent.modes),
    }
    sent = new.model_dump(mode="json", exclude={"metadata", "assistant_id"}, exclude_unset=True)
    return {
        "assistant_id": assistant.assistant_id,
        "metadata": new.metadata or {},
        "call": {name: value for name, value in call.items() if value},
        "kwargs": sent,
    }


def _with_user(request: Request, config: dict[str, Any]) -> dict[str, Any]:
    """Return a config that says on whose behalf the graph is called, whatever the caller said of that."""
    config, user = users.without(config), getattr(request.state, "outlive_user", None)
    if user is None:
        return config
    return {**config, "configurable": {**(config.get("configurable") or {}), **users.said_of(user)}}


def merged(first: Any, second: Any) -> dict[str, Any]:
    """Return an assistant's config with a run's own on top."""
    config = {**first, **second}
    configurable = {**(first.get("configurable") or {}), **(second.get("configurable") or {})}
    return {**config, "configurable": configurable} if configurable else config


def _context(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {**first, **second}
    return first if second is None else second
