"""Sends one notification to one web server, once, and says what came of it.

Decides how it is signed (Standard Webhooks), which addresses are connected to, and what an answer means.
Does not decide when to try again; nothing here knows the record.

A name is resolved here, and the connection goes to an address that was checked: there is no second look-up
that could give another.  No redirect is followed, no proxy is used, and nothing of a response's body is read.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import anyio.to_thread
import httpcore
import standardwebhooks.webhooks
import tenacity

from outlive import addresses
from outlive.notifications import Answer, Came, Notification, Webhooks

LONGEST_CIRCUIT = 300.0
"""Seconds for which a receiver that does not answer is left alone at most."""
LONGEST_WAIT = 3600.0
"""Seconds for which a receiver's Retry-After is obeyed at most."""


class AddressRefused(httpcore.ConnectError):
    """Nothing is sent to the addresses that this name leads to."""


class Sender:
    """One process's way out.  ``open`` it before the first try."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}

    async def open(self) -> None:
        """Read the certificates of those who are trusted."""
        trusted = await anyio.to_thread.run_sync(httpcore.default_ssl_context)
        ours = self._webhooks.allowed
        limiter = anyio.CapacityLimiter(self._webhooks.at_once)
        rules: dict[str, Callable[[str], bool]] = {
            "https": lambda address: addresses.allowed(address, ours),
            "http": lambda address: addresses.own(address, ours),
        }
        for scheme, rule in rules.items():
            self._pools[scheme] = _pool(trusted, Checked(rule, limiter))

    async def close(self) -> None:
        """Close what is open still."""
        for pool in self._pools.values():
            await pool.aclose()

    async def send(self, sent: Notification) -> Answer:
        """Try once; whatever goes wrong on the way is an answer too."""
        timeout = self._webhooks.timeout
        try:
            async with asyncio.timeout(timeout):
                return await self._post(sent)
        except (TimeoutError, httpcore.TimeoutException):
            return Answer(came=Came.MISSED, why=f"no answer within {timeout:g} s", theirs=True)
        except AddressRefused as refused:
            return Answer(came=Came.MISSED, why=str(refused), theirs=True)
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, UnicodeError) as failure:
            why = f"{type(failure).__name__}: {failure}".removesuffix(": ")
            return Answer(came=Came.MISSED, why=why[:200], theirs=True)

    async def _post(self, sent: Notification) -> Answer:
        body = sent.body or ""
        headers = {
            "content-type": "application/json",
            "user-agent": "Outlive",
            **signed(sent.notification_id, body, self._secrets(sent)),
        }
        pool = self._pools[sent.url.partition(":")[0].lower()]
        content = body.encode("ascii")
        async with pool.stream("POST", sent.url, headers=list(headers.items()), content=content) as response:
            return read(response.status, response.headers)

    def _secrets(self, sent: Notification) -> list[str]:
        return self._webhooks.secrets_of(sent.tenant, sent.audience)


def signed(message: str, body: str, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers of the Standard Webhooks specification: every secret signs.

    The time is that of this try: a receiver refuses what is older than its window.
    """
    now = datetime.datetime.now(datetime.UTC)
    signatures = [standardwebhooks.webhooks.Webhook(secret).sign(message, now, body) for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def read(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Answer:
    """Say what a status means; a redirect is no delivery, and is not followed."""
    if 200 <= status < 300:
        return Answer(came=Came.DELIVERED, status=status)
    if status == 410:
        return Answer(came=Came.GONE, status=status, why="gone")
    if 300 <= status < 400:
        return Answer(came=Came.MISSED, status=status, why=f"{status}: redirects are not followed")
    after = _asked(headers) if status in (429, 503) else 0.0
    theirs = status >= 500 or status == 429
    return Answer(came=Came.MISSED, status=status, why=f"answered {status}", theirs=theirs, after=after)


def _asked(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds that a Retry-After header asks for; 0 without one that can be read."""
    text = next((value.decode("latin-1") for name, value in headers if name.lower() == b"retry-after"), "")
    try:
        wanted = (
            float(text)
            if text.isdigit()
            else email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        )
    except (ValueError, TypeError):
        return 0.0
    return min(max(wanted, 0.0), LONGEST_WAIT)


def waits(first: float, longest: float) -> Callable[[int], float]:
    """Return what says how many seconds to wait after so many tries: longer each time, and by chance.

    By chance, so that no herd comes back.  The library decides how long; until when is kept in the record, so
    that it outlives every process.
    """
    wait = tenacity.wait_random_exponential(multiplier=first, exp_base=3, min=first / 2, max=longest)

    def after(tries: int) -> float:
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = tries
        return wait(state)

    return after


# ---------------------------------------------------------------- connecting


class Checked(httpcore.AsyncNetworkBackend):
    """Connects to addresses that a rule lets through, by names or as they are."""

    def __init__(self, lets: Callable[[str], bool], limiter: anyio.CapacityLimiter) -> None:
        self._lets = lets
        self._limiter = limiter
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve, check, and connect to the first address of those that answers."""
        found = await self._resolved(host, port)
        checked = [address for address in found if self._lets(address)]
        if not checked:
            raise AddressRefused(f"nothing is sent to the addresses of {host}")
        for address in checked[:-1]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(checked[-1], port, timeout, local_address, socket_options)

    async def _resolved(self, host: str, port: int) -> list[str]:
        # In threads of its own: a resolver that hangs must not keep the agents' threads waiting.
        found = await anyio.to_thread.run_sync(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
            abandon_on_cancel=True,
            limiter=self._limiter,
        )
        return list(dict.fromkeys(str(each[4][0]) for each in found))


def _pool(trusted: ssl.SSLContext, network: Checked) -> httpcore.AsyncConnectionPool:
    """No connection is kept: what was checked is what is used, and the next one is checked anew."""
    return httpcore.AsyncConnectionPool(
        ssl_context=trusted, network_backend=network, max_keepalive_connections=0, max_connections=None
    )
