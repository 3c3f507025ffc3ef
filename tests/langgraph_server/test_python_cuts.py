"""The Python SDK behind a proxy that cuts its streams, and with payloads that broke other clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from langgraph_sdk import client as sdk

from langgraph_server.conftest import Service

MODES: Any = ["values", "updates", "messages-tuple"]
WITHIN = 40.0


@contextlib.asynccontextmanager
async def cutting(url: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that cuts each event stream after its first event; with the requests that came to it."""
    upstream, requests = urlsplit(url), list[str]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(upstream.hostname, upstream.port)
        ways = {
            asyncio.create_task(_up(reader, ahead, requests)),
            asyncio.create_task(_down(behind, writer)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            for one in (ahead, writer):
                one.close()

    carried: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(carry(reader, writer))
        carried.add(task)
        task.add_done_callback(carried.discard)

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
        if carried:
            await asyncio.wait(carried, timeout=5)


async def _up(reader: asyncio.StreamReader, ahead: asyncio.StreamWriter, requests: list[str]) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            requests.append(piece.split(b"\r\n", 1)[0].decode("latin-1"))
            ahead.write(piece)
            await ahead.drain()


async def _down(behind: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    seen, sent = b"", 0
    with contextlib.suppress(OSError):
        while piece := await behind.read(65536):
            seen += piece
            cut = _after_one_event(seen)
            writer.write(seen[sent:cut])
            await writer.drain()
            sent = len(seen)
            if cut is not None:
                return


def _after_one_event(seen: bytes) -> int | None:
    """Where the first event of a stream ends; None as long as it has not, and for its last."""
    cursor = seen.find(b"\nid: ") if b"text/event-stream" in seen else -1
    end = seen.find(b"\n\n", cursor) if cursor >= 0 else -1
    return None if end < 0 or b"event: end" in seen[:end] else end + 2


def said(text: str) -> Any:
    """An input with one message."""
    return {"messages": [{"role": "user", "content": text}]}


async def test_S12_a_stream_that_is_cut_after_each_event_has_every_event_once(service: Service) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    async with (
        cutting(service.url) as (url, requests),
        sdk.get_client(url=url, api_key=service.tenant) as cut,
    ):
        async with asyncio.timeout(WITHIN):
            parts: Any = [
                part async for part in cut.runs.stream(thread, "chat", input=said("hello"), stream_mode=MODES)
            ]
    run_id = parts[0].data["run_id"]
    whole = [part async for part in service.sdk.runs.join_stream(thread, run_id, stream_mode=MODES)]
    assert parts == whole
    assert parts[-1].event == "end"
    assert sum("/stream" in one and one.startswith("GET") for one in requests) >= 5
    assert sum(one.startswith("POST") for one in requests) == 1
    assert len(await service.sdk.runs.list(thread)) == 1


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\x85d\re\nf", "x" * 600_000], ids=["lines", "large"])
async def test_S15_S16_what_a_message_says_arrives_as_it_is(service: Service, text: str) -> None:
    stream = service.sdk.runs.stream(None, "chat", input=said(text), stream_mode="values")
    parts: Any = [part async for part in stream]
    values = [part.data for part in parts if part.event == "values"]
    assert values[0]["messages"][0]["content"] == text
    assert parts[-1].event == "end"


async def test_two_who_watch_one_run_see_the_same_and_the_leaving_of_one_stops_nothing(
    service: Service,
) -> None:
    thread = (await service.sdk.threads.create())["thread_id"]
    first: Any = service.sdk.runs.stream(thread, "chat", input=said("hello"), stream_mode=MODES)
    begun: Any = await anext(first)
    await first.aclose()
    second = service.sdk.runs.join_stream(thread, begun.data["run_id"], stream_mode=MODES)
    third = service.sdk.runs.join_stream(thread, begun.data["run_id"], stream_mode=MODES)
    seen = [[part async for part in one] for one in (second, third)]
    assert seen[0] == seen[1]
    assert (seen[0][-1].event, seen[0][-1].data["status"]) == ("end", "success")
