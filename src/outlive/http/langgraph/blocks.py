"""Messages as the event stream protocol shows them: begun, grown block by block, finished.

Decides where a message ends: with its last chunk, with the next message of the same place, or with the node
that made it.  A message that came whole is shown in the same way, at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk

Data = dict[str, Any]
_ROLES = {
    "ai": "ai",
    "AIMessageChunk": "ai",
    "human": "human",
    "HumanMessageChunk": "human",
    "system": "system",
}
_DELTAS = {"text": ("text-delta", "text"), "reasoning": ("reasoning-delta", "reasoning")}
_SHOWN_OF_MODEL = {
    "model_name": "model",
    "model_provider": "provider",
    "system_fingerprint": "system_fingerprint",
}


@dataclass(kw_only=True, slots=True)
class _Open:
    """A message that has begun: its blocks so far, by their place."""

    message_id: str
    role: str
    about: Data
    blocks: dict[Any, Data] = field(default_factory=dict)
    usage: Data | None = None


@dataclass(kw_only=True, slots=True)
class Messages:
    """What is open, by the namespace it belongs to; a namespace shows one message at a time."""

    _open: dict[tuple[str, ...], _Open] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)

    def chunk(self, namespace: tuple[str, ...], message: Data, about: Data) -> Iterator[Data]:
        """Take in a chunk, or a whole message, and yield what it adds."""
        message_id, role = str(message.get("id")), _ROLES.get(message.get("type", ""))
        if role is None or message_id in self._done:
            return
        now = self._open.get(namespace)
        if now is not None and now.message_id != message_id:
            yield from self.finish(namespace)
            now = None
        if now is None:
            now = self._open[namespace] = _Open(message_id=message_id, role=role, about=about)
            yield _begun(now, message)
        yield from _grown(now, message)
        if message.get("chunk_position") == "last" or not str(message.get("type")).endswith("Chunk"):
            yield from self.finish(namespace)

    def finish(self, namespace: tuple[str, ...]) -> Iterator[Data]:
        """End what is open there; nothing if nothing is."""
        now = self._open.pop(namespace, None)
        if now is None:
            return
        self._done.add(now.message_id)
        for place, index in enumerate(now.blocks):
            yield {"event": "content-block-finish", "index": place, "content": _final(now.blocks[index])}
        usage = {} if now.usage is None else {"usage": now.usage}
        yield {"event": "message-finish", **usage}

    def places(self) -> Sequence[tuple[str, ...]]:
        """Return where something is open."""
        return tuple(self._open)


@dataclass(kw_only=True, slots=True)
class Loose:
    """Messages that were said and that no state has yet.

    Clients keep those until a state without them follows one with them: that is how to take one back.
    """

    _values: Data = field(default_factory=dict)
    _since: dict[tuple[str, ...], dict[str, Data]] = field(default_factory=dict)

    def said(self, namespace: tuple[str, ...], data: Data) -> None:
        """Take note of what is shown of a message."""
        here = self._since.setdefault(namespace, {})
        if data["event"] == "message-start":
            here[data["id"]] = {"type": data["role"], "id": data["id"], "content": ""}
        elif data["event"] == "content-block-delta" and data["delta"]["type"] == "text-delta":
            here[next(reversed(here))]["content"] += data["delta"]["text"]

    def settled(self, namespace: tuple[str, ...], values: Any) -> None:
        """Take note of a state: what was said in its place before is in it, or never will be."""
        self._since.pop(namespace, None)
        if not namespace and isinstance(values, dict):
            self._values = values

    def taken_back(self) -> Sequence[Data]:
        """Return a state with the messages that no state has, and one without; nothing if there is none."""
        messages = self._values.get("messages")
        loose = [message for here in self._since.values() for message in here.values()]
        self._since.clear()
        if not loose or not isinstance(messages, list):
            return ()
        return {**self._values, "messages": messages + loose}, self._values


def _begun(now: _Open, message: Data) -> Data:
    model = message.get("response_metadata") or {}
    about = {
        shown: model[name] for name, shown in _SHOWN_OF_MODEL.items() if isinstance(model.get(name), str)
    }
    about |= {
        name: now.about[name] for name in ("langgraph_node", "run_id") if isinstance(now.about.get(name), str)
    }
    return {"event": "message-start", "id": now.message_id, "role": now.role, "metadata": about}


def _grown(now: _Open, message: Data) -> Iterator[Data]:
    if message.get("usage_metadata"):
        now.usage = {**(now.usage or {}), **message["usage_metadata"]}
    for block in _blocks(message):
        index = block.pop("index", None)
        key = (
            block["type"],
            index if index is not None else block.get("id") if block["type"] != "text" else None,
        )
        if block["type"] == "tool_call_chunk" and index is None and block.get("id") is None and now.blocks:
            key = next(reversed(now.blocks))
        place = list(now.blocks).index(key) if key in now.blocks else len(now.blocks)
        if key not in now.blocks:
            now.blocks[key] = _skeleton(block)
            yield {"event": "content-block-start", "index": place, "content": dict(now.blocks[key])}
        delta = _added(now.blocks[key], block)
        if delta is not None:
            yield {"event": "content-block-delta", "index": place, "delta": delta}


def _blocks(message: Data) -> list[Data]:
    """Return the content of a message in LangChain's own standard form."""
    fields = {name: value for name, value in message.items() if name != "type" and value is not None}
    if _ROLES.get(message.get("type", "")) != "ai":
        content = message.get("content")
        return (
            [{"type": "text", "text": content}]
            if isinstance(content, str)
            else [dict(one) for one in content or ()]
        )
    if message["type"] == "AIMessageChunk":
        for derived in ("tool_calls", "invalid_tool_calls"):
            fields.pop(derived, None)
        return [dict(block) for block in AIMessageChunk(**fields).content_blocks]
    return [dict(block) for block in AIMessage(**fields).content_blocks]


def _skeleton(block: Data) -> Data:
    if block["type"] in _DELTAS:
        return {**block, _DELTAS[block["type"]][1]: ""}
    return {**block, "args": ""} if block["type"] == "tool_call_chunk" else dict(block)


def _added(so_far: Data, block: Data) -> Data | None:
    """Put what a block adds to what is there, and return it as a delta; None for nothing."""
    if block["type"] in _DELTAS:
        kind, name = _DELTAS[block["type"]]
        so_far[name] += block.get(name) or ""
        return {"type": kind, name: block[name]} if block.get(name) else None
    if block["type"] == "tool_call_chunk":
        so_far.update({name: block[name] for name in ("id", "name") if block.get(name)})
        so_far["args"] += block.get("args") or ""
        return {"type": "tool-call-delta", "args": block["args"]} if block.get("args") else None
    return None


def _final(block: Data) -> Data:
    if block["type"] != "tool_call_chunk":
        return block
    try:
        args = json.loads(block["args"] or "{}")
    except ValueError:
        args = None
    named = {"id": block.get("id"), "name": block.get("name")}
    if not isinstance(args, dict):
        return {
            "type": "invalid_tool_call",
            **named,
            "args": block["args"],
            "error": "These are no JSON object.",
        }
    return {"type": "tool_call", **named, "args": args}
