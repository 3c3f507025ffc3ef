"""Who asks: dependencies that return a principal, and the end of streams whose principal is gone.

Decides how a request shows its credentials and what it is answered without them.  Does not decide whose a run
is: every statement that reads one names its tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request

from outlive import errors, keys, names, shutdown, signals
from outlive.principal import NOBODY, Principal, Scope
from outlive.runtime import Outlive

logger = logging.getLogger("outlive.http")
Dependency = Callable[..., Any]
"""A FastAPI dependency that returns a ``Principal`` or a tenant's name, or raises."""
RECHECK = 1.0
"""Seconds between two looks at an open stream's credentials, and for which a key that was found holds."""
NOTED_EVERY = 60.0
"""Seconds within which a key's use is noted once."""
_MOST_KNOWN = 10_000
_LOOKS = frozenset({"GET", "HEAD"})


async def nobody() -> Principal:
    """Everybody is the same: the application, or nobody at all, sees to who may come in."""
    return NOBODY


async def this_machine(request: Request) -> Principal:
    """Let in whoever asks for this machine by a name of its own.

    A page on the web can make a visitor's browser send requests to 127.0.0.1.  It cannot choose their Host
    (a name that it points here itself is not one of ours), nor hide its Origin.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if not _is_here(f"//{host}") or (origin is not None and not _is_here(origin)):
        raise errors.Forbidden(
            "Nobody is authenticated here, so only this machine may ask.",
            hint="Ask for 127.0.0.1 or localhost, or start with --auth keys, --auth jwt or --allow-anyone.",
        )
    return NOBODY


@functools.lru_cache(maxsize=256)
def _is_here(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def bearer(request: Request) -> str:
    """Return the credentials of ``Authorization: Bearer``; raises ``Unauthenticated``."""
    given = request.headers.getlist("authorization")
    kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if kind.lower() != "bearer" or not (text := text.strip()):
        raise errors.Unauthenticated("There are no credentials in this request.")
    return text


def read(found: object) -> Principal:
    """Return the principal that a dependency found; raises ``NoTenant``.

    None would read across tenants, and "" is shared by all who have none.
    """
    if isinstance(found, str) and found:
        found = Principal(tenant=found, id=found)
    if not isinstance(found, Principal) or (not found.tenant and found is not NOBODY):
        raise errors.NoTenant
    names.check_name("tenant", found.tenant)
    names.check_name("principal", found.id)
    return found


def check_scope(who: Principal, method: str) -> None:
    """Raise ``Forbidden`` unless the credentials reach as far as this method does."""
    needed = Scope.READ if method in _LOOKS else Scope.WRITE
    if needed not in who.scopes:
        raise errors.Forbidden(f"These credentials lack the scope {needed}.")


# ------------------------------------------------------------ API keys


def api_keys(outlive: Outlive) -> Dependency:
    """Return a dependency that takes ``Authorization: Bearer`` with a key of ``outlive keys create``.

    A key that was revoked is refused, and its streams are ended, within about two ``RECHECK``.
    """
    known = _Known(outlive)

    async def authenticate(request: Request) -> Principal:
        text = bearer(request)
        key = await known.key(text)
        known.note_use(key)
        return Principal(
            tenant=key.tenant,
            id=key.key_id,
            scopes=key.scopes,
            expires_at=key.expires_at,
            still_valid=functools.partial(known.holds, text),
        )

    return authenticate


class _Known:
    """Keys that were looked up a moment ago."""

    def __init__(self, outlive: Outlive) -> None:
        self._outlive = outlive
        self._found: dict[str, tuple[keys.Key, float]] = {}
        self._noted: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def key(self, text: str) -> keys.Key:
        """Return the key that ``text`` is; raises ``Unauthenticated``."""
        key_id = keys.id_of(text)
        key = None if key_id is None else await self._look_up(key_id)
        if key is None or not keys.same(key, text):
            raise errors.Unauthenticated("This is no key of this service.")
        if not key.holds or _over(key.expires_at):  # what was found a moment ago may have expired since
            ended = "was revoked" if key.revoked_at is not None else "has expired"
            raise errors.Unauthenticated(f"The key {keys.MARK}_{key.key_id} {ended}.")
        return key

    async def holds(self, text: str) -> bool:
        """Say whether ``text`` is still a key that holds."""
        with contextlib.suppress(errors.Unauthenticated):
            return bool(await self.key(text))
        return False

    async def _look_up(self, key_id: str) -> keys.Key | None:
        now = time.monotonic()
        if key_id in self._found and now - self._found[key_id][1] < RECHECK:
            return self._found[key_id][0]
        key = await self._outlive.store.read(keys.find(key_id))
        if len(self._found) >= _MOST_KNOWN:
            self._found.clear()
        if key is not None:
            self._found[key_id] = (key, now)
        return key

    def note_use(self, key: keys.Key) -> None:
        """Note it once in a while, and not in the way of the request."""
        now = time.monotonic()
        if now - self._noted.get(key.key_id, -NOTED_EVERY) < NOTED_EVERY:
            return
        if len(self._noted) >= _MOST_KNOWN:
            self._noted.clear()
        self._noted[key.key_id] = now
        task = asyncio.get_running_loop().create_task(self._note(key.key_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _note(self, key_id: str) -> None:
        try:
            await self._outlive.store.write(keys.used(key_id))
        except errors.Unavailable as failure:
            self._outlive.signals.emit(signals.BackgroundFailed(duty="key use", error=str(failure)))


# ------------------------------------------------------------ streams end with their principal


class Ending(shutdown.Shutdown):
    """The end of one stream: the process's own, or that of its principal's credentials."""

    def __init__(self, above: shutdown.Shutdown) -> None:
        super().__init__()
        self._above = above

    @contextlib.contextmanager
    def future(self) -> Iterator[asyncio.Future[None]]:
        """A future that is done once either is over."""
        with self._above.future() as over:
            self._waiting.add(over)
            try:
                yield over
            finally:
                self._waiting.discard(over)


async def guarded(
    frames: AsyncGenerator[bytes, None], who: Principal, ending: shutdown.Shutdown
) -> AsyncGenerator[bytes, None]:
    """Yield the frames; meanwhile set ``ending`` as soon as the principal's credentials are gone."""
    guard = asyncio.get_running_loop().create_task(_guard(who, ending))
    try:
        async with contextlib.aclosing(frames):
            async for piece in frames:
                yield piece
    finally:
        guard.cancel()
        await asyncio.wait({guard})
        if not guard.cancelled() and (failure := guard.exception()) is not None:
            logger.error("a principal's still_valid raised; its stream was ended", exc_info=failure)


async def _guard(who: Principal, ending: shutdown.Shutdown) -> None:
    try:
        while await _holds(who):  # noqa: ASYNC110 - what is waited for is the passing of time
            await asyncio.sleep(_until_next(who))
    finally:
        # Also if a check of the application's own raised: credentials that nobody can vouch for are none.
        ending.set()


def _until_next(who: Principal) -> float:
    left = RECHECK if who.expires_at is None else who.expires_at - time.time()
    return max(0.0, left if who.still_valid is None else min(left, RECHECK))


async def _holds(who: Principal) -> bool:
    if _over(who.expires_at):
        return False
    return who.still_valid is None or await _asked(who.still_valid)


def _over(at: float | None) -> bool:
    return at is not None and at <= time.time()


async def _asked(still_valid: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await still_valid()
    except errors.Unavailable:
        return True  # the database is away: it has no events for this stream either
