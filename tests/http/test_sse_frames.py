"""What a frame looks like on the wire, and what every client makes of it."""

from __future__ import annotations

import json

import hypothesis
import pytest
import sse_clients
from hypothesis import strategies as st
from langgraph_sdk.sse import BytesLineDecoder, SSEDecoder

from outlive import encoding, errors
from outlive.http import frames, sse


def test_a_frame_has_its_fields_in_this_order_and_ends_its_lines_with_LF() -> None:
    assert sse.frame(data="{}", id="r:1", event="chunk", retry_ms=250) == (
        b"event: chunk\ndata: {}\nretry: 250\nid: r:1\n\n"
    )
    assert sse.frame(data="") == b"data: \n\n"
    assert sse.HEARTBEAT == b":\n"


@pytest.mark.parametrize("payload", sse_clients.PAYLOADS)
def test_S16_every_payload_arrives_exactly(payload: str) -> None:
    raw = sse.frame(data=encoding.encode({"text": payload}).text, id="r:1", event="chunk")
    assert raw.count(b"\n") == 4
    (event,) = sse_clients.read_by_httpx_sse(raw)
    assert json.loads(event.data) == {"text": payload}
    assert sse_clients.read_by_langgraph_sdk(raw) == [({"text": payload}, "chunk", "r:1")]


def test_S16_a_frame_may_be_cut_at_any_byte_by_the_network() -> None:
    raw = sse.frame(data=encoding.encode("😀\u2028").text, id="r:1", event="e") * 2
    for at in range(len(raw)):
        parts = sse_clients.read_by_langgraph_sdk(raw[:at], raw[at:])
        assert parts == [("😀\u2028", "e", "r:1")] * 2


def test_a_client_that_takes_up_a_cut_frame_does_not_move_its_cursor_past_it() -> None:
    whole = sse.frame(data='"one"', id="r:1")
    cut = sse.frame(data='"two"', id="r:2")
    for at in range(len(cut) - len(b"id: r:2\n\n") + len(b"id:")):
        decoder, lines = SSEDecoder(), BytesLineDecoder()
        for line in lines.decode(whole + cut[:at]):
            decoder.decode(bytes(line))
        assert decoder.last_event_id == "r:1"


@hypothesis.given(st.text(st.characters()), st.text() | st.none())
def test_no_text_can_end_a_frame_or_start_another_one(data: str, event: str | None) -> None:
    try:
        raw = sse.frame(data=data, id="r:1", event=event)
    except ValueError:
        assert not event or not event.isprintable() or not event.isascii()
        return
    assert b"\r" not in raw
    assert raw.endswith(b"\n\n")
    assert b"\n\n" not in raw[:-1]
    (read,) = sse_clients.read_by_httpx_sse(raw)
    lines = data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert read.data == lines.replace("\r\n", "\n").replace("\r", "\n")
    assert (read.id, read.event) == ("r:1", event or "message")


@pytest.mark.parametrize(
    "value", ["", "a\nb", "a\rb", "a\x00b", "a\x85b", "a\u2028b", "\x7f", "\ud800", "a\n\ndata: x"]
)
@pytest.mark.parametrize("name", ["id", "event"])
def test_S16_an_id_or_an_event_name_that_breaks_its_line_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"the {name} of an event"):
        sse.frame(data="{}", **{name: value})  # type: ignore[arg-type]


def test_a_negative_retry_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 up"):
        sse.frame(data="{}", retry_ms=-1)


def test_heartbeats_and_the_hint_at_the_end_are_silent() -> None:
    raw = b"".join(
        (
            sse.HEARTBEAT,
            sse.frame(data="1", id="r:1"),
            sse.HEARTBEAT,
            sse.HEARTBEAT,
            sse.frame(data="2", id="r:2"),
            sse.HEARTBEAT,
            frames.retry_hint(250),
        )
    )
    assert [(event.data, event.id) for event in sse_clients.read_by_httpx_sse(raw)] == [
        ("1", "r:1"),
        ("2", "r:2"),
    ]
    assert sse_clients.read_by_langgraph_sdk(raw) == [(1, "", "r:1"), (2, "", "r:2")]


def test_S17_an_error_event_shows_our_own_errors_and_nothing_of_others() -> None:
    (event,) = sse_clients.read_by_httpx_sse(frames.error_frame(OSError("postgresql://user:secret@db/prod")))
    assert event.event == "error"
    assert set(json.loads(event.data)) == {"code", "message", "hint"}
    assert "secret" not in event.data
    assert "OSError" not in event.data
    ours = errors.StoreUnavailable("The database did not answer.", hint="Try again.", run_id="r1")
    (event,) = sse_clients.read_by_httpx_sse(frames.error_frame(ours))
    assert json.loads(event.data) == {
        "code": "store_unavailable",
        "message": "The database did not answer.",
        "hint": "Try again.",
        "run_id": "r1",
    }
