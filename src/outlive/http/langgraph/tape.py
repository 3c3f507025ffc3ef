"""A thread's events as the event stream protocol numbers and names them.

Decides what each stored event becomes: events of channels, numbered by the thread's own sequence, so that a
number means the same on every connection, for every filter, for ever.  Each stored event has ``ROOM`` of
them.  What an event becomes depends on those of its run before it: a tape is begun where a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from outlive.agents.graph_call import REFS
from outlive.http.langgraph import frames, wire
from outlive.http.langgraph.blocks import Loose, Messages
from outlive.model import Event, EventKind
from outlive.states import State

Namespace = tuple[str, ...]
Data = dict[str, Any]
ROOM = 1000
"""Numbers that each stored event has for what it becomes."""
MODES = frozenset({"values", "updates", "messages", "custom", "tasks", REFS})
"""What a run that is made over this protocol records."""
CHANNELS = frozenset(
    {"values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"}
)
_INTERRUPT = "__interrupt__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """What one subscription sees: channels, and places at most ``depth`` below some namespaces."""

    channels: frozenset[str]
    namespaces: tuple[Namespace, ...] = ((),)
    depth: int | None = None

    def passes(self, one: Shown) -> bool:
        """Say whether an event is of this subscription."""
        if one.channel not in self.channels and not (
            one.channel == "custom" and f"custom:{one.name}" in self.channels
        ):
            return False
        return any(self._below(prefix, one.namespace) for prefix in self.namespaces)

    def _below(self, prefix: Namespace, namespace: Namespace) -> bool:
        inside = namespace[: len(prefix)] == prefix
        return inside and (self.depth is None or len(namespace) - len(prefix) <= self.depth)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One event of the protocol; ``name`` is that of a custom event."""

    channel: str
    method: str
    namespace: Namespace
    data: Any
    event_id: str
    seq: int
    at: float
    name: str | None = None

    def frame(self) -> Data:
        """Return it as it is sent."""
        return {
            "type": "event",
            "event_id": self.event_id,
            "seq": self.seq,
            "method": self.method,
            "params": {
                "namespace": list(self.namespace),
                "timestamp": round(self.at * 1000),
                "data": self.data,
            },
        }


Made = tuple[str, str, Namespace, Any, str | None, str | None]
"""Channel, method, namespace, data; the end of an id of our own making; the name of a custom event."""


@dataclass(kw_only=True, slots=True)
class Tape:
    """The events of one run, given in their order from its first one."""

    run_id: str
    graph: str
    _messages: Messages = field(default_factory=Messages)
    _loose: Loose = field(default_factory=Loose)
    _last: Made | None = None
    _inside: dict[Namespace, None] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _calls: set[str] = field(default_factory=set)

    def of(self, event: Event) -> list[Shown]:
        """Return what an event becomes."""
        made = list(self._made(event))[:ROOM]
        first = event.thread_seq * ROOM
        shown = wire.shown_id(self.run_id)
        return [
            Shown(
                channel=channel,
                method=method,
                namespace=namespace,
                data=data,
                event_id=f"{round(event.created_at * 1000)}-{first + place}"
                if own is None
                else f"synth:{shown}:{own}",
                seq=first + place,
                at=event.created_at,
                name=name,
            )
            for place, (channel, method, namespace, data, own, name) in enumerate(made)
        ]

    def _made(self, event: Event) -> Iterator[Made]:
        match event.kind:
            case EventKind.ATTEMPT:
                yield from self._taken_back()
                yield _lifecycle((), "running", self.graph, f"running:{event.epoch}")
            case EventKind.CHUNK:
                yield from self._chunk(event)
            case EventKind.NOTE:
                return
            case EventKind.END:
                yield from self._end(event.data)
            case _ as unknown:
                assert_never(unknown)

    # ------------------------------------------------------------ chunks

    def _chunk(self, event: Event) -> Iterator[Made]:
        mode, *places = (event.mode or "values").split("|")
        namespace, data = tuple(places), event.data
        yield from self._entered(namespace)
        match mode:
            case "values":
                yield from self._questions(namespace, data)
                yield _plain("values", namespace, _without(data))
                self._loose.settled(namespace, _without(data))
            case "updates":
                yield from self._updates(namespace, data)
            case "messages":
                chunk, about = data
                yield from self._said(namespace, self._messages.chunk(namespace, chunk, about))
            case "tasks":
                yield _plain("tasks", namespace, data)
                yield from self._left(namespace, data)
            case "custom":
                named = data.get("name") if isinstance(data, dict) else None
                told = data if isinstance(named, str) else {"payload": data}
                yield "custom", "custom", namespace, told, None, named if isinstance(named, str) else None
            case _ if mode == REFS:
                self._last = _plain("checkpoints", namespace, data)
                yield self._last

    def _entered(self, namespace: Namespace) -> Iterator[Made]:
        """Say of every subgraph that it has begun, before anything of it."""
        for depth in range(1, len(namespace) + 1):
            place = namespace[:depth]
            if place not in self._inside:
                self._inside[place] = None
                name, _, task = place[-1].partition(":")
                yield _lifecycle(place, "started", name, f"started:{'|'.join(place)}", trigger_call_id=task)

    def _left(self, namespace: Namespace, data: Any) -> Iterator[Made]:
        if not isinstance(data, dict) or "result" not in data:
            return
        place = (*namespace, f"{data.get('name')}:{data.get('id')}")
        if self._inside.pop(place, 0) == 0:
            return
        how = "interrupted" if data.get("interrupts") else "failed" if data.get("error") else "completed"
        yield _lifecycle(place, how, str(data.get("name")), f"{how}:{'|'.join(place)}")

    def _updates(self, namespace: Namespace, data: Any) -> Iterator[Made]:
        yield from self._said(namespace, self._messages.finish(namespace))
        yield from self._questions(namespace, data)
        if not isinstance(data, dict):
            return
        for node, values in data.items():
            if node != _INTERRUPT:
                yield _plain("updates", namespace, {"node": node, "values": values})
                yield from self._tools(namespace, values)

    def _questions(self, namespace: Namespace, data: Any) -> Iterator[Made]:
        """The questions of a step stand in two of its events, and are asked once."""
        for asked in (data.get(_INTERRUPT) or ()) if isinstance(data, dict) else ():
            if asked["id"] not in self._asked:
                self._asked.add(asked["id"])
                told = {"interrupt_id": asked["id"], "payload": asked["value"], "value": asked["value"]}
                yield "input", "input.requested", namespace, told, f"input:{asked['id']}", None

    def _tools(self, namespace: Namespace, values: Any) -> Iterator[Made]:
        """Calls that a message asks for have begun, and those that a message answers are over."""
        for message in _messages_in(values):
            for call in message.get("tool_calls") or ():
                if call.get("id") and call["id"] not in self._calls:
                    self._calls.add(call["id"])
                    begun = {"event": "tool-started", "tool_call_id": call["id"], "tool_name": call["name"]}
                    yield _plain("tools", namespace, {**begun, "input": call["args"]})
            if message.get("type") == "tool":
                yield _plain("tools", namespace, _answered(message))

    def _said(self, namespace: Namespace, shown: Iterator[Data]) -> Iterator[Made]:
        for data in shown:
            self._loose.said(namespace, data)
            yield _plain("messages", namespace, data)

    def _taken_back(self) -> Iterator[Made]:
        """Take back what was said in a step that did not come to its end: no state will have it."""
        for namespace in self._messages.places():
            yield from self._said(namespace, self._messages.finish(namespace))
        for values in self._loose.taken_back():
            yield _plain("values", (), values)

    # ------------------------------------------------------------ the end

    def _end(self, verdict: Data) -> Iterator[Made]:
        state = State(verdict["state"])
        how = _ENDS.get(state, "interrupted")
        if state not in (State.SUCCEEDED, State.WAITING):
            yield from self._taken_back()
        for namespace in self._messages.places():
            yield from self._said(namespace, self._messages.finish(namespace))
        for place in reversed(list(self._inside)):
            yield _lifecycle(place, how, place[-1].partition(":")[0], f"{how}:{'|'.join(place)}")
        told = (
            {"error": frames.failed_with(verdict.get("error"), state)["message"]} if how == "failed" else {}
        )
        if verdict.get("reason"):
            told["reason"] = verdict["reason"]
        yield _lifecycle((), how, self.graph, how, **told)
        if self._last is not None:
            # A client that hears of the end on one of its connections first stops reading the others until
            # something numbered above the end is there.
            yield self._last


_ENDS = {State.SUCCEEDED: "completed", State.FAILED: "failed", State.ABANDONED: "failed"}


def _plain(channel: str, namespace: Namespace, data: Any) -> Made:
    return channel, channel, namespace, data, None, None


def _lifecycle(namespace: Namespace, event: str, graph: str, own: str, **more: Any) -> Made:
    return "lifecycle", "lifecycle", namespace, {"event": event, "graph_name": graph, **more}, own, None


def _without(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items() if name != _INTERRUPT}


def _messages_in(values: Any) -> Sequence[Data]:
    found = values.get("messages") if isinstance(values, dict) else None
    every = found if isinstance(found, list) else [found]
    return [one for one in every if isinstance(one, dict) and "type" in one]


def _answered(message: Data) -> Data:
    if message.get("status") == "error":
        return {
            "event": "tool-error",
            "tool_call_id": message.get("tool_call_id"),
            "message": message.get("content"),
        }
    return {"event": "tool-finished", "tool_call_id": message.get("tool_call_id"), "output": message}
