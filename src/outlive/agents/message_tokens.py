"""What a token of LangGraph's ``messages`` mode is: a chunk of a message with an id, and its metadata."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from langchain_core.messages import BaseMessageChunk

from outlive.agents import Chunk

MODE = "messages"


class MessageTokens:
    """Joins the chunks of one message; the metadata are those of the first one."""

    def key(self, chunk: Chunk) -> Hashable | None:
        """Return where the message comes from and its id; None for anything but a part of a message."""
        mode, data = chunk.mode, chunk.data
        if mode is None or not (mode == MODE or mode.startswith(f"{MODE}|")):
            return None
        if not (isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], BaseMessageChunk)):
            return None
        message = data[0]
        return (mode, type(message), message.id) if message.id else None

    def last(self, chunk: Chunk) -> bool:
        """Say whether the model's provider called it the last of its message."""
        return getattr(chunk.data[0], "chunk_position", None) == "last"

    def join(self, chunks: Sequence[Chunk]) -> Chunk:
        """Return the chunks of one message as one."""
        first: Any = chunks[0].data[0]
        joined = first + [chunk.data[0] for chunk in chunks[1:]]
        return Chunk(mode=chunks[0].mode, data=(joined, chunks[0].data[1]))

    def snapshot(self, whole: Chunk, *, complete: bool) -> Chunk:
        """Return the message so far as an item of ``messages/partial`` or ``messages/complete``."""
        mode, bar, namespace = (whole.mode or MODE).partition("|")
        kind = "complete" if complete else "partial"
        return Chunk(mode=f"{mode}/{kind}{bar}{namespace}", data=whole.data)
