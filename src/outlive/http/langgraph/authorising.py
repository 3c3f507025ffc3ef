"""Which handler of an ``Auth`` object decides about a request, and what its answer means for that request.

Decides by the route alone, before it runs: what a user may not see is not there for the route either.  A
route that is not in ``RULES`` is refused, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.datastructures import QueryParams

from outlive import errors
from outlive.agents.users import User
from outlive.http import body
from outlive.http.langgraph import crons, rules, wire
from outlive.http.langgraph.filters import Filter
from outlive.http.langgraph.handlers import Handlers
from outlive.http.langgraph.plane import Plane
from outlive.http.langgraph.rules import Of, Rule
from outlive.store import assistants, searching

Object = dict[str, Any]


class Authorising:
    """Asks the handlers about each request."""

    def __init__(self, plane: Plane, handlers: Handlers) -> None:
        self._plane = plane
        self._handlers = handlers

    async def check(self, request: Request) -> None:
        """Let a request through, with what its handler changed of it; raises ``Forbidden``, ``NotFound``."""
        if not self._handlers.decide:
            return
        rule = rules.of(request)
        sent = await self._sent(request, rule)
        match rule.of:
            case Of.BATCH:
                several = sent if isinstance(sent, list) else []
                _write(request, [await self._run(request, one, None) for one in several])
            case Of.RUN:
                _write(request, await self._run(request, sent, request.path_params.get("thread_id")))
            case Of.COMMAND:
                _write(request, await self._command(request, sent))
            case Of.ITEM:
                await self._item(request, rule, sent)
            case Of.SEVERAL:
                _write(request, await self._several(request, rule, sent))
            case _:
                await self._thing(request, rule, sent)

    async def _sent(self, request: Request, rule: Rule) -> Any:
        if request.method == "GET":
            return {}
        request._body = await body.receive(request, self._plane.body_limit)
        sent = body.parse(request._body) if request._body.strip() else {}
        if not isinstance(sent, list if rule.of is Of.BATCH else dict):
            raise errors.InvalidInput("The body is of another kind.", field="body")
        return sent

    async def _ask(self, request: Request, resource: str, action: str, value: Object) -> Filter:
        user: User = request.state.outlive_user
        return await self._handlers.ask(user, resource, action, value)

    # ------------------------------------------------------------ threads, assistants, crons

    async def _thing(self, request: Request, rule: Rule, sent: Object) -> None:
        named = {name: _id(text) for name, text in request.path_params.items() if name in _IDS}
        if "thread_id" in sent:
            named.setdefault("thread_id", _id(sent["thread_id"]))
        value = {**sent, **named}
        if rule.of is not Of.SEARCH or "metadata" in sent:
            value["metadata"] = dict(sent.get("metadata") or {})
        allowed = await self._ask(request, rule.resource, rule.action, value)
        changed = {name: one for name, one in value.items() if name not in named or name in sent}
        changed |= {name: sent[name] for name in named if name in sent}
        if rule.of is Of.NEW:
            await self._new(request, rule, changed, allowed)
            changed["metadata"] = allowed.given_to(changed["metadata"])
        elif rule.of is Of.ONE:
            await self._one(request, rule, allowed)
            if rule.action == "update" and not allowed.keeps(changed["metadata"]):
                raise errors.Forbidden("Whose this is cannot be changed so: you would not see it any more.")
        request.state.outlive_filter = allowed
        if rule.copies:
            await self._makes(request)
        if request.method != "GET" and changed != {**sent, "metadata": {}}:
            _write(request, changed)

    async def _one(self, request: Request, rule: Rule, allowed: Filter) -> None:
        """See to it that what a path names passes; what is not there at all is the route's to say."""
        path = request.path_params
        if "cron_id" in path:
            await self._cron(request, path["cron_id"], allowed)
        elif rule.resource == "assistants":
            await self._assistant(request, path["assistant_id"], allowed)
        elif "thread_id" in path:
            there = await self._thread(request, path["thread_id"], allowed, rule.unknown)
            if there is None and rule.enters:
                await self._makes(request)
        else:
            run = await self._plane.run(request, path["run_id"], None)
            await self._thread(request, run.thread, allowed, rule.unknown)
        if wire.flag(request, "cancel_on_disconnect") and rule.action == "read":
            await self._ask(request, "threads", "update", {"metadata": {}})

    async def _thread(
        self, request: Request, named: str, allowed: Filter, unknown: str = rules.THREAD
    ) -> Mapping[str, Any] | None:
        """Return a thread's metadata, None if there is none; raises ``NotFound`` for one that is hidden."""
        name = wire.thread_name(named)
        try:
            found = await self._plane.outlive.store.read(searching.find(wire.tenant(request), name))
        except errors.NotFound:
            return None
        if not allowed.passes(found.metadata):
            field = {rules.RUN: "run_id", rules.INDEX: "thread"}.get(unknown, "thread_id")
            raise errors.NotFound(unknown.format(name=name), field=field)
        return found.metadata

    async def _assistant(self, request: Request, named: str, allowed: Filter) -> None:
        found = await self._plane.assistant(wire.tenant(request), named)
        if not allowed.passes(found.metadata):
            raise errors.NotFound(f"Assistant {found.assistant_id} not found.", field="assistant_id")

    async def _cron(self, request: Request, cron_id: str, allowed: Filter) -> None:
        schedule_id = wire.uuid_of(cron_id, "cron").hex
        found = await self._plane.outlive.schedules.show(schedule_id, tenant=wire.tenant(request))
        if not allowed.passes(crons.said_of(found)):
            raise errors.NotFound("Cron not found.", field="cron_id")

    async def _new(self, request: Request, rule: Rule, new: Object, allowed: Filter) -> None:
        """See to it that nothing hidden is handed out, or built upon, by making something of its id."""
        tenant = wire.tenant(request)
        if rule.resource == "crons":
            if thread := request.path_params.get("thread_id"):
                await self._run_on(request, thread)
            await self._runnable(request, new.get("assistant_id"))
        elif rule.resource == "assistants" and isinstance(given := new.get("assistant_id"), str):
            name = str(wire.uuid_of(given, "assistant"))
            found = await self._plane.outlive.store.read(assistants.find(tenant, name))
            if found is not None and not allowed.passes(found.metadata):
                raise errors.Conflict(f"Assistant {name} already exists.", field="assistant_id")
        elif rule.resource == "threads" and isinstance(given := new.get("thread_id"), str):
            try:
                await self._thread(request, given, allowed)
            except errors.NotFound:
                name = wire.thread_name(given)
                raise errors.Conflict(f"Thread {name} already exists.", field="thread_id") from None

    async def _run_on(self, request: Request, thread: str) -> None:
        value: Object = {"thread_id": _id(thread), "metadata": {}}
        await self._thread(request, thread, await self._ask(request, "threads", "create_run", value))

    async def _makes(self, request: Request) -> None:
        """A thread that is made by the way is made like any other."""
        value: Object = {"metadata": {}}
        allowed = await self._ask(request, "threads", "create", value)
        request.state.outlive_of_new = allowed.given_to(value["metadata"])

    # ------------------------------------------------------------ runs

    async def _run(self, request: Request, sent: Any, thread: str | None) -> Object:
        """Ask about a run that is to be made; what it makes of a thread passes the handler's filter."""
        if not isinstance(sent, dict):
            raise errors.InvalidInput("A run is an object.", field="body")
        value = _value_of_run(sent, thread)
        allowed = await self._ask(request, "threads", "create_run", value)
        there = None if thread is None else await self._thread(request, thread, allowed, rules.RUN_ON)
        await self._runnable(request, value.get("assistant_id"))
        changed = {**sent, **value.pop("kwargs"), **value}
        changed = {name: one for name, one in changed.items() if name in sent or name == "metadata"}
        if there is None:
            changed["metadata"] = allowed.given_to(changed["metadata"])
        return changed

    async def _runnable(self, request: Request, named: Any) -> None:
        """A graph's own assistant is everybody's; another's configuration is for who may read it."""
        if not isinstance(named, str) or named in self._plane.graphs:
            return
        found = await self._plane.assistant(wire.tenant(request), named)
        if found.assistant_id != self._plane.own_id(found.agent):
            value: Object = {"assistant_id": uuid.UUID(found.assistant_id), "metadata": {}}
            await self._assistant(request, named, await self._ask(request, "assistants", "read", value))

    async def _command(self, request: Request, sent: Object) -> Object:
        method, params = sent.get("method"), sent.get("params") or {}
        thread = request.path_params["thread_id"]
        if method in rules.STARTS and isinstance(params, dict):
            return {**sent, "params": await self._run(request, params, thread)}
        value: Object = {"thread_id": _id(thread), "metadata": {}}
        await self._thread(request, thread, await self._ask(request, "threads", "read", value))
        return sent

    # ------------------------------------------------------------ several threads, items

    async def _several(self, request: Request, rule: Rule, sent: Object) -> Object:
        """Ask once for each thread that is named, and leave out those that are hidden."""
        ids = sent.get("thread_ids", [sent["thread_id"]] if sent.get("thread_id") else [])
        passing = []
        for one in ids if isinstance(ids, list) else []:
            value: Object = {"thread_id": _id(one), "metadata": {}}
            allowed = await self._ask(request, rule.resource, rule.action, value)
            try:
                await self._thread(request, str(one), allowed, rule.unknown)
            except errors.NotFound:
                if "thread_ids" not in sent:
                    raise
                continue
            passing.append(one)
        if "thread_ids" in sent:
            return {**sent, "thread_ids": passing}
        if not ids:
            request.state.outlive_filter = await self._ask(request, rule.resource, rule.action, dict(sent))
        return sent

    async def _item(self, request: Request, rule: Rule, sent: Object) -> None:
        """Items have no metadata: handlers say by their namespace whose they are."""
        field = rules.NAMESPACES[rule.action]
        given = dict(request.query_params) if request.method == "GET" else dict(sent)
        now = given.pop(field, None)
        labels = now.split(".") if isinstance(now, str) and now else now or []
        value: Object = {**given, "namespace": tuple(labels)}
        if rule.action == "list_namespaces" and not labels:
            value["namespace"] = None
        if await self._ask(request, "store", rule.action, value):
            raise errors.Forbidden(
                "A filter says nothing of items.",
                hint="Let a handler of @auth.on.store change the namespace, and return True.",
            )
        changed = list(value.pop("namespace") or ())
        if request.method == "GET":
            request._query_params = QueryParams({**value, field: ".".join(changed)})
        else:
            _write(request, {**value, field: changed})


_IDS = ("thread_id", "run_id", "assistant_id", "cron_id")


def _id(text: Any) -> Any:
    """Handlers are given ids as such; what is none is the route's to refuse."""
    try:
        return uuid.UUID(str(text))
    except ValueError:
        return text


def _value_of_run(sent: Object, thread: str | None) -> Object:
    known = ("assistant_id", "multitask_strategy", "if_not_exists", "after_seconds")
    value = {name: sent[name] for name in known if name in sent}
    kwargs = {name: one for name, one in sent.items() if name not in {*known, "metadata"}}
    named = {} if thread is None else {"thread_id": _id(thread)}
    return {**named, **value, "metadata": dict(sent.get("metadata") or {}), "kwargs": kwargs}


def _write(request: Request, changed: Any) -> None:
    request._body = json.dumps(changed).encode("ascii")
