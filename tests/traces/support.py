"""What the tests of traces share: a real SDK that keeps the spans, and how a trace reads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import outlive
from outlive import traces
from outlive.agents import Agent
from outlive.testing import tracing

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"


class Spans:
    """The spans that one provider has seen end."""

    def __init__(self) -> None:
        self.ended: list[tracing.Told] = []
        self.provider = tracing.provider(self.ended.append)
        self.tracer = self.provider.get_tracer("somebody")

    def named(self, name: str, **about: Any) -> list[tracing.Told]:
        """Those of a name that say this, in the order of their ends."""
        return [span for span in self.ended if span.name == name and about.items() <= span.about.items()]

    def one(self, name: str, **about: Any) -> tracing.Told:
        """The only one of a name that says this."""
        (found,) = self.named(name, **about)
        return found

    def tree(self, trace_id: str = TRACE) -> list[str]:
        """A trace as names, those of children with two spaces more than their parents'."""
        of_trace = [span for span in self.ended if span.trace == trace_id]
        return ["  " * depth + span.name for depth, span in tracing.tree(of_trace)]


@contextlib.asynccontextmanager
async def serving(
    database: str, spans: Spans, *agents: Agent, messages: bool = False, **options: Any
) -> AsyncIterator[outlive.Outlive]:
    """A runtime that is traced."""
    served = outlive.Outlive(database, agents, **options)
    served.store.hub.poll = 0.05
    traces.observe(served, spans.provider, messages=messages)
    async with served:
        yield served
