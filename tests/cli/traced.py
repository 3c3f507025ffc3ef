"""Agents whose module records the spans of its process and says them."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from typing import Any

from opentelemetry import trace

import outlive
from outlive import policy
from outlive.testing import tracing


def _say(span: tracing.Told) -> None:
    sys.stderr.write(f"span {span.name} {span.trace}\n")


trace.set_tracer_provider(tracing.provider(_say))


@outlive.agent("agent", policy=policy.job())
async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """End at once."""
    yield context.input
