"""The event stream protocol over a WebSocket: the SDK's own transport, and frames of any client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import uuid
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import pytest
from fastapi import Request
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

import outlive
from langgraph_server import graphs
from langgraph_server.conftest import POLICY, Service
from outlive import errors
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import auth, sse
from outlive.http.langgraph import routes
from outlive.principal import Principal
from outlive.testing.asgi import WITHIN, listening

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}


@contextlib.asynccontextmanager
async def connected(url: str, thread: str, **headers: str) -> AsyncIterator[ClientConnection]:
    """A connection for a thread."""
    where = f"{url.replace('http', 'ws', 1)}/threads/{thread}/stream/events"
    origin: Any = headers.pop("origin", None)
    async with connect(where, additional_headers=headers, origin=origin, open_timeout=WITHIN) as connection:
        yield connection


def of(service: Service, thread: str) -> contextlib.AbstractAsyncContextManager[ClientConnection]:
    """A connection of a service's tenant."""
    return connected(service.url, thread, **{"x-api-key": service.tenant})


async def received(connection: ClientConnection) -> Any:
    """The next frame."""
    return json.loads(await asyncio.wait_for(connection.recv(), WITHIN))


async def command(connection: ClientConnection, method: str, **params: Any) -> tuple[Any, list[Any]]:
    """The answer to a command, and the events that came before it."""
    await connection.send(json.dumps({"id": 9, "method": method, "params": params}))
    events: list[Any] = []
    while True:
        frame = await received(connection)
        if frame["type"] != "event":
            return frame, events
        events.append(frame)


async def until_over(connection: ClientConnection, runs: int = 1) -> list[Any]:
    """Every event up to the end of so many runs."""
    seen = []
    while True:
        seen.append(frame := await received(connection))
        params = frame["params"]
        if frame["method"] == "lifecycle" and not params["namespace"]:
            runs -= params["data"]["event"] in ("completed", "failed", "interrupted")
            if not runs:
                return seen


async def closed(connection: ClientConnection) -> int:
    """The code with which the other side closes."""
    async with asyncio.timeout(WITHIN):
        with contextlib.suppress(ConnectionClosedError):
            async for _ in connection:
                pass
    assert connection.close_code is not None
    return connection.close_code


async def test_the_sdks_own_socket_has_a_conversation_to_its_end(service: Service) -> None:
    known = {"x-api-key": service.tenant}  # which this transport does not take from its client
    stream = service.sdk.threads.stream(assistant_id="chat", transport="websocket", headers=known)
    async with asyncio.timeout(WITHIN), stream as thread:
        hold = uuid.uuid4().hex
        await thread.run.start(input={**HELLO, "hold": hold})
        assert await _said(thread, graphs.gates[hold]) == ["one two three"]
        await thread.run.respond("yes")
        output: Any = await thread.output
        assert output["messages"][-1]["content"] == "heard yes"


async def _said(thread: Any, gate: asyncio.Event) -> list[str]:
    """The texts up to the question, which is asked behind the gate.

    This transport does not wait until a subscription is there: what is asked at once ends the messages before
    they have come.
    """

    async def whole(message: Any) -> str:
        text: str = await message.text
        gate.set()
        return text

    texts = [asyncio.create_task(whole(message)) async for message in thread.messages]
    return [await text for text in texts]


async def test_commands_answers_and_events_share_a_connection_and_are_those_of_the_other_transport(
    service: Service,
) -> None:
    name = str(uuid.uuid4())
    channels = ["lifecycle", "values", "updates", "input"]
    async with of(service, name) as connection:
        opened, before = await command(connection, "subscription.subscribe", channels=channels)
        assert (opened["type"], opened["id"], before) == ("success", 9, [])
        started, early = await command(connection, "run.start", assistant_id="chat", input=HELLO)
        assert str(uuid.UUID(started["result"]["run_id"])) == started["result"]["run_id"]
        events = early + await until_over(connection)
    async with service.http.stream(
        "POST", f"/threads/{name}/stream/events", json={"channels": channels}
    ) as response:
        streamed = []
        async with asyncio.timeout(WITHIN):
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    streamed.append(json.loads(line.removeprefix("data:")))
                    if streamed[-1] == events[-1]:
                        break
    assert streamed == events


async def test_a_subscription_goes_on_after_a_number_or_an_event_and_is_taken_back(service: Service) -> None:
    name = str(uuid.uuid4())
    async with of(service, name) as connection:
        await command(connection, "subscription.subscribe", channels=["values", "lifecycle"])
        await command(connection, "run.start", assistant_id="steps", input={})
        await until_over(connection)
    async with of(service, name) as connection:
        wanted = {"channels": ["values", "lifecycle"]}
        await command(connection, "subscription.subscribe", **wanted)
        whole = await until_over(connection)
        for place in (0, 2):
            since = {"since": whole[place]["seq"]}
            after = {"since_event_id": whole[place]["event_id"]} if place else since
            for cursor in (since, after):
                opened, _ = await command(connection, "subscription.subscribe", **wanted, **cursor)
                assert await until_over(connection) == whole[place + 1 :]
                taken_back = {"subscription_id": opened["result"]["subscription_id"]}
                gone, _ = await command(connection, "subscription.unsubscribe", **taken_back)
                assert gone["type"] == "success"
                again, _ = await command(connection, "subscription.unsubscribe", **taken_back)
                assert again["error"] == "no_such_subscription"


@pytest.mark.parametrize(
    ("frame", "number", "word"),
    [
        ("nonsense", None, "invalid_argument"),
        ("[]", None, "invalid_argument"),
        ('{"channels": ["values"]}', None, "invalid_argument"),
        ('{"id": 3, "method": "make.coffee"}', 3, "unknown_command"),
        ('{"id": 3, "method": "subscription.subscribe"}', 3, "invalid_argument"),
        (
            '{"id": 3, "method": "subscription.subscribe", "params": {"channels": ["loud"]}}',
            3,
            "invalid_argument",
        ),
        ('{"id": 3, "method": "subscription.unsubscribe"}', 3, "no_such_subscription"),
        ('{"id": 3, "method": "run.start", "params": {"assistant_id": "nobody"}}', 3, "invalid_argument"),
        ('{"id": -3, "method": "run.start"}', -3, "invalid_argument"),
    ],
)
async def test_a_frame_that_cannot_be_carried_out_is_answered_and_the_connection_goes_on(
    service: Service, frame: str, number: Any, word: str
) -> None:
    async with of(service, str(uuid.uuid4())) as connection:
        for sent in (frame, frame.encode()):
            await connection.send(sent)
            answer = await received(connection)
            assert (answer["type"], answer["id"], answer["error"]) == ("error", number, word)
            assert answer["message"]


async def test_a_thread_whose_id_is_none_is_closed_with_the_status_in_the_code(service: Service) -> None:
    async with of(service, "nonsense") as connection:
        assert await closed(connection) == 4422


async def test_a_connection_has_so_many_subscriptions_and_no_more(service: Service) -> None:
    async with of(service, str(uuid.uuid4())) as connection:
        many = {"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}
        for _ in range(33):
            await connection.send(json.dumps(many))
        answers = [await received(connection) for _ in range(33)]
        assert [answer["type"] for answer in answers] == ["success"] * 32 + ["error"]


async def test_a_stranger_hears_nothing_of_a_thread_of_that_name(service: Service, stranger: Service) -> None:
    name = str(uuid.uuid4())
    async with of(service, name) as mine, of(stranger, name) as theirs:
        for connection in (mine, theirs):
            await command(connection, "subscription.subscribe", channels=["values", "lifecycle"])
        await command(mine, "run.start", assistant_id="steps", input={"steps": ["mine"]})
        await until_over(mine)
        await command(theirs, "run.start", assistant_id="steps", input={"steps": ["theirs"]})
        heard = await until_over(theirs)
    assert "mine" not in json.dumps(heard)


# ------------------------------------------------------------ who may


@contextlib.asynccontextmanager
async def asking(database: str, principal: Any) -> AsyncIterator[tuple[outlive.Outlive, str]]:
    """A service that asks who somebody is."""
    served = outlive.Outlive(database, [LangGraphAgent("steps", graphs.steps(), policy=POLICY)])
    app = fastapi.FastAPI()
    app.include_router(routes.router(served, principal=principal))
    async with served, listening(app) as port:
        yield served, f"http://127.0.0.1:{port}"
    assert served.presence._viewers == {}


async def _by_cookie(request: Request) -> str:
    """As an application with a session would: whoever has the cookie is somebody."""
    if request.cookies.get("session") != "good":
        raise errors.Unauthenticated("There is no session.")
    return "somebody"


async def test_who_has_no_credentials_is_closed_as_they_would_be_refused(database: str) -> None:
    async with asking(database, _by_cookie) as (_, url):
        async with connected(url, str(uuid.uuid4())) as connection:
            assert await closed(connection) == 4401
        async with connected(url, str(uuid.uuid4()), cookie="session=good") as connection:
            opened, _ = await command(connection, "subscription.subscribe", channels=["values"])
            assert opened["type"] == "success"


async def test_a_page_of_another_origin_does_not_come_in_by_its_visitors_cookie(database: str) -> None:
    async with asking(database, _by_cookie) as (_, url):
        for origin, lets_in in ((url, True), ("https://evil.example", False), ("null", False)):
            async with connected(url, str(uuid.uuid4()), cookie="session=good", origin=origin) as connection:
                if lets_in:
                    opened, _ = await command(connection, "subscription.subscribe", channels=["values"])
                    assert opened["type"] == "success"
                else:
                    assert await closed(connection) == 4401


async def test_where_nobody_is_asked_a_page_of_the_web_is_not_let_in(database: str) -> None:
    async with asking(database, auth.this_machine) as (_, url):
        async with connected(url, str(uuid.uuid4()), origin="https://evil.example") as connection:
            assert await closed(connection) == 4403
        async with connected(url, str(uuid.uuid4()), origin="http://localhost:3000") as connection:
            opened, _ = await command(connection, "subscription.subscribe", channels=["values"])
            assert opened["type"] == "success"


async def test_a_connection_ends_with_its_credentials(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "RECHECK", 0.05)
    holds = [True]

    async def valid() -> bool:
        return holds[0]

    async def principal() -> Principal:
        if not holds[0]:
            raise errors.Unauthenticated("The session is over.")
        return Principal(tenant="t", id="t", still_valid=valid)

    async with asking(database, principal) as (_, url), connected(url, str(uuid.uuid4())) as connection:
        opened, _ = await command(connection, "subscription.subscribe", channels=["values"])
        assert opened["type"] == "success"
        holds[0] = False
        assert await closed(connection) == 4401


async def test_at_the_end_of_the_service_a_client_is_told_to_come_again(database: str) -> None:
    async with (
        asking(database, auth.nobody) as (served, url),
        connected(url, str(uuid.uuid4())) as silent,
        connected(url, str(uuid.uuid4())) as other,
    ):
        await command(other, "subscription.subscribe", channels=["values"])
        await command(silent, "make.coffee")
        served.shutdown.set()
        assert await closed(silent) == 1012
        assert await closed(other) == 1012


async def test_who_reads_nothing_is_cut_off_and_watches_no_more(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = sse.EventStream.__init__.__kwdefaults__
    monkeypatch.setitem(options, "send_timeout", 0.2)
    async with asking(database, auth.nobody) as (served, url):
        name, large = str(uuid.uuid4()), {"steps": ["x" * 1_000_000] * 3}
        left = asyncio.Event()
        monkeypatch.setattr(served.presence, "leave", _telling(served.presence.leave, left))
        await served.submit("steps", large, thread=name)
        with contextlib.closing(await asyncio.to_thread(_silent, url, name)):
            await asyncio.wait_for(left.wait(), WITHIN)


def _telling(leave: Any, left: asyncio.Event) -> Any:
    def told(*args: Any) -> None:
        leave(*args)
        left.set()

    return told


def _silent(url: str, thread: str) -> socket.socket:
    """A connection that asks for everything and takes nothing."""
    port = int(url.rpartition(":")[2])
    silent = socket.socket()
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.connect(("127.0.0.1", port))
    handshake = (
        f"GET /threads/{thread}/stream/events HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    silent.sendall("\r\n".join((*handshake, "", "")).encode())
    assert silent.recv(12).endswith(b" 101")
    wanted = {"channels": ["values", "updates", "lifecycle"]}
    text = json.dumps({"id": 1, "method": "subscription.subscribe", "params": wanted}).encode()
    silent.sendall(b"\x81" + bytes([0x80 | 126]) + struct.pack("!H", len(text)) + b"\0\0\0\0" + text)
    return silent
