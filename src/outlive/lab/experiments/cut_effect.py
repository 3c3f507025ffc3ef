"""What does a provider see when an awaited charge is cut between its request and its reply?"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from outlive.lab import figures
from outlive.lab.experiment import Bench, Experiment, Measured
from outlive.lab.experiments import bench_graph


class State(TypedDict):
    """The booking comes with the message; the receipt comes from the provider."""

    booking: str
    receipts: Annotated[list[str], operator.add]


class Provider:
    """A payment provider on a socket: charges at once, replies later, and honours keys."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.charged = asyncio.Event()
        self._replies: dict[str, str] = {}
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection: a key, or an empty line for none."""
        key = (await reader.readline()).decode().strip()
        if key not in self._replies or not key:
            self.charges.append(key)
            self._replies[key] = f"receipt {len(self.charges)}"
        self.charged.set()
        await asyncio.sleep(0.1)
        with contextlib.suppress(ConnectionError):
            writer.write(f"{self._replies[key]}\n".encode())
            await writer.drain()
        writer.close()

    async def charge(self, key: str) -> str:
        """What a client library does."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"{key}\n".encode())
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def _provider() -> AsyncIterator[Provider]:
    provider = Provider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    async with server:
        yield provider


def _graph(provider: Provider, *, keyed: bool) -> Any:
    async def charge(state: State) -> dict[str, list[str]]:
        return {"receipts": [await provider.charge(state["booking"] if keyed else "")]}

    builder: Any = StateGraph(State)
    builder.add_node("charge", charge)
    builder.add_edge(START, "charge")
    builder.add_edge("charge", END)
    return builder.compile(checkpointer=InMemorySaver())


async def _trial(*, keyed: bool, again: str) -> Mapping[str, object]:
    config: Any = {"configurable": {"thread_id": "t"}}
    message = {"booking": "b-1", "receipts": []}
    async with _provider() as provider:
        graph = _graph(provider, keyed=keyed)
        await bench_graph.cut_as_starlette_does(graph.ainvoke(message, config), provider.charged.wait)
        before = await graph.aget_state(config)
        after = await graph.ainvoke(None if again == "resumed" else message, config)
        return {
            "key": "from the booking" if keyed else "none",
            "afterwards": again,
            "next after the cut": ", ".join(before.next),
            "provider charged": len(provider.charges),
            "receipts in the state": len(after["receipts"]),
        }


def _play(bench: Bench) -> Measured:
    cases = [(keyed, again) for keyed in (False, True) for again in ("resumed", "one more message")]
    bench.plan(len(cases))
    rows = []
    for keyed, again in cases:
        rows.append(asyncio.run(_trial(keyed=keyed, again=again)))
        bench.step()
    held = [row["provider charged"] for row in rows] == [2, 2, 1, 1]
    values = [
        (
            f"{row['key']}, {row['afterwards']}",
            {
                "executed": int(str(row["provider charged"])),
                "recorded": int(str(row["receipts in the state"])),
            },
        )
        for row in rows
    ]
    return Measured(
        ok=held, rows=rows, figures=[figures.bars("Charges at the provider and receipts", values)]
    )


EXPERIMENT = Experiment(
    name="cut-effect",
    title="An awaited effect cut in flight",
    asserts="Without a key the provider charges twice, also when resumed; with a stable key, once.",
    play=_play,
)
