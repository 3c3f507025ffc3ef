"""One request that is answered with a stream: who waits for what, and how it ends.

Decides: who reads ``receive()``; when something is sent, and what the last of it is; that the source of the
frames is closed, by us and at once, however the stream ends. Does not decide: what the frames say.

The announced ASGI version is never looked at. Servers differ in what they announce and in what they do, so we
always listen for the client, and always cope with a ``send()`` that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, Final, assert_never

import anyio
from starlette.types import Message, Receive, Send

from outlive.http import frames

_LAST_WORDS: Final = 2.0  # seconds for a hint or an error event; who cannot take it resumes by its cursor
_LOOSE_ENDS: Final = 1.0  # seconds for a cancelled task to end
_BREATH: Final = 0.05  # seconds in which a server that cancelled us may still say why
_NEVER: Final = 86_400.0 * 365  # seconds; not every event loop can sleep for math.inf

_stuck: Final[set[asyncio.Task[None]]] = set()
"""Tasks that did not end when cancelled, kept alive so that nothing collects them while they run."""


class Close(enum.StrEnum):
    """How a stream ended. Only `complete` says that everything was handed to the server."""

    COMPLETE = "complete"
    DISCONNECT = "disconnect"
    SLOW = "slow"
    ROTATE = "rotate"
    SHUTDOWN = "shutdown"
    ERROR = "error"
    CANCELLED = "cancelled"
    HEAD = "head"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What an `EventStream` was told; its constructor explains them."""

    heartbeat: float | None
    send_timeout: float | None
    first_frame_timeout: float | None
    rotate_after: float | None
    close_timeout: float
    beat: bytes
    hint: bytes | None
    on_close: Callable[[Close], Awaitable[None]] | None
    error_frame: Callable[[Exception], bytes]


class _Over(Exception):
    """Nothing more can be sent."""

    def __init__(self, cause: Close) -> None:
        super().__init__(cause)
        self.cause = cause


class Wire:
    """The sending side: one message at a time, and the start of the response before the first of them."""

    def __init__(self, send: Send, start: Message, timeout: float | None, beat: bytes) -> None:
        self.send = send
        self.heartbeat = beat
        self.start = start
        self.timeout = timeout
        self.opened = asyncio.Event()
        self.over = False
        self.lock = asyncio.Lock()
        self.last = asyncio.get_running_loop().time()

    async def write(self, body: bytes, *, more: bool = True) -> None:
        async with self.lock:
            if self.over:
                raise _Over(Close.CANCELLED)
            self.over = not more
            await self._put(body, more=more)

    async def beat(self, interval: float) -> None:
        """Write a heartbeat, unless something was written while we waited for our turn."""
        async with self.lock:
            if not self.over and self.quiet() >= interval:
                await self._put(self.heartbeat, more=True)

    async def finish(self, body: bytes) -> None:
        """The last words, for a client that takes them at once."""
        self.over = True
        with contextlib.suppress(_Over, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS), self.lock:
                await self._put(body, more=False)

    def quiet(self) -> float:
        """Seconds since something was sent."""
        return asyncio.get_running_loop().time() - self.last

    async def _put(self, body: bytes, *, more: bool) -> None:
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                if not self.opened.is_set():
                    self.opened.set()  # before it is sent: a start that failed cannot be sent again either
                    await self.send(self.start)
                await self.send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError as failure:  # TimeoutError is one
            raise _Over(Close.SLOW if limit.expired() else Close.DISCONNECT) from failure
        self.last = asyncio.get_running_loop().time()


class Exchange:
    """Three tasks, of which the first to end decides how the stream ends, and the tidying up after them.

    All of it runs in a task that the server does not know and so cannot cancel; `cancelled` tells it of that.
    """

    def __init__(
        self,
        source: AsyncIterable[bytes],
        options: Options,
        receive: Receive,
        wire: Wire,
        stopped: asyncio.Future[None],
    ) -> None:
        self.source = source
        self.options = options
        self.receive = receive
        self.wire = wire
        self.stopped = stopped
        self.cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.left = False
        self.closed = False
        self.failures: list[Exception] = []

    async def answer(self, method: str) -> Close:
        """Stream until something ends it, tidy up, and say what it was. Raise what failed on the way."""
        task = asyncio.create_task(self._head() if method == "HEAD" else self._stream())
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            resolve(self.cancelled)
            await _outlast(task)
            raise
        return task.result()

    async def _head(self) -> Close:
        await self._within("closing the source of the frames", self._close(self.source))
        await self._within("sending the headers", self.wire.finish(b""))
        return await self._settle(Close.HEAD)

    async def _stream(self) -> Close:
        iterator = aiter(self.source)
        works = {"pump": self._pump(iterator), "pulse": self._beat(), "listener": self._listen()}
        self.tasks = {name: asyncio.create_task(work, name=f"sse {name}") for name, work in works.items()}
        cause = await self._first_to_end()
        self.wire.over = True
        self.tasks["pump"].cancel()
        self.tasks["pulse"].cancel()
        words = self._last_words(cause)
        if words is not None:
            await self._within("sending the last words", self.wire.finish(words))
        await self._until_closed(iterator)
        # Only now: some servers take a cancelled receive() for a client that has left.
        self.tasks["listener"].cancel()
        await asyncio.wait((self.tasks["pulse"], self.tasks["listener"]), timeout=_LOOSE_ENDS)
        self._collect()
        return await self._settle(cause)

    async def _pump(self, iterator: AsyncIterator[bytes]) -> None:
        """From the source to the wire. A frame is asked for when the one before it was taken."""
        try:
            async for piece in iterator:
                await self.wire.write(piece)
                # Perhaps neither source nor server ever waits. Then nobody would hear the client leave, and
                # a server that only finds out in its next turn would be handed frames for a closed socket.
                await asyncio.sleep(0)
        finally:
            await self._close(iterator)
        await self.wire.write(b"", more=False)

    async def _beat(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.first_frame_timeout):
                await self.wire.opened.wait()
        if not self.wire.opened.is_set():
            await self.wire.beat(0)
        interval = self.options.heartbeat or _NEVER
        while True:
            await asyncio.sleep(max(interval - self.wire.quiet(), 0))
            await self.wire.beat(interval)

    async def _listen(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":  # noqa: ASYNC110
            await asyncio.sleep(0)  # a receive() that never waits must not keep the loop
        if self.wire.over:
            # The end of a response is a disconnect too, and some middlewares report it before send() returns.
            await asyncio.wait((self.tasks["pump"],), timeout=_LOOSE_ENDS)
        self.left = not self.tasks["pump"].done()

    async def _first_to_end(self) -> Close:
        ends = (*self.tasks.values(), self.stopped, self.cancelled)
        try:
            await asyncio.wait(ends, timeout=self.options.rotate_after, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the loop is being torn down
            resolve(self.cancelled)
        listener = self.tasks["listener"]
        if self.cancelled.done():
            # Some servers cancel a request in the same breath in which they say that its client has left.
            await asyncio.wait((listener,), timeout=_BREATH)
        if self.left:
            return Close.DISCONNECT
        if self.cancelled.done():
            return Close.CANCELLED
        ended = next((task for task in self.tasks.values() if task.done()), None)
        if ended is not None:
            return _outcome(ended)
        return Close.SHUTDOWN if self.stopped.done() else Close.ROTATE

    def _last_words(self, cause: Close) -> bytes | None:
        """What the client is still told, or None if nothing can or need be sent."""
        opened = self.wire.opened.is_set()
        match cause:
            case Close.ROTATE | Close.SHUTDOWN:
                return self.options.hint
            case Close.ERROR:
                return self._error_event() if opened else None
            case Close.DISCONNECT:
                # Some middlewares take a response that never starts for a fault.
                return None if opened else b""
            case Close.COMPLETE | Close.SLOW | Close.CANCELLED | Close.HEAD:
                return None
        assert_never(cause)

    def _error_event(self) -> bytes:
        found = (_failure(task) for task in self.tasks.values())
        failure = next(filter(None, found), RuntimeError())
        try:
            return self.options.error_frame(failure)
        except Exception as second:
            self.failures.append(second)
            return frames.error_frame(failure)

    async def _until_closed(self, iterator: AsyncIterator[bytes]) -> None:
        pump = self.tasks["pump"]
        limit = self.options.close_timeout
        await asyncio.wait((pump,), timeout=limit)
        if not pump.done():
            self.failures.append(
                TimeoutError(f"the source of the frames took more than {limit:g} s to close")
            )
            pump.cancel()
            await asyncio.wait((pump,), timeout=_LOOSE_ENDS)
        if not self.closed:  # the task was cancelled before its first step
            await self._within("closing the source of the frames", self._close(iterator))

    async def _close(self, source: Any) -> None:
        self.closed = True
        if not hasattr(source, "aclose"):
            return
        try:
            await source.aclose()
        except RuntimeError:
            if isinstance(source, AsyncGenerator):
                # Perhaps it yielded while it was closed. That is a fault; but asked to go on, it lets go of
                # what it holds further in, which a second aclose() would not make it do.
                with contextlib.suppress(StopAsyncIteration, GeneratorExit):
                    await anext(source)
            raise

    async def _within(self, what: str, work: Awaitable[None]) -> None:
        """Await it for `close_timeout` at most. A failure waits until everything is tidied up."""
        limit = asyncio.timeout(self.options.close_timeout)
        try:
            async with limit:
                await work
        except Exception as failure:
            late = TimeoutError(f"{what} took more than {self.options.close_timeout:g} s")
            self.failures.append(late if limit.expired() else failure)

    def _collect(self) -> None:
        for task in self.tasks.values():
            if not task.done():
                _stuck.add(task)
                task.add_done_callback(_stuck.discard)
            elif failure := _failure(task):
                self.failures.append(failure)

    async def _settle(self, cause: Close) -> Close:
        if self.options.on_close is not None:
            await self._within("on_close", self.options.on_close(cause))
        if len(self.failures) > 1:
            raise ExceptionGroup("an event stream failed in more than one way", self.failures)
        if self.failures:
            raise self.failures[0]
        return cause


def resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _outlast(task: asyncio.Task[Close]) -> None:
    """Wait for its end although we are cancelled. What it takes is bounded by the time-outs of its parts."""
    with anyio.CancelScope(shield=True):  # an anyio scope cancels again at every await
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
    failure = None if task.cancelled() else task.exception()
    if failure is not None:
        # Only the cancellation can be raised; this is where asyncio reports what nobody can be told.
        context = {"message": "an event stream failed while its request was cancelled", "exception": failure}
        asyncio.get_running_loop().call_exception_handler(context)


def _outcome(task: asyncio.Task[None]) -> Close:
    """How a task that is done ends the stream. One that was cancelled by somebody else failed."""
    if task.cancelled():
        return Close.ERROR
    failure = task.exception()
    if isinstance(failure, _Over):
        return failure.cause
    return Close.COMPLETE if failure is None else Close.ERROR


def _failure(task: asyncio.Task[None]) -> Exception | None:
    """Why it failed, unless it was cancelled or only found out that nothing more can be sent."""
    failure = task.exception() if task.done() and not task.cancelled() else None
    return failure if isinstance(failure, Exception) and not isinstance(failure, _Over) else None
