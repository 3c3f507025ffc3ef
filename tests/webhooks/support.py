"""What the tests of webhooks share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import outlive
from core import support
from outlive import notifications
from outlive.agents import Agent

SECRET = notifications.new_secret(b"0123456789abcdef0123456789abcdef")
OTHER = notifications.new_secret(b"fedcba9876543210fedcba9876543210")


@support.job()
async def quick(context: outlive.Context) -> Any:
    """Ends at once."""
    yield {"asked": context.input}


def webhooks(**options: Any) -> outlive.Webhooks:
    """Webhooks to servers on this machine, tried again at once."""
    usual = {"secrets": (SECRET,), "networks": ("127.0.0.0/8",), "delay": 0.02, "longest_delay": 0.1}
    return outlive.Webhooks(**{**usual, **options})


@contextlib.asynccontextmanager
async def serving(database: str, *agents: Agent, **options: Any) -> AsyncIterator[outlive.Outlive]:
    """A runtime that sends, and looks often."""
    hooks = options.pop("webhooks", None) or webhooks()
    served = outlive.Outlive(database, agents or (quick,), webhooks=hooks, **options)
    served.store.hub.poll = 0.05
    async with served:
        yield served
