"""The application that ``outlive serve`` serves, with API keys, behind a real server on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import fastapi
import httpx
import native_service

import outlive
from outlive import effects, keys, policy
from outlive.http import application, auth
from outlive.principal import EVERYTHING, Scope


@dataclass(kw_only=True)
class Keyed:
    """What a test holds: the application, where it listens, and the gate at which its agents wait."""

    outlive: outlive.Outlive
    app: fastapi.FastAPI
    url: str
    gate: asyncio.Event

    async def key(
        self, tenant: str, *, scopes: frozenset[Scope] = EVERYTHING, lifetime: float | None = None
    ) -> keys.Minted:
        """Make a key."""
        minted = keys.mint()
        step = keys.create(minted, tenant=tenant, name="test", scopes=scopes, lifetime=lifetime)
        await self.outlive.store.write(step)
        return minted

    def client(self, credentials: str | bytes | None) -> httpx.AsyncClient:
        """A client with these credentials.  It checks no certificate: to read them all takes long."""
        text = credentials.encode() if isinstance(credentials, str) else credentials
        headers = {} if text is None else {b"Authorization": b"Bearer " + text}
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=native_service.WITHIN, verify=False
        )


@contextlib.asynccontextmanager
async def serving(
    database: str, principal: auth.Dependency | None = None, **options: Any
) -> AsyncIterator[Keyed]:
    """A service; without a ``principal`` it takes API keys.  Its end leaves nothing behind."""
    gate = asyncio.Event()

    @outlive.agent("gated", policy=policy.job(on_busy="enqueue"))
    async def gated(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await effects.once("book", key=context.run.run_id, call=lambda: "booked")
        yield context.input
        await gate.wait()
        yield outlive.Outcome(output=context.input)

    @outlive.agent("writing", policy=policy.job())
    async def writing(context: outlive.Context) -> AsyncGenerator[Any, None]:
        await asyncio.to_thread(context.artifact("made.html").write_text, "<script>alert(1)</script>")
        yield 1

    served = outlive.Outlive(database, [gated, writing], **options)
    app = application.application(served, principal=principal or auth.api_keys(served))
    async with served, native_service.listening(app) as port:
        yield Keyed(outlive=served, app=app, url=f"http://127.0.0.1:{port}", gate=gate)
        gate.set()
    assert served.presence._viewers == {}
    assert served._worker.driving == {}
