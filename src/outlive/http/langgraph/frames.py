"""A run's events as the LangGraph protocol streams them.

Decides which events a client sees that asked for some modes, under which names, and what an end looks like.
Every frame has an id, ``<run>:<seq>``, so that every stream can be gone on with; where an event becomes
several frames, all but the last say which of them they are: ``<run>:<seq>.<place>``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from langchain_core.messages import AIMessageChunk

from outlive.http import sse
from outlive.http.langgraph import wire
from outlive.model import Event, EventKind
from outlive.states import Reason, State

_TUPLES = "messages-tuple"
_NAME_THREADS = frozenset({"checkpoints", "debug", "events", "tasks"})
"""Modes in which LangGraph tells where a checkpoint is: it knows a thread by our name for it."""
_NOT_RECORDED = frozenset({"lifecycle"})
"""What it would tell is on every stream: ``metadata`` and ``end``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What one client asked for."""

    modes: frozenset[str]
    subgraphs: bool = False

    def recorded(self) -> frozenset[str]:
        """Return the modes that the graph must be asked for."""
        named = {"messages" if mode == _TUPLES else mode for mode in self.modes - _NOT_RECORDED}
        return frozenset(named)


@dataclass(kw_only=True, slots=True)
class Frames:
    """The frames of one run for one client, who has seen the events up to ``after`` already.

    ``part`` is how many frames of the event behind those it has seen as well.  It must be given every event
    from the run's first one, for what ``messages`` shows of a message is all of it so far.  ``thread`` is our
    id of the run's thread, and what clients call it.

    ``repeats``: the client has some of it already and cannot say how much.  It adds the words of a message to
    those that it has, so each message is taken from it first.
    """

    run_id: str
    thread: tuple[str, str]
    wanted: Wanted
    after: int = 0
    part: int = 0
    repeats: bool = False
    _messages: dict[str, Any] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _taken: set[str] = field(default_factory=set)

    def of(self, events: Sequence[Event]) -> Iterator[tuple[bytes, int]]:
        """Yield the frames of ``events``, each with the seq that a client has seen behind it."""
        for event in events:
            frames = list(self._frames(event))
            if self.repeats:
                yield from self._taken_away(event)
            if event.seq > self.after:
                yield from self._numbered(frames, event.seq)

    def _taken_away(self, event: Event) -> Iterator[tuple[bytes, int]]:
        """Take a message away before its first words come.  Without an id: it is no event of the run."""
        mode, *namespace = (event.mode or "").split("|")
        if (
            mode != "messages"
            or _TUPLES not in self.wanted.modes
            or (namespace and not self.wanted.subgraphs)
        ):
            return
        message_id = event.data[0].get("id")
        if message_id not in self._taken:
            self._taken.add(message_id)
            data = json.dumps([{"type": "remove", "id": message_id, "content": ""}, {}])
            yield sse.frame(event="|".join(("messages", *namespace)), data=data), event.seq - 1

    def frames(self, event: Event) -> list[tuple[str, str]]:
        """Return the names and data of the frames of one event."""
        return list(self._frames(event))

    def _numbered(self, frames: Sequence[tuple[str, str]], seq: int) -> Iterator[tuple[bytes, int]]:
        skip = self.part if seq == self.after + 1 else 0
        for place, (name, data) in enumerate(frames, start=1):
            last = place == len(frames)
            cursor = f"{self.run_id}:{seq}" if last else f"{self.run_id}:{seq}.{place}"
            if place > skip:
                yield sse.frame(event=name, data=data, id=cursor), seq if last else seq - 1

    def _frames(self, event: Event) -> Iterator[tuple[str, str]]:
        match event.kind:
            case EventKind.ATTEMPT:
                told = {"run_id": wire.shown_id(self.run_id), "attempt": event.epoch}
                yield "metadata", json.dumps(told)
            case EventKind.CHUNK:
                yield from self._chunk(event)
            case EventKind.NOTE:
                pass  # natively only: these clients know no event for it
            case EventKind.END:
                yield from _end(self.run_id, event.data)
            case _ as unknown:
                assert_never(unknown)

    def _chunk(self, event: Event) -> Iterator[tuple[str, str]]:
        mode, *namespace = (event.mode or "values").split("|")
        if namespace and not self.wanted.subgraphs:
            return
        if mode == "messages":
            if _TUPLES in self.wanted.modes:
                yield "|".join(("messages", *namespace)), event.payload
            if "messages" in self.wanted.modes:
                yield from self._whole_message(event, namespace)
        elif mode in self.wanted.modes:
            yield event.mode or mode, self._named(mode, event.payload)

    def _named(self, mode: str, payload: str) -> str:
        if mode not in _NAME_THREADS:
            return payload
        ours, theirs = map(json.dumps, self.thread)
        return payload.replace(ours, theirs)

    def _whole_message(self, event: Event, namespace: Sequence[str]) -> Iterator[tuple[str, str]]:
        chunk, about = event.data
        message_id = str(chunk.get("id"))
        if message_id not in self._told:
            self._told.add(message_id)
            yield "|".join(("messages/metadata", *namespace)), json.dumps({message_id: {"metadata": about}})
        if not str(chunk.get("type", "")).endswith("Chunk"):
            yield "|".join(("messages/complete", *namespace)), json.dumps([chunk])
            return
        so_far = self._messages.get(message_id)
        self._messages[message_id] = message = chunk if so_far is None else joined(so_far, chunk)
        yield "|".join(("messages/partial", *namespace)), json.dumps([_shown(message)])


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that was put together of chunks as one that is whole so far."""
    kind = {"AIMessageChunk": "ai", "HumanMessageChunk": "human", "ToolMessageChunk": "tool"}.get(
        message["type"]
    )
    return {**message, "type": kind or message["type"]}


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Join two chunks of one message as LangChain does."""
    if first.get("type") != "AIMessageChunk":
        return second
    return (AIMessageChunk(**_fields(first)) + AIMessageChunk(**_fields(second))).model_dump(mode="json")


def _fields(chunk: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in chunk.items()
        if name not in ("type", "tool_calls", "invalid_tool_calls")
    }


def _end(run_id: str, verdict: dict[str, Any]) -> Iterable[tuple[str, str]]:
    state = State(verdict["state"])
    reason = Reason(verdict["reason"]) if verdict.get("reason") else None
    if state in (State.FAILED, State.ABANDONED):
        told = failed_with(verdict.get("error"), state)
        yield "error", json.dumps(told)
    shown = {"run_id": wire.shown_id(run_id), "status": ended_as(state, reason)}
    if reason is not None:
        shown["reason"] = reason.value
    yield "end", json.dumps(shown)


def ended_as(state: State, reason: Reason | None) -> str:
    """Return how a run ended in that protocol's words, which tell fewer ends apart."""
    if reason is Reason.TIMEOUT:
        return "timeout"
    if state in (State.SUCCEEDED, State.WAITING):
        return "success"
    return "interrupted" if state is State.STOPPED else "error"


def failed_with(error: dict[str, Any] | None, state: State) -> dict[str, Any]:
    """Return why a run has no result, in the two words that these clients read."""
    failure = error or {}
    return {
        "error": failure.get("type") or failure.get("code") or state.value,
        "message": failure.get("message") or f"The run was {state.value}.",
    }
