"""What clients of every kind make of the bytes of a stream."""

from __future__ import annotations

from typing import Any

import httpx
import httpx_sse
from langgraph_sdk.sse import BytesLineDecoder, SSEDecoder

PAYLOADS = [
    "",
    ":",
    "data: x",
    ": comment",
    "id: 7",
    "a\nb",
    "a\r\nb",
    "a\rb",
    "\n\ndata: injected\n\n",
    "\v\f\x1c\x1d\x1e\x1f",
    "\x85\u2028\u2029",
    "\ufeffbom",
    "\x00\x7f",
    "emoji 😀 family 👨‍👩‍👧",
    " leading and trailing ",
    "\\u2028",
    "ünïcode",
]


def read_by_httpx_sse(raw: bytes) -> list[httpx_sse.ServerSentEvent]:
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=raw)
    return list(httpx_sse.EventSource(response).iter_sse())


def read_by_langgraph_sdk(*chunks: bytes) -> list[tuple[Any, str, str | None]]:
    """The data, event and id of each message."""
    lines, decoder, parts = BytesLineDecoder(), SSEDecoder(), []
    for line in [line for chunk in chunks for line in lines.decode(chunk)] + lines.flush() + [b""]:
        part = decoder.decode(bytes(line).rstrip(b"\n"))
        # The rule by which its client skips what is no message.
        if part is not None and (part.event or decoder.has_data):
            parts.append((part.data, part.event, part.id))
    return parts
