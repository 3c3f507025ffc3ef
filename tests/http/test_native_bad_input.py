"""Whatever is wrong with a header, a path, a query or a cursor, the answer says what and names it."""

from __future__ import annotations

import json

import native_service
import pytest
from native_service import STREAM, Service, problem, refused

# ------------------------------------------------------------ headers, paths and queries


@pytest.mark.parametrize("key", [b"", b" ", b"k" * 513, b"a\x7fb"])
async def test_a_key_that_cannot_be_kept_is_refused(service: Service, key: bytes) -> None:
    body = b'{"agent":"echo"}'
    status, headers, text = await service.raw(
        b"POST /runs", body, b"Content-Length: %d" % len(body), b"Idempotency-Key: " + key
    )
    if headers["content-type"].startswith("text/plain"):
        assert status == 400  # refused by the server already
    else:
        found = problem(status, headers, text)
        assert (found["code"], found["field"]) == ("invalid_input", "Idempotency-Key")
    await native_service.nothing_was_made(service)


@pytest.mark.parametrize("header", ["Idempotency-Key", "Last-Event-ID"])
async def test_a_header_that_stands_twice_is_refused(service: Service, header: str) -> None:
    twice = [(header, "a:1"), (header, "b:2")]
    answer = await service.http.post("/runs", json={"agent": "echo"}, headers=twice)
    refused(answer, 422, "invalid_input", header)
    await native_service.nothing_was_made(service)


async def test_a_key_outside_of_ASCII_is_a_key(service: Service) -> None:
    body = b'{"agent":"echo"}'
    ids = set()
    for key in ("clé".encode(), "clé".encode(), "clé".encode("latin-1"), "ключ 😀".encode(), b"\xff\xfe"):
        request = (b"Content-Length: %d" % len(body), b"Idempotency-Key: " + key)
        status, _, text = await service.raw(b"POST /runs", body, *request)
        assert status in (200, 201)
        ids.add(json.loads(text)["run_id"])
    assert len(ids) == 4


@pytest.mark.parametrize(
    "run_id",
    [
        "nobody",
        "0" * 32,
        "%20",
        "%F0%9F%98%80",
        "a" * 512,
        "..%2F..%2Fetc",
        "%2E%2E",
        "'%20OR%201=1",
        "*",
        "%25",
    ],
)
async def test_an_unknown_run_is_404_on_every_route(service: Service, run_id: str) -> None:
    if (
        "%2F" in run_id or run_id == "%2E%2E"
    ):  # no route at all: what is said then is the application's to choose
        assert (await service.http.get(f"/runs/{run_id}")).status_code == 404
        return
    refused(await service.http.get(f"/runs/{run_id}"), 404, "not_found")
    refused(await service.http.get(f"/runs/{run_id}/events", headers=STREAM), 404, "not_found")
    refused(await service.http.get(f"/runs/{run_id}/events?after=x", headers=STREAM), 404, "not_found")
    refused(await service.http.post(f"/runs/{run_id}/stop"), 404, "not_found")
    refused(await service.http.get(f"/threads/{run_id}"), 404, "not_found", "thread")


@pytest.mark.parametrize("run_id", ["%00", "a%0Ab", "%7F", "a" * 513, "a" * 8000])
async def test_an_id_that_no_run_can_have_is_refused_by_name(service: Service, run_id: str) -> None:
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/stop")):
        answer = await service.http.request(method, f"/runs/{run_id}{path}")
        refused(answer, 422, "invalid_input", "run_id")
    if run_id != "a%0Ab":  # that is no route
        refused(await service.http.get(f"/threads/{run_id}"), 422, "invalid_input", "thread")


async def test_a_path_that_is_no_text_is_refused(service: Service) -> None:
    for path in (b"/runs/%ED%A0%80", b"/runs/%FF", b"/threads/%C3%28"):
        status, headers, body = await service.raw(b"GET " + path)
        assert problem(status, headers, body)["status"] in (404, 422)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=1e1", "limit"),
        ("limit=", "limit"),
        ("limit=99999999999999999999999999", "limit"),
        (f"limit={'9' * 5000}", "limit"),
        ("state=", "state"),
        ("state=RUNNING", "state"),
        ("state=gone", "state"),
        ("agent=", "agent"),
        ("agent=%00", "agent"),
        (f"agent={'a' * 513}", "agent"),
        ("thread=", "thread"),
        ("thread=a%0Ab", "thread"),
        ("before=", "before"),
        ("before=yesterday", "before"),
        ("before=%00", "before"),
        (f"before={'F' * 32}", "before"),
        (f"before={'0' * 33}", "before"),
    ],
)
async def test_a_filter_that_means_nothing_is_named(service: Service, query: str, field: str) -> None:
    refused(await service.http.get(f"/runs?{query}"), 422, "invalid_input", field)


# ------------------------------------------------------------ cursors


CURSORS = [
    "-1",
    "+1",
    "1.0",
    "1e0",
    "0x1",
    "one",
    "1 2",
    "\uff11",
    "\u0663",
    "\x00",
    "%",
    "6",
    "9" * 18,
    "9" * 5000,
    ":",
    "{run}:",
    "{run}:-1",
    "{run}:6",
    "{run}:x",
    "{other}:1",
    "{run}:{run}:1",
    "nobody:1",
    ":1",
]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_S12_a_cursor_that_is_not_of_this_run_is_refused_and_never_silence(
    service: Service, accept: str
) -> None:
    run, other = await service.ended("count", 3), await service.ended("count", 3)
    assert run["last_seq"] == 5
    path = f"/runs/{run['run_id']}/events"
    for form in [*CURSORS, "", " "]:
        cursor = form.format(run=run["run_id"], other=other["run_id"])
        answer = await service.http.get(path, params={"after": cursor}, headers={"Accept": accept})
        refused(answer, 400, "invalid_cursor", "after")
    for form in [form for form in CURSORS if form.isascii() and form.isprintable()]:
        cursor = form.format(run=run["run_id"], other=other["run_id"])
        headers = {"Accept": accept, "Last-Event-ID": cursor}
        refused(await service.http.get(path, headers=headers), 400, "invalid_cursor", "Last-Event-ID")
    status, headers_, body = await service.raw(
        b"GET " + path.encode(), b"", b"Last-Event-ID: \xff\xfe", b"Accept: " + accept.encode()
    )
    assert problem(status, headers_, body)["code"] == "invalid_cursor"


async def test_S12_a_creation_with_a_cursor_beyond_its_run_attaches_to_nothing(service: Service) -> None:
    run = await service.ended("count", 3)
    for cursor in (f"{run['run_id']}:6", f"{run['run_id']}:-1", f"{run['run_id']}:x", f"{run['run_id']}:"):
        for headers in ({"Last-Event-ID": cursor}, STREAM | {"Last-Event-ID": cursor}):
            answer = await service.http.post("/runs", json={"agent": "echo"}, headers=headers)
            refused(answer, 400, "invalid_cursor", "Last-Event-ID")
    assert len((await service.http.get("/runs")).json()["runs"]) == 1
