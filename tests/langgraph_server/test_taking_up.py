"""Streams that are taken up again at their ``Location``, with a cursor and by who has lost it."""

from __future__ import annotations

import json
from typing import Any

from langgraph_server.conftest import Service

BODY: dict[str, Any] = {
    "assistant_id": "chat",
    "input": {"messages": [{"role": "user", "content": "hello"}]},
    "stream_mode": ["messages-tuple"],
}


def parts(text: str) -> list[dict[str, str]]:
    """The frames of a stream, by their fields."""
    frames = [frame for frame in text.replace("\r\n", "\n").split("\n\n") if "data: " in frame]
    return [dict(line.split(": ", 1) for line in frame.splitlines() if ": " in line) for frame in frames]


async def test_who_has_lost_its_cursor_is_sent_each_message_anew(service: Service) -> None:
    first = await service.http.post("/runs/stream", json=BODY)
    whole, location = parts(first.text), first.headers["location"]
    again = parts((await service.http.get(location)).text)
    (taken,) = [part for part in again if "id" not in part]
    said = [json.loads(part["data"])[0] for part in again if part["event"] == "messages"]
    assert (said[0]["type"], said[0]["id"]) == ("remove", said[1]["id"])
    assert [part for part in again if part != taken] == whole


async def test_who_has_its_cursor_or_wants_everything_is_told_nothing_more(service: Service) -> None:
    first = await service.http.post("/runs/stream", json=BODY)
    whole, location = parts(first.text), first.headers["location"]
    for cursor, rest in (("-1", whole), (whole[1]["id"], whole[2:])):
        answer = await service.http.get(location, headers={"Last-Event-ID": cursor})
        assert parts(answer.text) == rest
        answer = await service.http.get(location, params={"again": "true", "last_event_id": cursor})
        assert parts(answer.text) == rest


async def test_a_joined_stream_is_taken_up_with_the_modes_that_were_asked_for(service: Service) -> None:
    made = await service.http.post("/runs/stream", json=BODY | {"stream_mode": ["messages-tuple", "values"]})
    where = made.headers["content-location"] + "/stream"
    asked = {"stream_mode": "values", "last_event_id": "-1"}
    joined = await service.http.get(where, params=asked)
    assert {part["event"] for part in parts(joined.text)} == {"metadata", "values", "end"}
    again = await service.http.get(joined.headers["location"], headers={"Last-Event-ID": "-1"})
    assert parts(again.text) == parts(joined.text)
    assert again.headers["location"] == joined.headers["location"]
