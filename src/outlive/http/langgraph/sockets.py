"""The event stream protocol over a WebSocket: commands in, answers and events out, on one connection.

Decides how frames become requests and back.  Each subscription and each command is a request to this very
application, with what the handshake said of who asks: so whoever may not ask over HTTP may not here, an end
of credentials ends a subscription, and who reads too slowly is cut off, by the same code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from starlette.types import Message, Scope

from outlive import seams
from outlive.http.langgraph.plane import Plane

Answer = dict[str, Any]
MOST = 32
"""Subscriptions that one connection may have."""
CLOSE_SECONDS = 6.0
"""For subscriptions to end and the last frame to go out; a little more than a stream may take to close."""
_PATH = "/stream/events"
_OF_THE_HANDSHAKE = (b"connection", b"upgrade", b"content-length", b"content-type", b"transfer-encoding")
_AWAY, _FAULT, _AGAIN = 1012, 1011, 1013
_WORDS = {
    400: "invalid_argument",
    401: "permission_denied",
    403: "permission_denied",
    404: "invalid_argument",
}
_WORDS |= {413: "invalid_argument", 422: "invalid_argument"}


def add(routes: APIRouter, plane: Plane) -> None:
    """Add the route.  It asks nobody who they are: the requests that it makes do."""

    async def serve(websocket: WebSocket, thread_id: str) -> None:
        del thread_id  # it is in the path of the requests
        await _Socket(plane, websocket).serve()

    routes.add_api_websocket_route("/threads/{thread_id}" + _PATH, serve)


@dataclass(kw_only=True, eq=False, slots=True)
class _Asked:
    """A request to the application that the connection came to; ``taken`` gets its body, piece by piece."""

    scope: Scope
    body: bytes
    taken: Callable[[bytes], Awaitable[None]]
    status: int = 0
    complete: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _sent: bool = False

    async def run(self) -> None:
        """Ask, until the answer is over; raises what the application raises."""
        await self.scope["app"](self.scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.begun.set()
            return
        if piece := message.get("body"):
            await self.taken(piece)
        self.complete = self.complete or not message.get("more_body", False)


class _Socket:
    """One connection."""

    def __init__(self, plane: Plane, websocket: WebSocket) -> None:
        self._plane = plane
        self._websocket = websocket
        self._lock = asyncio.Lock()
        self._asked: dict[str, tuple[_Asked, asyncio.Task[None]]] = {}
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Answer frames until either side leaves."""
        await self._websocket.accept()
        code = await self._refused()
        if code is None:
            code = await self._until_over()
        if code is not None:
            await self._close(code)

    async def _refused(self) -> int | None:
        """Say whether these credentials do not reach to this thread; the code has the status in it.

        A browser cannot read the status of a handshake that was refused.
        """
        status, _ = await self._ask("GET", "", b"")
        return None if status < 300 or status == 404 else 4000 + status

    async def _until_over(self) -> int | None:
        """Serve until something ends it; returns the code to close with, None if the client has left."""
        reading = asyncio.create_task(self._read())
        try:
            with self._plane.outlive.shutdown.future() as stopped:
                over: set[asyncio.Future[Any]] = {reading, self._ended, stopped}
                await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()
                    return None
                if stopped.done():
                    return _AWAY
            return await self._why(self._ended.result())
        finally:
            reading.cancel()
            await self._leave_all()
            await asyncio.wait({reading}, timeout=CLOSE_SECONDS)

    async def _why(self, name: str) -> int:
        """Return the code for a subscription that ended by itself."""
        asked, task = self._asked[name]
        if not task.cancelled() and task.exception() is not None:
            return _FAULT
        if not asked.complete:
            return _AGAIN
        return await self._refused() or _AWAY

    async def _leave_all(self) -> None:
        for asked, _ in self._asked.values():
            asked.left.set()
        tasks = {task for _, task in self._asked.values()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _close(self, code: int) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._websocket.close(code)
        except (TimeoutError, RuntimeError, OSError, WebSocketDisconnect):
            return  # nobody is there to take it

    # ------------------------------------------------------------ frames

    async def _read(self) -> None:
        """Carry out one command after another."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await self._carry_out(message.get("text") or message.get("bytes") or "")

    async def _carry_out(self, given: str | bytes) -> None:
        command = _command(given)
        if command is None:
            await self._say(
                _refusal(None, "invalid_argument", "A frame is a JSON object with id and method.")
            )
            return
        match command["method"]:
            case "subscription.subscribe":
                await self._subscribe(command["id"], command.get("params"))
            case "subscription.unsubscribe":
                await self._unsubscribe(command["id"], command.get("params"))
            case _:
                body = given.encode() if isinstance(given, str) else given
                status, answer = await self._ask("POST", "/commands", body)
                good = status == 200
                await self._say(answer if good else _refusal(command["id"], _word(status), _detail(answer)))

    async def _subscribe(self, number: Any, params: Any) -> None:
        if len(self._asked) >= MOST:
            await self._say(_refusal(number, "unknown_error", f"There are {MOST} subscriptions already."))
            return
        name, events, opened = seams.new_id(), _Events(), asyncio.Event()

        async def taken(piece: bytes) -> None:
            events.add(piece)
            if asked.status == 200:
                await opened.wait()
                for text in events.take():
                    await self._send(text)

        scope = self._scope("POST", _PATH)
        asked = _Asked(scope=scope, body=json.dumps(params).encode(), taken=taken)
        task = asyncio.create_task(asked.run())
        self._asked[name] = asked, task
        begun = asyncio.create_task(asked.begun.wait())
        await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if asked.status != 200:
            await asyncio.wait({task})
            del self._asked[name]
            task.result()
            await self._say(_refusal(number, _word(asked.status), _detail(_parsed(events.rest))))
            return
        await self._say({"type": "success", "id": number, "result": {"subscription_id": name}})
        opened.set()
        task.add_done_callback(lambda _: self._over(name))

    def _over(self, name: str) -> None:
        """A subscription that nobody took back has ended: the connection ends with it."""
        if name in self._asked and not self._asked[name][0].left.is_set() and not self._ended.done():
            self._ended.set_result(name)

    async def _unsubscribe(self, number: Any, params: Any) -> None:
        name = params.get("subscription_id") if isinstance(params, dict) else None
        if not isinstance(name, str) or name not in self._asked:
            await self._say(_refusal(number, "no_such_subscription", "There is no such subscription."))
            return
        asked, task = self._asked[name]
        asked.left.set()
        await asyncio.wait({task})
        del self._asked[name]
        task.result()
        await self._say({"type": "success", "id": number, "result": {}})

    async def _say(self, answer: Any) -> None:
        await self._send(json.dumps(answer))

    async def _send(self, text: str) -> None:
        try:
            async with self._lock:
                await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as gone:
            raise OSError("the client has left") from gone  # as every server says it of a response

    # ------------------------------------------------------------ requests

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Ask the application for something that has an end; returns its status and its JSON."""
        received = bytearray()

        async def taken(piece: bytes) -> None:
            received.extend(piece)

        asked = _Asked(scope=self._scope(method, path), body=body, taken=taken)
        await asked.run()
        return asked.status, _parsed(bytes(received))

    def _scope(self, method: str, path: str) -> Scope:
        """Return a request of whoever shook hands, for a path below this connection's thread."""
        mine = self._websocket.scope
        return {
            "type": "http",
            "asgi": mine["asgi"],
            "http_version": "1.1",
            "method": method,
            "scheme": "https" if mine.get("scheme") == "wss" else "http",
            "path": mine["path"].removesuffix(_PATH) + path,
            "raw_path": mine.get("raw_path", mine["path"].encode()).removesuffix(_PATH.encode())
            + path.encode(),
            "query_string": mine.get("query_string", b""),
            "root_path": mine.get("root_path", ""),
            "headers": [*_headers(mine), (b"content-type", b"application/json")],
            "client": mine.get("client"),
            "server": mine.get("server"),
            "state": dict(mine.get("state", {})),
            "app": mine["app"],
        }


def _headers(scope: Scope) -> Iterator[tuple[bytes, bytes]]:
    """The headers of the handshake, without its own.

    Browsers send cookies along to any origin's socket, and let the page read the answers: what they keep from
    a page of another origin over HTTP must be kept from it here.
    """
    given = dict(scope["headers"])
    foreign = b"origin" in given and urlsplit(given[b"origin"]).netloc != given.get(b"host")
    for name, value in scope["headers"]:
        of_the_handshake = name in _OF_THE_HANDSHAKE or name.startswith(b"sec-websocket-")
        if not of_the_handshake and not (foreign and name == b"cookie"):
            yield name, value


class _Events:
    """Takes server-sent events apart, as far as our own streams have them."""

    def __init__(self) -> None:
        self.rest = b""

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.rest += piece

    def take(self) -> list[str]:
        """Return the data of the events that are whole, each as one frame; errors in the protocol's form."""
        *whole, self.rest = self.rest.split(b"\n\n")
        return [text for block in whole if (text := _text(block)) is not None]


def _text(block: bytes) -> str | None:
    fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
    data = fields.get(b"data")
    if data is None:
        return None  # a heartbeat, or a hint when to come again
    if fields.get(b"event") == b"error" and b"id" not in fields:
        told = json.loads(data)
        return json.dumps(_refusal(None, "unknown_error", str(told.get("message"))))
    return data.decode("ascii")


def _command(given: str | bytes) -> Answer | None:
    command = _parsed(given)
    whole = isinstance(command, dict) and isinstance(command.get("method"), str)
    return command if whole and isinstance(command.get("id"), int) else None


def _parsed(given: str | bytes) -> Any:
    try:
        return json.loads(given)
    except ValueError:
        return None


def _word(status: int) -> str:
    return _WORDS.get(status, "unknown_error")


def _detail(answer: Any) -> str:
    told = answer.get("detail") if isinstance(answer, dict) else None
    return told if isinstance(told, str) else "The server failed."


def _refusal(number: Any, word: str, message: str) -> Answer:
    return {"type": "error", "id": number, "error": word, "message": message}
