"""``httpx`` transports that tell the provider which effect a request is.

Decides the idempotency header of requests that are made within an effect's call, and what an answer that the
key is in use means.  Requests outside of a call, and those that change nothing, pass as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextvars import ContextVar

import httpx

from outlive import errors
from outlive.effects import asking
from outlive.effects.asking import Call

HEADER = "Idempotency-Key"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_SENT: ContextVar[tuple[Call, str] | None] = ContextVar("outlive_effect_request", default=None)
InUse = Callable[[httpx.Response], bool]


def says_in_use(response: httpx.Response) -> bool:
    """Say whether an answer means that the provider still works on this key: 409, as Stripe's does."""
    return response.status_code == httpx.codes.CONFLICT


class Transport(httpx.AsyncBaseTransport):
    """``httpx.AsyncClient(transport=effects.Transport())``: one line for a client that is there already.

    ``inner`` makes the requests, ``header`` is the provider's, ``in_use`` tells its answer to a key on which
    it still works: then the identical request is made again.  One effect makes one request that changes
    something (or the same one again); another raises ``Misconfigured``.
    """

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        header: str = HEADER,
        in_use: InUse = says_in_use,
    ) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._header = header
        self._in_use = in_use

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it; raises ``KeyInUse`` for the effect's call to be repeated."""
        call = _marked(request, self._header, await request.aread() if _wants_key(request) else b"")
        response = await self._inner.handle_async_request(request)
        if call is not None and self._in_use(response):
            await response.aclose()
            raise asking.KeyInUse(call.provider_key)
        return response

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()


class SyncTransport(httpx.BaseTransport):
    """The same for ``httpx.Client``, within `once_in_thread`."""

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        header: str = HEADER,
        in_use: InUse = says_in_use,
    ) -> None:
        self._inner = inner or httpx.HTTPTransport()
        self._header = header
        self._in_use = in_use

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it; raises ``KeyInUse`` for the effect's call to be repeated."""
        call = _marked(request, self._header, request.read() if _wants_key(request) else b"")
        response = self._inner.handle_request(request)
        if call is not None and self._in_use(response):
            response.close()
            raise asking.KeyInUse(call.provider_key)
        return response

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


def _wants_key(request: httpx.Request) -> bool:
    return asking.CALL.get() is not None and request.method not in _SAFE


def _marked(request: httpx.Request, header: str, body: bytes) -> Call | None:
    """Set the header if this is the request of an effect, and return that effect's call."""
    call = asking.CALL.get()
    if call is None or not _wants_key(request):
        return None
    what = hashlib.sha256(b"\0".join([request.method.encode(), str(request.url).encode(), body])).hexdigest()
    sent = _SENT.get()
    if sent is not None and sent[0] is call and sent[1] != what:
        raise errors.Misconfigured(
            f"The effect {call.name} makes two requests that change something.",
            hint="Make each an effect of its own: one key stands for one request.",
        )
    _SENT.set((call, what))
    request.headers[header] = call.provider_key
    return call
