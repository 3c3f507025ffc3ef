"""How a stream ends: its source is closed, once and at once, whatever client, server or source do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.routing import Route

from outlive import errors
from outlive.http import exchange, sse
from outlive.http.sse import Close

SPECS = [None, "2.0", "2.1", "2.3", "2.4", "2.5"]
BOUND = 10  # seconds; only a failure waits for it


class Client:
    """The server's side of one request, with a client that does what a test says."""

    def __init__(self, *, spec: str | None = "2.3", method: str = "GET", raises: bool = False) -> None:
        self.scope = {
            "type": "http",
            "method": method,
            "path": "/",
            "headers": [],
            "query_string": b"",
            "asgi": {"version": "3.0"} | ({} if spec is None else {"spec_version": spec}),
        }
        self.sent: list[dict[str, Any]] = []
        self.raises = raises  # whether send() raises once the client has left, as ASGI 2.4 allows
        self.gone = asyncio.Event()
        self.stuck = False
        self.changed = asyncio.Condition()
        self.asked = 0
        self.receiving = 0
        self.receives_cancelled_early = 0

    @property
    def over(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def receive(self) -> dict[str, Any]:
        assert self.receiving == 0, "two owners of receive()"
        self.asked += 1
        if self.asked == 1:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.receiving += 1
        try:
            await self.gone.wait()
        except asyncio.CancelledError:
            self.receives_cancelled_early += not self.over
            raise
        finally:
            self.receiving -= 1
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.stuck:
            async with self.changed:
                self.changed.notify_all()
            await asyncio.Event().wait()
        if self.gone.is_set() and self.raises:
            raise OSError("the client is gone")
        assert not self.over, "sent after the end"
        if not self.gone.is_set():
            self.sent.append(message)
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(BOUND), self.changed:
            await self.changed.wait_for(condition)

    def ask(self, response: Callable[..., Awaitable[None]]) -> asyncio.Task[None]:
        async def answer() -> None:
            await response(self.scope, self.receive, self.send)

        return asyncio.create_task(answer())


class Source:
    """Frames, and what became of the generator that makes them."""

    def __init__(self, frames: int = 1, *, then: str = "wait") -> None:
        self.count = frames
        self.then = then
        self.log: list[str] = []
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        self.log.append("began")
        owner = asyncio.current_task()
        try:
            for number in range(self.count):
                yield sse.frame(data=str(number), id=str(number))
            if self.then == "raise":
                raise LookupError("the database is at postgresql://secret")
            if self.then == "wait":
                self.waiting.set()
                await self.go.wait()
                yield sse.frame(data="late", id="late")
        except (asyncio.CancelledError, GeneratorExit) as end:
            self.log.append(type(end).__name__)
            raise
        finally:
            await turns(1)  # clean-up that must not be cut short
            assert asyncio.current_task() is owner
            self.log.append("closed")


async def failing(failure: Exception | None, go: asyncio.Event | None = None) -> AsyncGenerator[bytes, None]:
    if go is not None:
        await go.wait()
    if failure is not None:
        raise failure
    yield b""


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def while_time_passes(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def done(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(BOUND):
        await asyncio.wait((task,))
    task.result()


@pytest.fixture
def causes() -> list[Close]:
    return []


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if task.get_name().startswith("sse ")}
    assert left == set()
    assert exchange._stuck == set()


def stream(source: Source, causes: list[Close], **options: Any) -> sse.EventStream:
    async def on_close(cause: Close) -> None:
        assert source.log[-1:] != ["began"], "told before the source was closed"
        causes.append(cause)

    return sse.EventStream(source.frames(), on_close=on_close, **options)


@pytest.mark.parametrize("spec", SPECS)
async def test_a_complete_stream_is_sent_and_ended(spec: str | None, causes: list[Close]) -> None:
    client, source = Client(spec=spec), Source(3, then="end")
    await done(client.ask(stream(source, causes)))
    assert client.status == 200
    assert client.body == b"".join(sse.frame(data=str(n), id=str(n)) for n in range(3))
    assert client.over
    assert (source.log, causes) == (["began", "closed"], [Close.COMPLETE])


@pytest.mark.parametrize("raises", [False, True], ids=["send swallows", "send raises"])
@pytest.mark.parametrize("spec", SPECS)
async def test_a_client_that_leaves_while_the_source_waits_ends_the_stream(
    spec: str | None, raises: bool, causes: list[Close]
) -> None:
    client, source = Client(spec=spec, raises=raises), Source(1)
    task = client.ask(stream(source, causes))
    await source.waiting.wait()
    client.gone.set()
    await done(task)
    assert (source.log, causes) == (["began", "CancelledError", "closed"], [Close.DISCONNECT])
    assert len(client.sent) == 2
    assert client.receives_cancelled_early == 0


@pytest.mark.parametrize("spec", SPECS)
async def test_a_client_that_leaves_while_a_send_is_stuck_ends_the_stream(
    spec: str | None, causes: list[Close]
) -> None:
    client, source = Client(spec=spec), Source(1)
    client.stuck = True
    task = client.ask(stream(source, causes, first_frame_timeout=None))
    async with asyncio.timeout(BOUND), client.changed:
        await client.changed.wait()
    client.gone.set()
    await done(task)
    assert (source.log, causes) == (["began", "GeneratorExit", "closed"], [Close.DISCONNECT])


@pytest.mark.parametrize("spec", SPECS)
async def test_a_send_that_raises_ends_the_stream_without_an_error(
    spec: str | None, causes: list[Close]
) -> None:
    client, source = Client(spec=spec), Source(2)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise ConnectionResetError

    async with asyncio.timeout(BOUND):
        await stream(source, causes)(client.scope, client.receive, send)
    assert (source.log, causes) == (["began", "GeneratorExit", "closed"], [Close.DISCONNECT])


@pytest.mark.parametrize("spec", SPECS)
async def test_a_cancellation_by_the_server_closes_the_source_first_and_then_goes_on(
    spec: str | None, causes: list[Close]
) -> None:
    client, source = Client(spec=spec), Source(1)
    task = client.ask(stream(source, causes))
    await source.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await done(task)
    assert task.cancelled()
    assert (source.log, causes) == (["began", "CancelledError", "closed"], [Close.CANCELLED])
    assert not client.over


async def test_a_scope_that_cancels_at_every_await_does_not_cut_the_clean_up_short(
    causes: list[Close],
) -> None:
    client, source = Client(), Source(1)
    with anyio.fail_after(BOUND), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(stream(source, causes), client.scope, client.receive, client.send)
            await source.waiting.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert (source.log, causes) == (["began", "CancelledError", "closed"], [Close.CANCELLED])


async def test_a_second_cancellation_does_not_cut_the_clean_up_short(causes: list[Close]) -> None:
    client, closing, release = Client(), asyncio.Event(), asyncio.Event()
    log = []

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            closing.set()
            await release.wait()
            log.append("closed")

    task = client.ask(sse.EventStream(frames()))
    await client.until(lambda: len(client.sent) == 2)
    for _ in range(3):
        task.cancel()
        await closing.wait()
        await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await done(task)
    assert log == ["closed"]


async def test_a_source_that_goes_on_after_its_cancellation_is_not_heard() -> None:
    client, log = Client(), []

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield b"data: 2\n\n"
        finally:
            log.append("closed")

    task = client.ask(sse.EventStream(frames()))
    await client.until(lambda: client.body)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await done(task)
    assert (client.body, log) == (b"data: 1\n\n", ["closed"])


async def test_a_server_that_cancels_as_the_client_leaves_is_a_disconnect(causes: list[Close]) -> None:
    client, source = Client(), Source(1)

    async def receive() -> dict[str, Any]:
        message = await client.receive()
        await turns(5)  # through middlewares
        return message

    async def answer() -> None:
        await stream(source, causes)(client.scope, receive, client.send)

    task = asyncio.create_task(answer())
    await source.waiting.wait()
    client.gone.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await done(task)
    assert causes == [Close.DISCONNECT]


@pytest.mark.parametrize("spec", SPECS)
async def test_S09_shutdown_ends_a_stream_at_once_with_a_hint_and_no_terminal_event(
    spec: str | None, causes: list[Close]
) -> None:
    client, source, shutdown = Client(spec=spec), Source(1), sse.Shutdown()
    task = client.ask(stream(source, causes, shutdown=shutdown, retry_ms=100))
    await source.waiting.wait()
    threading.Thread(target=shutdown.set).start()
    await done(task)
    assert client.body == sse.frame(data="0", id="0") + b"retry: 100\n"
    assert client.over
    assert (source.log, causes) == (["began", "CancelledError", "closed"], [Close.SHUTDOWN])


async def test_S09_the_hint_does_not_wait_for_a_source_that_closes_slowly() -> None:
    client, shutdown, release = Client(), sse.Shutdown(), asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            await release.wait()

    task = client.ask(sse.EventStream(frames(), shutdown=shutdown))
    await client.until(lambda: client.body)
    shutdown.set()
    await client.until(lambda: client.over)
    assert not task.done()
    release.set()
    await done(task)


async def test_S09_a_stream_that_is_asked_for_during_shutdown_is_told_to_come_back(
    causes: list[Close],
) -> None:
    client, source, shutdown = Client(), Source(0), sse.Shutdown()
    shutdown.set()
    await done(client.ask(stream(source, causes, shutdown=shutdown)))
    assert (client.status, client.body, client.over) == (200, b"retry: 250\n", True)
    assert causes == [Close.SHUTDOWN]


async def test_a_stream_rotates_with_a_hint(causes: list[Close]) -> None:
    client, source = Client(), Source(1)
    await done(client.ask(stream(source, causes, rotate_after=0.01)))
    assert client.body == sse.frame(data="0", id="0") + b"retry: 250\n"
    assert client.over
    assert (source.log, causes) == (["began", "CancelledError", "closed"], [Close.ROTATE])


async def test_a_reader_that_takes_nothing_is_cut_off_without_an_end(causes: list[Close]) -> None:
    client, source = Client(), Source(1)
    task = client.ask(stream(source, causes, send_timeout=0.02, heartbeat=0.02))
    await client.until(lambda: len(client.sent) == 2)
    client.stuck = True
    await done(task)
    assert not client.over
    assert (source.log, causes) == (["began", "CancelledError", "closed"], [Close.SLOW])


async def test_heartbeats_fill_a_silence_and_leave_the_source_waiting(causes: list[Close]) -> None:
    client, source = Client(), Source(1)
    task = client.ask(stream(source, causes, heartbeat=0.01))
    await client.until(lambda: client.body.endswith(sse.HEARTBEAT * 3))
    assert source.log == ["began"]
    source.go.set()
    await done(task)
    frames = client.body.replace(b"\n:\n", b"\n").replace(b"\n:\n", b"\n").replace(b"\n:\n", b"\n")
    assert frames.replace(b":\n", b"") == sse.frame(data="0", id="0") + sse.frame(data="late", id="late")
    assert (source.log, causes) == (["began", "closed"], [Close.COMPLETE])


async def test_a_server_that_reports_the_end_as_a_disconnect_does_not_spoil_it(causes: list[Close]) -> None:
    client, source = Client(), Source(1, then="end")

    async def send(message: Any) -> None:
        await client.send(message)
        if client.over:
            client.gone.set()  # some report it before their send() returns
            await turns(10)

    async with asyncio.timeout(BOUND):
        await stream(source, causes)(client.scope, client.receive, send)
    assert causes == [Close.COMPLETE]


async def test_no_heartbeat_follows_a_frame_or_the_end_that_it_had_to_wait_for(causes: list[Close]) -> None:
    client, source = Client(), Source(3, then="end")

    async def send(message: Any) -> None:
        await while_time_passes(0.05 if message.get("body") != sse.frame(data="0", id="0") else 0)
        await client.send(message)

    async with asyncio.timeout(BOUND):
        await stream(source, causes, heartbeat=0.04)(client.scope, client.receive, send)
    assert client.body == b"".join(sse.frame(data=str(n), id=str(n)) for n in range(3))
    assert causes == [Close.COMPLETE]


async def test_a_busy_stream_has_no_heartbeats() -> None:
    client = Client()

    async def frames() -> AsyncGenerator[bytes, None]:
        for number in range(20_000):
            yield sse.frame(data=str(number))

    await done(client.ask(sse.EventStream(frames(), heartbeat=5)))
    assert sse.HEARTBEAT not in client.body.replace(b"\ndata:", b"")
    assert client.body.count(b"data: ") == 20_000


async def test_a_source_that_never_waits_still_lets_the_client_leave(causes: list[Close]) -> None:
    client, closed = Client(), []

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                client.gone.set()
                yield b"data: 1\n\n"
        finally:
            closed.append(True)

    await done(client.ask(sse.EventStream(frames())))
    assert closed == [True]


async def test_an_iterator_that_is_no_generator_is_closed_too(causes: list[Close]) -> None:
    class Frames:
        log: list[str] = []  # noqa: RUF012

        def __aiter__(self) -> Frames:
            return self

        async def __anext__(self) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

        async def aclose(self) -> None:
            self.log.append("closed")

    client = Client()
    client.gone.set()
    await done(client.ask(sse.EventStream(Frames())))
    assert Frames.log == ["closed"]
    client = Client(method="HEAD")
    await done(client.ask(sse.EventStream(Frames())))
    assert Frames.log == ["closed", "closed"]


async def test_a_loop_that_is_torn_down_before_the_first_frame_was_asked_for_closes_the_source() -> None:
    closed = []

    class Frames:
        def __aiter__(self) -> Frames:
            return self

        async def __anext__(self) -> bytes:
            raise AssertionError("asked for a frame")

        async def aclose(self) -> None:
            closed.append(True)

    client, before = Client(), asyncio.all_tasks()
    task = client.ask(sse.EventStream(Frames()))
    for _ in range(10):
        if any(each.get_name() == "sse pump" for each in asyncio.all_tasks()):
            break
        await asyncio.sleep(0)
    for each in asyncio.all_tasks() - before:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await done(task)
    assert closed == [True]


async def test_HEAD_is_answered_without_asking_for_a_frame(causes: list[Close]) -> None:
    client, source = Client(method="HEAD"), Source(1)
    ran: list[int] = []
    await done(client.ask(stream(source, causes, background=BackgroundTask(ran.append, 1))))
    assert (client.status, client.body, client.over) == (200, b"", True)
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (source.log, causes, ran) == ([], [Close.HEAD], [])


async def test_proxies_are_told_neither_to_store_nor_to_buffer_whatever_the_caller_asked_for() -> None:
    client, source = Client(), Source(0, then="end")
    asked = {
        "Content-Length": "3",
        "Cache-Control": "public",
        "Content-Location": "/runs/1",
        "Content-Type": "a/b",
    }
    await done(client.ask(sse.EventStream(source.frames(), status_code=201, headers=asked)))
    assert client.status == 201
    assert client.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
        "content-location": "/runs/1",
    }


async def test_S17_an_error_before_the_first_byte_raises_so_that_the_status_is_real(
    causes: list[Close],
) -> None:
    client, source = Client(), Source(0, then="raise")
    with pytest.raises(LookupError):
        await done(client.ask(stream(source, causes)))
    assert client.sent == []
    assert causes == [Close.ERROR]


async def test_S17_a_framework_answers_an_early_error_with_its_status() -> None:
    async def endpoint(_: Request) -> sse.EventStream:
        return sse.EventStream(failing(HTTPException(409, "busy")))

    client = Client()
    await done(client.ask(Starlette(routes=[Route("/", endpoint)])))
    assert (client.status, client.body) == (409, b"busy")


async def test_S17_an_error_after_the_first_byte_is_an_event_that_shows_nothing_internal(
    causes: list[Close],
) -> None:
    client, source = Client(), Source(2, then="raise")
    ran: list[int] = []
    with pytest.raises(LookupError):
        await done(client.ask(stream(source, causes, background=BackgroundTask(ran.append, 1))))
    assert client.over
    assert client.body.count(b"event: error\n") == 1
    assert b'"code": "stream_failed"' in client.body
    assert b"secret" not in client.body
    assert b"LookupError" not in client.body
    assert (causes, ran) == ([Close.ERROR], [])


async def test_S17_headers_go_out_when_the_first_frame_is_late_and_an_error_then_is_an_event() -> None:
    client, go = Client(), asyncio.Event()

    failure = errors.StoreUnavailable("The database did not answer.", run_id="r1")
    task = client.ask(sse.EventStream(failing(failure, go), first_frame_timeout=0.01))
    await client.until(lambda: client.body == sse.HEARTBEAT)
    go.set()
    with pytest.raises(errors.StoreUnavailable):
        await done(task)
    assert b'"run_id": "r1"' in client.body


async def test_the_status_waits_for_the_first_frame_when_it_is_told_to() -> None:
    client, source = Client(), Source(0, then="wait")
    task = client.ask(sse.EventStream(source.frames(), first_frame_timeout=None, heartbeat=0.001))
    await source.waiting.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.until(lambda: client.sent)
    source.go.set()
    await done(task)
    assert client.body == sse.frame(data="late", id="late")


async def test_an_error_event_of_ones_own_is_sent_and_a_broken_one_is_replaced(causes: list[Close]) -> None:
    client, source = Client(), Source(1, then="raise")
    with pytest.raises(LookupError):
        await done(client.ask(stream(source, causes, error_frame=lambda _: b"event: error\ndata: mine\n\n")))
    assert client.body.endswith(b"event: error\ndata: mine\n\n")
    client, source = Client(), Source(1, then="raise")
    with pytest.raises(ExceptionGroup) as caught:
        await done(client.ask(stream(source, causes, error_frame=lambda _: bytes(1 // 0))))
    assert caught.group_contains(LookupError)
    assert caught.group_contains(ZeroDivisionError)
    assert b'"code": "stream_failed"' in client.body


async def test_a_source_that_was_cancelled_by_somebody_else_ends_in_an_error(causes: list[Close]) -> None:
    client = Client()

    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise asyncio.CancelledError

    await done(client.ask(sse.EventStream(frames(), on_close=functools.partial(_note, causes))))
    assert causes == [Close.ERROR]
    assert b"event: error\n" in client.body


async def _note(causes: list[Close], cause: Close) -> None:
    causes.append(cause)


async def test_background_work_runs_after_a_complete_stream_and_only_then(causes: list[Close]) -> None:
    order: list[object] = []

    async def on_close(cause: Close) -> None:
        order.append(cause)

    background = BackgroundTask(order.append, "background")
    client, source = Client(), Source(1, then="end")
    await done(client.ask(sse.EventStream(source.frames(), background=background, on_close=on_close)))
    assert order == [Close.COMPLETE, "background"]
    client, source = Client(), Source(1)
    task = client.ask(sse.EventStream(source.frames(), background=background, on_close=on_close))
    await source.waiting.wait()
    client.gone.set()
    await done(task)
    assert order == [Close.COMPLETE, "background", Close.DISCONNECT]


async def test_a_hook_that_fails_or_hangs_is_reported_after_everything_is_closed() -> None:
    async def fails(_: Close) -> None:
        raise LookupError

    async def hangs(_: Close) -> None:
        await asyncio.Event().wait()

    client, source = Client(), Source(1, then="end")
    with pytest.raises(LookupError):
        await done(client.ask(sse.EventStream(source.frames(), on_close=fails)))
    client, source = Client(), Source(1, then="end")
    with pytest.raises(TimeoutError, match=r"on_close took more than 0\.01 s"):
        await done(client.ask(sse.EventStream(source.frames(), on_close=hangs, close_timeout=0.01)))
    assert source.log == ["began", "closed"]


async def test_a_source_that_closes_too_slowly_is_cancelled_again_and_reported(causes: list[Close]) -> None:
    client, log = Client(), []

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                log.append("cut short")

    task = client.ask(
        sse.EventStream(frames(), close_timeout=0.01, on_close=functools.partial(_note, causes))
    )
    await client.until(lambda: client.body)
    client.gone.set()
    with pytest.raises(TimeoutError, match=r"took more than 0\.01 s to close"):
        await done(task)
    assert (log, causes) == (["cut short"], [Close.DISCONNECT])


async def test_a_failure_during_a_cancellation_is_told_to_the_event_loop() -> None:
    client, told = Client(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            raise LookupError("closing failed")

    task = client.ask(sse.EventStream(frames()))
    await client.until(lambda: client.body)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await done(task)
    asyncio.get_running_loop().set_exception_handler(None)
    assert [str(failure) for failure in told] == ["closing failed"]


async def test_frames_that_are_no_async_iterable_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="not list"):
        sse.EventStream([b""])  # type: ignore[arg-type]


class Layers:
    """Three generators inside each other: the innermost holds a slot, and each has a habit of its own."""

    def __init__(self) -> None:
        self.slots = 0
        self.taken = asyncio.Event()

    async def inner(self) -> AsyncGenerator[bytes, None]:
        self.slots += 1
        try:
            yield b"data: 1\n\n"
            self.taken.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.slots -= 1

    async def middle(self, *, slow: bool) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self.inner()) as inner:
            try:
                async for piece in inner:
                    yield piece
            finally:
                if slow:
                    await asyncio.Event().wait()

    async def outer(self, *, slow: bool = False, yields: bool = False) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self.middle(slow=slow)) as middle:
            try:
                async for piece in middle:
                    yield piece
            finally:
                if yields:
                    yield b"event: done\ndata: 1\n\n"


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
async def test_S03_nested_generators_are_closed_without_the_collector_100_times(causes: list[Close]) -> None:
    for _ in range(100):
        layers, client = Layers(), Client()
        task = client.ask(sse.EventStream(layers.outer(), on_close=functools.partial(_note, causes)))
        await layers.taken.wait()
        assert layers.slots == 1
        client.gone.set()
        await done(task)
        assert layers.slots == 0
    assert causes == [Close.DISCONNECT] * 100


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("where", ["in the source", "in send"])
async def test_S03_a_layer_that_yields_while_it_is_closed_loses_nothing_further_in(where: str) -> None:
    layers, client = Layers(), Client()
    client.stuck = where == "in send"
    task = client.ask(sse.EventStream(layers.outer(yields=True)))
    if client.stuck:
        async with asyncio.timeout(BOUND), client.changed:
            await client.changed.wait()
    else:
        await layers.taken.wait()
    client.gone.set()
    if client.stuck:
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            await done(task)
    else:
        await done(task)
    assert layers.slots == 0
    assert b"done" not in client.body


@pytest.mark.usefixtures("_no_collector")
async def test_S03_a_layer_that_hangs_while_it_is_closed_is_cut_short_and_reported() -> None:
    layers, client = Layers(), Client()
    task = client.ask(sse.EventStream(layers.outer(slow=True), close_timeout=0.02))
    await layers.taken.wait()
    client.gone.set()
    with pytest.raises(TimeoutError):
        await done(task)
    assert layers.slots == 0


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("end", ["leave", "complete", "shutdown", "early"])
async def test_a_middleware_that_wraps_receive_and_send_changes_nothing(
    end: str, spec: str | None, causes: list[Close]
) -> None:
    source, shutdown = Source(1 if end != "early" else 0), sse.Shutdown()

    async def endpoint(_: Request) -> sse.EventStream:
        return stream(source, causes, shutdown=shutdown, first_frame_timeout=None)

    async def through(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    wrapped = [Middleware(BaseHTTPMiddleware, dispatch=through) for _ in range(2)]
    client = Client(spec=spec)
    task = client.ask(Starlette(routes=[Route("/", endpoint)], middleware=wrapped))
    await source.waiting.wait()
    if end in ("leave", "early"):
        client.gone.set()
    elif end == "complete":
        source.go.set()
    else:
        shutdown.set()
    await done(task)
    cause = {"complete": Close.COMPLETE, "shutdown": Close.SHUTDOWN}.get(end, Close.DISCONNECT)
    assert causes == [cause]
    assert source.log[-1] == "closed"
    assert client.over == (cause is not Close.DISCONNECT)
