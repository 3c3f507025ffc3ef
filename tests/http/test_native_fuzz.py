"""Requests drawn at random from the whole shape of the interface: each is answered, and none with a fault.

The draw is the same in every run of the tests.  What is checked is only what holds for every request: never a
5xx, and an error is a problem with a stable code that shows nothing internal.
"""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from native_service import Service, problem

from outlive import seams

# Not shrunk: a failure prints its request, and shrinking one over a socket takes minutes.
DRAWN = settings(derandomize=True, max_examples=120, phases=[Phase.generate])
AWKWARD = [
    "",
    " ",
    ".",
    "..",
    "%",
    "\x00",
    "\n",
    "\ud800",
    "\u2028",
    "😀",
    "é",
    "'",
    '"',
    "\\",
    "null",
    "NaN",
]
TEXT = st.sampled_from([*AWKWARD, "x" * 513]) | st.text(max_size=20)
NUMBER = st.sampled_from([0, -1, 2**53, 2**63, 10**40, -0.0, 1e308]) | st.integers() | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
FIELDS = {
    "agent": st.sampled_from(["echo", "echo", "echo", "failing"]) | JSON,
    "input": JSON,
    "thread": TEXT | JSON,
    "metadata": st.dictionaries(TEXT, JSON, max_size=3) | JSON,
    "on_disconnect": st.sampled_from(["cancel", "continue"]) | JSON,
    "on_busy": st.sampled_from(["enqueue", "reject"]) | JSON,
    "not_before": NUMBER | JSON,
    "other": JSON,
}
WORD = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
PLAIN = st.none() | st.booleans() | st.integers() | WORD | st.lists(WORD, max_size=3)
GOOD = st.fixed_dictionaries(
    {"agent": st.just("echo")},
    optional={
        "input": PLAIN,
        "thread": WORD,
        "metadata": st.dictionaries(WORD, PLAIN, max_size=3),
        "on_disconnect": st.sampled_from(["cancel", "continue"]),
        "on_busy": st.sampled_from(["enqueue", "reject"]),
        "not_before": st.floats(0, 1e9),
    },
)
ODD = st.builds(
    lambda good, name, odd: good | {name: odd[name]},
    GOOD,
    st.sampled_from(sorted(FIELDS)),
    st.fixed_dictionaries(FIELDS),
)
BODY = (GOOD | GOOD | ODD | JSON).map(json.dumps).map(str.encode) | st.binary(max_size=40)
IDS = st.sampled_from(["RUN", "RUN", "FOREIGN", "NOBODY"]) | TEXT
CURSOR = st.builds("{}:{}".format, IDS, st.integers(-2, 9)) | st.integers(-2, 9).map(str) | TEXT | IDS
HEADER = st.builds(
    lambda name, value: name + b": " + value,
    st.sampled_from([b"Idempotency-Key", b"Last-Event-ID", b"Accept", b"Content-Type", b"X-Other"]),
    st.sampled_from([b"text/event-stream", b"application/json", b"RUN:1", b"RUN:99", b"FOREIGN:1"])
    | st.binary(max_size=20).map(lambda raw: bytes(byte for byte in raw if byte >= 32 and byte != 127)),
)
QUERY = st.lists(
    st.tuples(st.sampled_from(["limit", "before", "agent", "state", "thread", "after", "other"]), CURSOR),
    max_size=3,
)
ROUTES = st.sampled_from(
    [
        "/runs",
        "/runs",
        "/runs/{}",
        "/runs/{}/events",
        "/runs/{}/stop",
        "/threads/{}",
        "/threads/{}/events",
        "/health",
        "/ready",
    ]
)


def quoted(text: str) -> str:
    return urllib.parse.quote(text.encode("utf-8", "surrogatepass"), safe="")


@pytest.fixture(scope="module")
async def known(lasting_service: Service) -> dict[str, str]:
    """A run of this tenant, one of another, and one of nobody."""
    own = (await lasting_service.ended("count", 3))["run_id"]
    async with lasting_service.as_tenant("somebody-else") as other:
        foreign = (await other.ended("count", 3))["run_id"]
    return {"RUN": own, "FOREIGN": foreign, "NOBODY": seams.new_id()}


@DRAWN
@given(
    method=st.sampled_from(["GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"]),
    route=ROUTES,
    name=IDS,
    query=QUERY,
    headers=st.lists(HEADER, max_size=3),
    body=BODY,
)
async def test_no_request_is_answered_with_a_fault(
    lasting_service: Service,
    known: dict[str, str],
    *,
    method: str,
    route: str,
    name: str,
    query: list[tuple[str, str]],
    headers: list[bytes],
    body: bytes,
) -> None:
    path = route.format(quoted(name)) + "?" + "&".join(f"{key}={quoted(text)}" for key, text in query)
    head = "\r\n".join([f"{method} {path}", f"Content-Length: {len(body)}"]).encode()
    for word, run_id in known.items():
        head = head.replace(word.encode(), run_id.encode())
        headers = [header.replace(word.encode(), run_id.encode()) for header in headers]
    line, length = head.split(b"\r\n")
    check(method, *await lasting_service.raw(line, body, length, b"Connection: close", *headers))


@settings(DRAWN, max_examples=60)
@given(body=BODY)
async def test_no_body_is_answered_with_a_fault(lasting_service: Service, body: bytes) -> None:
    answer = await lasting_service.http.post("/runs", content=body)
    check("POST", answer.status_code, dict(answer.headers), answer.content)


def check(method: str, status: int, headers: dict[str, str], body: bytes) -> None:
    assert status < 500, (status, headers, body)
    kind = headers.get("content-type", "")
    if status < 400 or method == "HEAD":
        return
    if kind == "application/problem+json":
        problem(status, headers, body)
    else:  # no route of ours: the server's or the application's own answer
        assert body in (b"Invalid HTTP request received.", *OF_THE_FRAMEWORK), (status, kind, body)


OF_THE_FRAMEWORK: tuple[bytes, ...] = tuple(
    json.dumps({"detail": detail}, separators=(",", ":")).encode()
    for detail in ("Not Found", "Method Not Allowed")
)


@settings(DRAWN, max_examples=30)
@given(sent=JSON, thread=TEXT)
async def test_what_is_accepted_is_read_back_as_it_was_sent(
    lasting_service: Service, sent: Any, thread: str
) -> None:
    body = json.dumps({"agent": "echo", "input": {"sent": sent}, "thread": f"{seams.new_id()}{thread}"})
    answer = await lasting_service.http.post("/runs", content=body)
    if answer.status_code == 422:
        return
    made = answer.json()
    await lasting_service.follow(f"/runs/{made['run_id']}/events")
    record = (await lasting_service.http.get(f"/runs/{made['run_id']}")).json()
    assert (record["state"], record["thread"]) == ("succeeded", json.loads(body)["thread"])
    assert record["output"] == record["input"]
