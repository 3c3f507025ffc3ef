"""Whatever is wrong with a body, the answer says what, names the field, and shows nothing internal."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import native_service
import pytest
from native_service import Service, problem, refused

from outlive import seams

# What is refused here is refused before any store is asked.
pytestmark = pytest.mark.parametrize("lasting_database", ["sqlite"], indirect=True)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


# ------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"{", "line 1, column 2"),
        (b"{'agent': 'echo'}", "not valid JSON"),
        (b'{"agent":"echo"} {}', "Extra data"),
        (b"agent=echo", "not valid JSON"),
        (b"null", "object"),
        (b'"echo"', "object"),
        (b'[{"agent":"echo"}]', "object"),
        (b"NaN", "NaN"),
        (b'{"agent":"echo","input":NaN}', "NaN"),
        (b'{"agent":"echo","input":[-Infinity]}', "Infinity"),
        (b'{"agent":"echo","input":1e400}', "1e400"),
        (b'{"agent":"echo","input":' + b"9" * 5000 + b"}", "too long"),
        (b'{"agent":"echo","agent":"count"}', "'agent' stands twice"),
        (b'{"agent":"echo","input":[{"\\u0061":1,"a":2}]}', "'a' stands twice"),
        (b'{"agent":"\xff"}', "UTF-8"),
        (b'{"agent":"echo","input":"\xed\xa0\x80"}', "UTF-8"),
        ('{"agent":"echo"}'.encode("utf-16"), "UTF-8"),
        (b'{"agent":"echo","input":"\x01"}', "control character"),
        (b'{"agent":"echo","input":' + nested(100_000) + b"}", "too deeply"),
        (b"\x1f\x8b\x08\x00", "UTF-8"),
    ],
)
async def test_a_body_that_is_not_strict_JSON_is_refused(service: Service, body: bytes, says: str) -> None:
    answer = await service.http.post("/runs", content=body)
    assert says in refused(answer, 422, "invalid_input", "body")["title"]
    await native_service.nothing_was_made(service)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", None])
async def test_JSON_is_JSON_whatever_it_is_called(service: Service, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await service.http.post("/runs", content=b'\xef\xbb\xbf{"agent":"echo"}', headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("agent", [None, 5, True, [], {}, "", "a" * 513, "\ud800"]),
        ("thread", [5, True, [], {}, "", "t" * 513, "a\x00b", "a\nb", "\x7f", "\ud800"]),
        ("metadata", [None, 5, "text", [], {"a": "\ud800"}, {"\udfff": 1}]),
        ("on_disconnect", [5, True, "", "CANCEL", "explode", ["cancel"], {}]),
        ("on_busy", [5, "", "Reject", "rollforward", {}]),
        ("not_before", ["5", True, [], {}, -1, 1e300, 10**30, -(10**30)]),
        ("input", ["\ud800", {"\udc00": 1}, json.loads(nested(101))]),
        ("nonsense", [1, None, {}]),
        ("tenant", ["another"]),
        ("run_id", [seams.new_id()]),
    ],
)
async def test_a_field_of_the_wrong_type_or_value_is_named(
    service: Service, field: str, values: list[Any]
) -> None:
    for value in values:
        body = json.dumps({"agent": "echo", field: value})
        refused(await service.http.post("/runs", content=body), 422, "invalid_input", field)
    await native_service.nothing_was_made(service)


async def test_a_missing_agent_is_named(service: Service) -> None:
    refused(await service.http.post("/runs", json={}), 422, "invalid_input", "agent")


async def test_an_unknown_agent_is_404_and_the_known_ones_are_named(service: Service) -> None:
    for name in ("nobody", "Echo", "echo ", "../echo", "\x00", "\u2147cho", "'; DROP TABLE runs; --"):
        found = refused(await service.http.post("/runs", json={"agent": name}), 404, "not_found", "agent")
        assert "chat, count, echo, failing, gated" in found["hint"]
    await native_service.nothing_was_made(service)


async def test_the_name_of_a_field_is_not_repeated_without_end(service: Service) -> None:
    for name in ("\ud800" + "\u2028" * 100_000, "\u2028" * 100_000):
        body = json.dumps({"agent": "echo", name: 1})
        problem(*_parts(await service.http.post("/runs", content=body)))
    twice = b'{"agent":"echo",' + b",".join([b'"' + b"n" * 9999 + b'":1'] * 2) + b"}"
    problem(*_parts(await service.http.post("/runs", content=twice)))


def _parts(answer: httpx.Response) -> tuple[int, Any, bytes]:
    return answer.status_code, answer.headers, answer.content


# ------------------------------------------------------------ sizes


async def test_a_body_above_the_limit_is_413_by_its_length_before_it_is_read(service: Service) -> None:
    status, headers, body = await service.raw(b"POST /runs", b"", b"Content-Length: 99999999999")
    assert problem(status, headers, body)["code"] == "too_large"
    status, headers, body = await service.raw(b"POST /runs", b"", b"Content-Length: 4194305")
    assert problem(status, headers, body)["code"] == "too_large"
    await native_service.nothing_was_made(service)


async def test_a_body_above_the_limit_is_413_as_it_comes_without_a_length(service: Service) -> None:
    async def parts() -> Any:
        yield b'{"agent":"echo","input":"'
        for _ in range(80):
            yield b"x" * 65_536
        yield b'"}'

    try:
        answer = await service.http.post("/runs", content=parts())
    except httpx.WriteError:  # the server answered and closed before it had read everything
        pass
    else:
        refused(answer, 413, "too_large", "body")
    await native_service.nothing_was_made(service)


async def test_the_limit_is_the_applications_to_choose(lasting_database: str) -> None:
    async with native_service.serving(lasting_database, body_limit=100) as service:
        fits = b'{"agent":"echo","input":"' + b"x" * 73 + b'"}'
        assert len(fits) == 100
        assert (await service.http.post("/runs", content=fits)).status_code == 201
        refused(await service.http.post("/runs", content=fits + b" "), 413, "too_large", "body")


async def test_a_client_that_leaves_within_its_body_makes_nothing_and_no_noise(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = f"POST /runs HTTP/1.1\r\nHost: x\r\nTenant: {service.tenant}\r\nContent-Length: 30\r\n\r\n"
    writer.write(head.encode() + b'{"agent":"echo"')
    writer.write_eof()
    async with asyncio.timeout(native_service.WITHIN):
        await reader.read()
    writer.close()
    await native_service.nothing_was_made(service)
    assert "Exception in ASGI" not in caplog.text
