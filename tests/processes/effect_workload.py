"""Agents with effects for processes of their own: ``input`` names the provider's URL and the booking."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx

import outlive
from outlive import effects
from outlive.testing.processes import gate, say


async def _pay(context: outlive.Context, call: effects.Call) -> Any:
    order = context.input
    say(calls=order["booking"], key=call.provider_key, attempt=context.attempt)
    async with httpx.AsyncClient(transport=effects.Transport(), timeout=20.0) as http:
        answer = await http.post(f"{order['url']}/charge", json={"reference": order["booking"]})
        answer.raise_for_status()
        return {"paid": order["booking"]}


async def _charge(context: outlive.Context, **options: Any) -> Any:
    wanted = {"key_ttl": 3600.0, **options}
    if context.input.get("no_keys"):
        wanted["key_ttl"] = None
    booking = context.input["booking"]
    return await effects.once("charge", key=booking, call=lambda call: _pay(context, call), **wanted)


@outlive.agent("pay", policy=outlive.job(on_busy="enqueue"))
async def pay(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Charge once; then, if asked to, wait at a gate."""
    yield await _charge(context)
    if context.input.get("waits"):
        await gate("end").wait()


@outlive.agent("allowed", policy=outlive.job(on_busy="enqueue"))
async def allowed(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Charge once, if it may: so that the wish is on record before the start."""
    yield await _charge(context, authorize=lambda: True)


def _undo(done: Any) -> Any:
    with httpx.Client(transport=effects.SyncTransport(), timeout=20.0) as http:
        url, booking = done.inputs["url"], done.inputs["booking"]
        return http.post(f"{url}/refund", json={"reference": booking}).json()["reference"]


@effects.effect("seat", key="booking", key_ttl=3600, compensate=_undo)
async def seat(booking: str, url: str) -> Any:
    """Take a seat."""
    async with httpx.AsyncClient(transport=effects.Transport(), timeout=20.0) as http:
        answer = await http.post(f"{url}/seat", json={"reference": booking})
        return answer.json()["reference"]


@effects.effect("mail", key="booking", kind="deferrable", key_ttl=3600)
async def mail(booking: str, url: str) -> Any:
    """Tell the guest, once the booking is sure."""
    async with httpx.AsyncClient(transport=effects.Transport(), timeout=20.0) as http:
        return (await http.post(f"{url}/mail", json={"reference": booking})).json()["reference"]


@outlive.agent("fails", policy=outlive.job(on_busy="enqueue", compensate="failures"))
async def fails(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Take a seat and fail."""
    yield await seat(context.input["booking"], context.input["url"])
    raise ValueError("no ticket")


@outlive.agent("mails", policy=outlive.job(on_busy="enqueue"))
async def mails(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Have a mail sent at the end."""
    yield await mail(context.input["booking"], context.input["url"])


agents = [pay, allowed, fails, mails]
