"""Commands of the event stream protocol: begin a run, answer a question, look at states.

Every command is answered, by what it came to or by an error of a fixed list; what was refused never becomes
something else.  New input on a thread that waits is an error which names the question, not its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
from fastapi import APIRouter, Request, Response

from outlive import errors
from outlive.http import body
from outlive.http.langgraph import bodies, channels, requests, states, wire
from outlive.http.langgraph.bodies import Object
from outlive.http.langgraph.plane import Plane
from outlive.http.langgraph.tape import MODES
from outlive.policy import OnDisconnect
from outlive.states import State
from outlive.store import searching
from outlive.store.searching import FoundThread

Result = dict[str, Any]
MOMENT = 10.0
"""Seconds for which an answer waits for the run that asked, which may have other work to end."""


class Command(wire.Body):
    """The envelope."""

    id: int = pydantic.Field(ge=0, le=2**53)
    method: str = pydantic.Field(max_length=200)
    params: Object = pydantic.Field(default_factory=dict)


class RunStart(wire.Body):
    """A run to begin; the strategy has a name of each spelling."""

    assistant_id: str
    input: Any = None
    config: Object | None = None
    context: Any = None
    metadata: Object | None = None
    multitask_strategy: bodies.Strategy | None = pydantic.Field(
        default=None, validation_alias=pydantic.AliasChoices("multitask_strategy", "multitaskStrategy")
    )


class Answer(wire.Body):
    """An answer to one question."""

    interrupt_id: str
    response: Any = None
    namespace: list[str] = pydantic.Field(default_factory=list)


class Respond(wire.Body):
    """Answers to one question or to several."""

    interrupt_id: str | None = None
    response: Any = None
    namespace: list[str] = pydantic.Field(default_factory=list)
    responses: list[Answer] | None = None
    update: Any = None
    goto: Any = None
    config: Object | None = None
    metadata: Object | None = None

    def answers(self) -> dict[str, Any]:
        """Return the answers by their questions; raises ``InvalidInput`` if there is none."""
        if self.responses:
            return {one.interrupt_id: one.response for one in self.responses}
        if self.interrupt_id is None:
            raise errors.InvalidInput("There is no interrupt_id.", field="interrupt_id")
        return {self.interrupt_id: self.response}


class StateGet(wire.Body):
    """Which state is asked for."""

    checkpoint_id: str | None = None
    namespace: list[str] = pydantic.Field(default_factory=list)


class ListCheckpoints(wire.Body):
    """Which checkpoints are asked for."""

    limit: int = pydantic.Field(default=10, ge=1, le=1000)
    before: str | None = None


class Fork(wire.Body):
    """A run that starts from a checkpoint."""

    checkpoint_id: str
    input: Any = None
    config: Object | None = None


class CommandError(errors.Refused):
    """A command that cannot be carried out, by the protocol's own word for it."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the route."""
    here = Commands(plane)
    routes.post("/threads/{thread_id}/commands")(here.post)


class Commands:
    """Carries commands out, whichever way they came."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._outlive = plane.outlive
        self._methods: dict[str, Callable[[Request, str, Object], Awaitable[Result]]] = {
            "run.start": self._start,
            "input.respond": self._respond,
            "state.get": self._state,
            "state.listCheckpoints": self._checkpoints,
            "state.fork": self._fork,
            "agent.getTree": self._tree,
        }

    async def post(self, request: Request, thread_id: str) -> Response:
        """Carry a command out and answer it."""
        try:
            command = await self._plane.read(request, Command)
        except errors.InvalidInput as failure:
            raise errors.BadRequest(failure.message, field=failure.field) from None
        return body.Json(await self.answer(request, wire.thread_name(thread_id), command))

    async def answer(self, request: Request, thread: str, command: Command) -> Result:
        """Return the answer to a command, which may be that it cannot be carried out."""
        carry_out = self._methods.get(command.method)
        if carry_out is None:
            known = command.method == "input.inject"
            return _refused(
                command.id,
                "not_supported" if known else "unknown_command",
                f"{command.method} is not supported."
                if known
                else f"There is no command {command.method!r}.",
            )
        try:
            before = await self._applied(request, thread)
            result = await carry_out(request, thread, command.params)
        except errors.Refused as failure:
            return _refused(command.id, _word(failure), failure.message)
        return {"type": "success", "id": command.id, "result": result, "meta": before}

    async def _applied(self, request: Request, thread: str) -> Result:
        """Before a command that begins something: what it begins comes after this."""
        try:
            found = await self._outlive.store.read(searching.find(wire.tenant(request), thread))
        except errors.NotFound:
            return {"applied_through_seq": 0}
        return channels.applied(found.thread)

    # ------------------------------------------------------------ runs

    async def _start(self, request: Request, thread: str, params: Object) -> Result:
        wanted = wire.typed(RunStart, params)
        sent = wanted.model_dump(exclude_unset=True)
        return await self._begin(request, thread, sent)

    async def _begin(self, request: Request, thread: str, fields: Object) -> Result:
        given = {name: value for name, value in fields.items() if value is not None or name == "input"}
        new = wire.typed(bodies.NewRun, {"if_not_exists": "create", **given})
        new.on_disconnect = OnDisconnect.CONTINUE  # nothing here is tied to a connection
        made = await requests.submit(self._plane, request, new, thread=thread, modes=MODES)
        return {"run_id": wire.shown_id(made.run.run_id)}

    async def _respond(self, request: Request, thread: str, params: Object) -> Result:
        wanted = wire.typed(Respond, params)
        found = await self._found(request, thread)
        await self._until_it_waits(request, thread)
        state = await states.read(self._plane, found, wire.tenant(request), subgraphs=True)
        asked = {one["id"] for one in questions(state)}
        answers = wanted.answers()
        for interrupt_id in answers:
            if interrupt_id not in asked:
                raise CommandError(
                    "no_such_interrupt", f"The thread does not wait for {interrupt_id[:100]!r}."
                )
        command: Object = {"resume": answers}
        command |= {
            name: getattr(wanted, name) for name in ("update", "goto") if getattr(wanted, name) is not None
        }
        runs = await self._outlive.runs(tenant=wire.tenant(request), thread=thread, limit=1)
        fields: Object = {"assistant_id": _assistant(found, runs), "command": command}
        fields |= {"config": wanted.config, "metadata": wanted.metadata}
        return await self._begin(request, thread, fields)

    async def _until_it_waits(self, request: Request, thread: str) -> None:
        """A question is heard a moment before the run that asks it has ended: its answer is not too early."""
        tenant = wire.tenant(request)
        for run in await self._outlive.runs(tenant=tenant, thread=thread, state=State.RUNNING, limit=1):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MOMENT):
                    await self._outlive.result(run.run_id, tenant=tenant)

    async def _fork(self, request: Request, thread: str, params: Object) -> Result:
        wanted = wire.typed(Fork, params)
        found = await self._found(request, thread)
        runs = await self._outlive.runs(tenant=wire.tenant(request), thread=thread, limit=1)
        fields = {
            "assistant_id": _assistant(found, runs),
            "checkpoint_id": wanted.checkpoint_id,
            "input": wanted.input,
            "config": wanted.config,
        }
        return {**await self._begin(request, thread, fields), "thread_id": thread}

    # ------------------------------------------------------------ states

    async def _found(self, request: Request, thread: str) -> FoundThread:
        try:
            return await self._outlive.store.read(searching.find(wire.tenant(request), thread))
        except errors.NotFound:
            raise errors.NotFound(f"Thread {thread} not found.", field="thread_id") from None

    async def _state(self, request: Request, thread: str, params: Object) -> Result:
        wanted = wire.typed(StateGet, params)
        found = await self._found(request, thread)
        try:
            state = await states.read(
                self._plane,
                found,
                wire.tenant(request),
                checkpoint_id=wanted.checkpoint_id,
                namespace="|".join(wanted.namespace),
            )
        except errors.NotFound as failure:
            raise CommandError("no_such_checkpoint", failure.message) from None
        shown: Result = {"values": state["values"] or {}}
        if state["checkpoint"]:
            shown["checkpoint"] = {"id": state["checkpoint"]["checkpoint_id"]}
        return shown

    async def _checkpoints(self, request: Request, thread: str, params: Object) -> Result:
        wanted = wire.typed(ListCheckpoints, params)
        found = await self._found(request, thread)
        history = await states.history(
            self._plane, found, wire.tenant(request), limit=wanted.limit, before=wanted.before
        )
        return {"checkpoints": [_summary(state) for state in history]}

    async def _tree(self, request: Request, thread: str, params: Object) -> Result:
        del params
        found = await self._found(request, thread)
        runs = await self._outlive.runs(tenant=wire.tenant(request), thread=thread, limit=1)
        how = _STATUS[found.status]
        return {
            "tree": {
                "namespace": [],
                "status": how,
                "graph_name": runs[0].agent if runs else "",
                "children": [],
            }
        }


_STATUS = {
    searching.ThreadStatus.BUSY: "running",
    searching.ThreadStatus.IDLE: "completed",
    searching.ThreadStatus.INTERRUPTED: "interrupted",
    searching.ThreadStatus.ERROR: "failed",
}


def questions(state: Result) -> list[Result]:
    """Return what a state waits for, in its subgraphs as well."""
    found: list[Result] = []
    for task in state.get("tasks") or ():
        found += task["interrupts"]
        if isinstance(task.get("state"), dict):
            found += questions(task["state"])
    return found


def _assistant(found: FoundThread, runs: list[Any]) -> str:
    named = found.metadata.get("assistant_id") or (runs[0].agent if runs else None)
    if not isinstance(named, str):
        raise errors.NotFound("Nothing has run on this thread.", field="thread_id")
    return named


def _summary(state: Result) -> Result:
    parent = state["parent_checkpoint"]
    shown = {
        "id": state["checkpoint"]["checkpoint_id"],
        "step": state["metadata"].get("step"),
        "source": state["metadata"].get("source"),
        "timestamp": state["created_at"],
    }
    return {**shown, "parent_id": parent["checkpoint_id"]} if parent else shown


def _word(failure: errors.Refused) -> str:
    if isinstance(failure, CommandError):
        return failure.word
    if isinstance(failure, errors.NothingToAnswer):
        return "no_such_interrupt"
    if isinstance(failure, errors.Unauthenticated | errors.Forbidden):
        return "permission_denied"
    known = isinstance(failure, errors.InvalidInput | errors.NotFound | errors.ThreadLeft)
    return "invalid_argument" if known else "unknown_error"


def _refused(command: int, word: str, message: str) -> Result:
    return {"type": "error", "id": command, "error": word, "message": message}
