"""Server-sent events for any FastAPI or Starlette handler, on any ASGI server.

Decides: what an application hands over, and what it is told. Does not decide: the bytes of a frame
(`frames`), or who waits for what while a stream is open (`exchange`).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from typing import ClassVar

from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outlive.http import exchange, frames
from outlive.http.exchange import Close as Close
from outlive.http.frames import HEARTBEAT as HEARTBEAT
from outlive.http.frames import error_frame as error_frame
from outlive.http.frames import frame as frame
from outlive.shutdown import Shutdown as Shutdown


class EventStream(Response):
    """A response that streams frames: ``return EventStream(events())`` in any handler.

    The source is iterated and closed in one task of its own, so that its clean-up is neither cut short nor
    left to the garbage collector. It is closed at every end: exhausted, client gone, slow reader, rotation,
    shutdown, an error, a cancellation by the server; also when its first frame was never asked for. It is
    cancelled once, and again after `close_timeout`. A source that fails to close raises out of the response.

    Before the first byte an error of the source raises, so that the framework answers with a real status.
    After it the client gets one ``error`` event and a proper end of the body, and the error raises as well.

    A reader that is cut off for being slow gets no end of the body; servers log an incomplete response.

    `background` runs only after a complete stream. HEAD is answered without asking for a frame.
    """

    media_type = "text/event-stream"
    beat: ClassVar[bytes] = frames.HEARTBEAT
    """What is sent so that the connection does not fall silent."""
    hinted: ClassVar[bool] = True
    """Whether a stream that is rotated or shut down ends with a hint; else its body gets no end."""

    def __init__(
        self,
        frames_: AsyncIterable[bytes],
        /,
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
        heartbeat: float | None = 15.0,
        send_timeout: float | None = 30.0,
        first_frame_timeout: float | None = 0.25,
        rotate_after: float | None = None,
        close_timeout: float = 5.0,
        retry_ms: int = 250,
        shutdown: Shutdown | None = None,
        on_close: Callable[[Close], Awaitable[None]] | None = None,
        error_frame: Callable[[Exception], bytes] = frames.error_frame,
    ) -> None:
        """Times are in seconds, except `retry_ms`.

        heartbeat: a comment line after this long without a frame; None for none.
        send_timeout: a reader that takes nothing for this long is cut off, without a terminal event.
        first_frame_timeout: how long the status line waits for the first frame. An error until then has a
            real status; afterwards the headers and a heartbeat go out. None waits for ever, 0 not at all.
        rotate_after: the stream ends with a retry hint after this long.
        close_timeout: for the source to close, and for `on_close`.
        retry_ms: the hint with which a stream ends that is rotated or shut down.
        on_close: awaited once, after the source was closed, with how the stream ended.
        error_frame: makes the event for an error of the source. It must show nothing internal.
        """
        if not isinstance(frames_, AsyncIterable):
            raise TypeError(f"the frames are an async iterable of bytes, not {type(frames_).__name__}")
        self.source = frames_
        self.status_code = status_code
        self.background = background
        self.shutdown = shutdown or Shutdown()
        self.options = exchange.Options(
            heartbeat=heartbeat,
            send_timeout=send_timeout,
            first_frame_timeout=first_frame_timeout,
            rotate_after=rotate_after,
            close_timeout=close_timeout,
            beat=self.beat,
            hint=frames.retry_hint(retry_ms) if self.hinted else None,
            on_close=on_close,
            error_frame=error_frame,
        )
        self.init_headers(headers)
        self._own_headers()

    def _own_headers(self) -> None:
        """What proxies and browsers must be told, whatever the caller asked for."""
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self.headers["cache-control"] = "no-store, no-transform"
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise TypeError(f"an EventStream answers HTTP, not {scope['type']}")
        with self.shutdown.future() as stopped:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            wire = exchange.Wire(send, start, self.options.send_timeout, self.beat)
            one = exchange.Exchange(self.source, self.options, receive, wire, stopped)
            cause = await one.answer(scope["method"])
        if cause is Close.COMPLETE and self.background is not None:
            await self.background()
